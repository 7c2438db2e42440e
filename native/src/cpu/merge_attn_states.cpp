// SPDX-License-Identifier: Apache-2.0
//
// merge_attn_states: two attention results over disjoint slots, each weighted by its share of the softmax's sum
// (the merge of cascade attention, FlashInfer, arXiv 2501.01005).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/checks.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"
#include "kdtree/kdtree.h"

namespace kdt {
namespace {

constexpr int64_t kRowsPerItem = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The sides' shares of a row and its lse; NaN in gives NaN out. A side that has seen nothing has share 0.
struct Shares {
    float a, b, lse;
};

Shares shares_of(float lse_a, float lse_b) {
    if (lse_a == -kInfinity && lse_b == -kInfinity) return {0.0f, 0.0f, -kInfinity};
    const float top = std::max(lse_a, lse_b);
    const float a = std::exp(lse_a - top);
    const float b = std::exp(lse_b - top);
    const float sum = a + b;  // a NaN on either side ends up here, whatever std::max made of it
    return {a / sum, b / sum, top + std::log(sum)};
}

KDT_CLONES void scale_row(const uint16_t* from, float share, int32_t count, uint16_t* to) {
    for (int32_t i = 0; i < count; ++i) to[i] = bf16_from_float(float_from_bf16(from[i]) * share);
}

KDT_CLONES void add_rows(const uint16_t* a, float share_a, const uint16_t* b, float share_b, int32_t count,
                         uint16_t* to) {
    for (int32_t i = 0; i < count; ++i)
        to[i] = bf16_from_float(float_from_bf16(a[i]) * share_a + float_from_bf16(b[i]) * share_b);
}

void merge_row(const kdt_merge_attn_states_params& p, int64_t row) {
    const float lse_a = p.lse_a[row], lse_b = p.lse_b[row];
    const uint16_t* a = static_cast<const uint16_t*>(p.out_a) + row * p.head_dim;
    const uint16_t* b = static_cast<const uint16_t*>(p.out_b) + row * p.head_dim;
    uint16_t* const to = static_cast<uint16_t*>(p.out) + row * p.head_dim;
    const Shares shares = shares_of(lse_a, lse_b);
    if (shares.lse == -kInfinity)
        std::fill_n(to, p.head_dim, uint16_t{0});
    else if (lse_b == -kInfinity)
        scale_row(a, shares.a, p.head_dim, to);
    else if (lse_a == -kInfinity)
        scale_row(b, shares.b, p.head_dim, to);
    else if (lse_a < lse_b)  // the larger first, so that a fused multiply-add rounds alike whichever side is called a
        add_rows(b, shares.b, a, shares.a, p.head_dim, to);
    else
        add_rows(a, shares.a, b, shares.b, p.head_dim, to);
    p.lse[row] = shares.lse;
}

}  // namespace
}  // namespace kdt

extern "C" kdt_status kdt_merge_attn_states_workspace_size(const kdt_merge_attn_states_params* params, size_t* bytes) {
    return kdt::guarded([&] {
        const kdt_merge_attn_states_params p = kdt::read_params(params);
        kdt::check_bytes_out("merge_attn_states", bytes);
        kdt::check_merge_attn_states_sizes(p);
        *bytes = 0;
    });
}

extern "C" kdt_status kdt_merge_attn_states(const kdt_merge_attn_states_params* params) {
    return kdt::guarded([&] {
        const kdt_merge_attn_states_params p = kdt::read_params(params);
        kdt::check_merge_attn_states(p);
        const int64_t items = (p.rows + kdt::kRowsPerItem - 1) / kdt::kRowsPerItem;
        const double work_ns = 0.3 * p.rows * p.head_dim;
        kdt::parallel_for(items, kdt::plan_threads(items, work_ns), [&](int64_t item, int) {
            const int64_t end = std::min<int64_t>(p.rows, (item + 1) * kdt::kRowsPerItem);
            for (int64_t row = item * kdt::kRowsPerItem; row < end; ++row) kdt::merge_row(p, row);
        });
    });
}
