// SPDX-License-Identifier: Apache-2.0
//
// kv_compact: the rows of the accepted nodes move to the slots behind the prefix, layer by layer.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/checks.h"
#include "cpu/parallel.h"
#include "kdtree/kdtree.h"

namespace kdt {
namespace {

// Bytes of a row that are staged at a time: all moves together stay in the first-level cache.
constexpr int32_t kStagedBytes = 512;

// Row `from` of a layer goes to row `to`; rows are counted over all pages.
struct Move {
    int64_t from, to;
};

struct Plan {
    Move moves[KDT_MAX_DRAFT_HORIZON];
    int32_t count = 0;
    int32_t status = 0;
};

// Nodes on the path, or -1 when it is not 0, rising, then -1.
int32_t path_length(const int32_t* path, int32_t entries) {
    int32_t length = 0;
    for (int32_t before = -1; length < entries && path[length] != -1; before = path[length++])
        if (length == 0 ? path[0] != 0 : path[length] <= before) return -1;
    for (int32_t k = length; k < entries; ++k)
        if (path[k] != -1) return -1;
    return length;
}

Plan plan_moves(const kdt_kv_compact_params& p, int64_t b) {
    Plan plan;
    const int32_t* const path = p.accepted_path + b * (p.draft_horizon + int64_t{1});
    const int32_t* const pages = p.block_table + b * p.max_pages_per_seq;
    const int64_t prefix = p.seq_lens[b];
    const int32_t length = path_length(path, p.draft_horizon + 1);
    if (length < 0) {
        plan.status = KDT_REQ_BAD_TREE;
        return plan;
    }
    // A path rises, so its last node stands furthest; whose node is in its place at the end never left it.
    if (length == 0 || path[length - 1] == length - 1) return plan;
    if (prefix < 0 || prefix + path[length - 1] >= int64_t{p.max_pages_per_seq} * p.page_size) {
        plan.status = KDT_REQ_BAD_LENGTH;
        return plan;
    }
    const auto row_of = [&](int64_t slot) -> int64_t {
        const int32_t page = pages[slot / p.page_size];
        return page < 0 || page >= p.num_pages ? -1 : int64_t{page} * p.page_size + slot % p.page_size;
    };
    for (int32_t k = 1; k < length; ++k) {
        if (path[k] == k) continue;
        const Move move = {row_of(prefix + path[k]), row_of(prefix + k)};
        if (move.from < 0 || move.to < 0) {
            plan.status = KDT_REQ_BAD_PAGE;
            plan.count = 0;
            return plan;
        }
        plan.moves[plan.count++] = move;
    }
    return plan;
}

// All rows are read before one is written, a strip of columns at a time: columns do not touch each other.
void move_rows(unsigned char* layer, int64_t row_bytes, const Plan& plan) {
    unsigned char staged[KDT_MAX_DRAFT_HORIZON][kStagedBytes];
    for (int64_t column = 0; column < row_bytes; column += kStagedBytes) {
        const size_t bytes = static_cast<size_t>(std::min<int64_t>(kStagedBytes, row_bytes - column));
        unsigned char* const strip = layer + column;
        for (int32_t m = 0; m < plan.count; ++m) std::memcpy(staged[m], strip + plan.moves[m].from * row_bytes, bytes);
        for (int32_t m = 0; m < plan.count; ++m) std::memcpy(strip + plan.moves[m].to * row_bytes, staged[m], bytes);
    }
}

}  // namespace
}  // namespace kdt

extern "C" kdt_status kdt_kv_compact_workspace_size(const kdt_kv_compact_params* params, size_t* bytes) {
    return kdt::guarded([&] {
        const kdt_kv_compact_params p = kdt::read_params(params);
        kdt::check_bytes_out("kv_compact", bytes);
        kdt::check_kv_compact_sizes(p);
        *bytes = 0;
    });
}

extern "C" kdt_status kdt_kv_compact(const kdt_kv_compact_params* params) {
    return kdt::guarded([&] {
        const kdt_kv_compact_params p = kdt::read_params(params);
        kdt::check_kv_compact(p);
        const int64_t layer_bytes = int64_t{p.num_pages} * p.page_size * p.row_bytes;
        const double work_ns = 0.1 * p.batch * p.num_layers * p.draft_horizon * p.row_bytes;
        kdt::parallel_for(p.batch, kdt::plan_threads(p.batch, work_ns), [&](int64_t b, int) {
            const kdt::Plan plan = kdt::plan_moves(p, b);
            if (p.status != nullptr) p.status[b] = plan.status;
            for (int32_t layer = 0; layer < p.num_layers && plan.count > 0; ++layer)
                kdt::move_rows(static_cast<unsigned char*>(p.kv_cache) + layer * layer_bytes, p.row_bytes, plan);
        });
    });
}
