// SPDX-License-Identifier: Apache-2.0
//
// Mixture of experts: DeepSeek-V3's router (arXiv 2412.19437, section 2.1.2), and the experts one after the other, each
// over the rows that chose it. A row's sum runs over its experts in ascending order, whoever else chose them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/workspace.h"
#include "engine/cpu/rows.h"
#include "engine/ops.h"

namespace kdt::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void probabilities(const Router& router, const float* logits, float* p) {
    const int32_t count = router.n_routed_experts;
    if (router.scores == 0) {  // sigmoid
        for (int32_t e = 0; e < count; ++e) p[e] = 1.0f / (1.0f + std::exp(-logits[e]));
        return;
    }
    const float maximum = *std::max_element(logits, logits + count);
    float sum = 0.0f;
    for (int32_t e = 0; e < count; ++e) sum += p[e] = std::exp(logits[e] - maximum);
    for (int32_t e = 0; e < count; ++e) p[e] /= sum;
}

// The indices of the `wanted` largest of `count` values, descending, equal ones by lowest index.
void best(const float* values, int32_t count, int32_t wanted, int32_t* indices) {
    std::vector<int32_t> order(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) order[static_cast<size_t>(i)] = i;
    std::partial_sort(order.begin(), order.begin() + wanted, order.end(),
                      [&](int32_t a, int32_t b) { return values[a] > values[b] || (values[a] == values[b] && a < b); });
    std::copy_n(order.begin(), wanted, indices);
}

// Takes the experts of all but the best groups out of the choice.
void keep_best_groups(const Router& router, float* choice) {
    if (router.topk_group == router.n_group) return;
    const int32_t size = router.n_routed_experts / router.n_group;
    std::vector<float> scores(static_cast<size_t>(router.n_group));
    for (int32_t g = 0; g < router.n_group; ++g) {
        float first = -kInfinity, second = -kInfinity;
        for (int32_t e = g * size; e < (g + 1) * size; ++e) {
            second = std::max(second, std::min(first, choice[e]));
            first = std::max(first, choice[e]);
        }
        scores[static_cast<size_t>(g)] = router.scores == 0 && size > 1 ? first + second : first;
    }
    std::vector<int32_t> kept(static_cast<size_t>(router.topk_group));
    best(scores.data(), router.n_group, router.topk_group, kept.data());
    for (int32_t g = 0; g < router.n_group; ++g)
        if (std::find(kept.begin(), kept.end(), g) == kept.end()) std::fill_n(choice + g * size, size, -kInfinity);
}

struct Buffers {
    char* input;      // act [rows, hidden]
    float* gate_up;   // [rows, 2 intermediate]
    float* product;   // [rows, intermediate]
    char* rounded;    // act [rows, intermediate]
    float* result;    // [rows, hidden]
    float* sum;       // [rows, hidden]
    int32_t* chosen;  // [rows]
    float* weights;   // [rows]
};

Buffers take(Workspace& workspace, Dtype dtype, int32_t hidden, int32_t intermediate, int32_t rows) {
    const size_t n = static_cast<size_t>(rows), act = size_of(dtype);
    Buffers b = {};
    b.input = workspace.take<char>(n * hidden * act);
    b.gate_up = workspace.take<float>(n * 2 * intermediate);
    b.product = workspace.take<float>(n * intermediate);
    b.rounded = workspace.take<char>(n * intermediate * act);
    b.result = workspace.take<float>(n * hidden);
    b.sum = workspace.take<float>(n * hidden);
    b.chosen = workspace.take<int32_t>(n);
    b.weights = workspace.take<float>(n);
    return b;
}

}  // namespace

void route(Queue&, const Router& router, const float* logits, const float* bias, int32_t* experts, float* weights,
           int32_t rows) {
    const int32_t count = router.n_routed_experts, k = router.num_experts_per_tok;
    for_rows(rows, 2 * int64_t{count}, 20.0 * count, [&](int64_t r, float* scratch) {
        float* const p = scratch;
        float* const choice = scratch + count;
        probabilities(router, logits + r * count, p);
        for (int32_t e = 0; e < count; ++e) choice[e] = p[e] + (bias != nullptr ? bias[e] : 0.0f);
        keep_best_groups(router, choice);
        int32_t* const chosen = experts + r * k;
        best(choice, count, k, chosen);
        float sum = 1e-20f;
        for (int32_t i = 0; i < k; ++i) sum += p[chosen[i]];
        const float factor = router.routed_scaling_factor / (router.norm_topk_prob != 0 ? sum : 1.0f);
        for (int32_t i = 0; i < k; ++i) weights[r * k + i] = p[chosen[i]] * factor;
    });
}

size_t experts_workspace(Dtype dtype, const Router&, int32_t hidden, int32_t intermediate, int32_t rows) {
    Workspace measure;
    take(measure, dtype, hidden, intermediate, rows);
    return measure.bytes();
}

void experts_add(Queue& queue, Dtype dtype, const Router& router, const void* x, const int32_t* experts,
                 const float* weights, const void* gate_up, const void* down, void* out, int32_t rows, int32_t hidden,
                 int32_t intermediate, void* workspace) {
    Workspace blocks(workspace);
    const Buffers b = take(blocks, dtype, hidden, intermediate, rows);
    const auto act = static_cast<int64_t>(size_of(dtype));
    const int64_t matrix = int64_t{hidden} * intermediate * act;
    std::fill_n(b.sum, int64_t{rows} * hidden, 0.0f);
    for (int32_t e = 0; e < router.n_routed_experts; ++e) {
        int32_t count = 0;
        for (int32_t r = 0; r < rows; ++r)
            for (int32_t i = 0; i < router.num_experts_per_tok; ++i)
                if (experts[r * router.num_experts_per_tok + i] == e) {
                    b.chosen[count] = r;
                    b.weights[count++] = weights[r * router.num_experts_per_tok + i];
                }
        if (count == 0) continue;
        for (int32_t i = 0; i < count; ++i)
            queue.copy(b.input + i * hidden * act, static_cast<const char*>(x) + b.chosen[i] * hidden * act,
                       static_cast<size_t>(hidden * act));
        gemm(queue, dtype, b.input, hidden, static_cast<const char*>(gate_up) + 2 * e * matrix, b.gate_up, KDT_F32,
             count, hidden, 2 * intermediate);
        silu_mul(queue, KDT_F32, b.gate_up, b.product, count, intermediate);
        convert(queue, b.product, KDT_F32, b.rounded, dtype, int64_t{count} * intermediate);
        gemm(queue, dtype, b.rounded, intermediate, static_cast<const char*>(down) + e * matrix, b.result, KDT_F32,
             count, intermediate, hidden);
        for (int32_t i = 0; i < count; ++i) {
            float* const sum = b.sum + int64_t{b.chosen[i]} * hidden;
            const float* const result = b.result + int64_t{i} * hidden;
            for (int32_t j = 0; j < hidden; ++j) sum[j] += b.weights[i] * result[j];
        }
    }
    for_rows(rows, hidden, 1.0 * hidden, [&](int64_t r, float* row) {
        read_values(dtype, out, r * hidden, hidden, row);
        for (int32_t j = 0; j < hidden; ++j) row[j] += b.sum[r * hidden + j];
        write_values(dtype, row, out, r * hidden, hidden);
    });
}

}  // namespace kdt::engine
