// SPDX-License-Identifier: Apache-2.0
//
// What stands before kdt_verify_mla: rotated queries, and latents on their way to the cache.
#include <algorithm>
#include <cmath>

#include "cpu/simd.h"
#include "engine/cpu/rows.h"
#include "engine/ops.h"

namespace kdt::engine {
namespace {

constexpr int32_t kNope = KDT_QK_NOPE_HEAD_DIM;
constexpr int32_t kRope = KDT_QK_ROPE_HEAD_DIM;
constexpr int32_t kRank = KDT_KV_LORA_RANK;

}  // namespace

kdt_mla_mode mla_mode() {
    return KDT_MLA_ABSORB;
}

void mla_queries(Queue&, Dtype dtype, const void* q, int64_t q_stride, const int32_t* positions, Rope rope,
                 int32_t num_heads, void* q_nope, void* q_pe, int32_t rows) {
    constexpr int32_t kWidth = kNope + kRope;
    for_rows(rows, kWidth, 1.0 * num_heads * kWidth, [&](int64_t r, float* head) {
        for (int32_t h = 0; h < num_heads; ++h) {
            read_values(dtype, q, r * q_stride + int64_t{h} * kWidth, kWidth, head);
            rotate(head + kNope, kRope, row_of(rope, positions[r]), true);
            write_values(KDT_BF16, head, q_nope, (r * num_heads + h) * kNope, kNope);
            write_values(KDT_BF16, head + kNope, q_pe, (r * num_heads + h) * kRope, kRope);
        }
    });
}

void mla_store(Queue&, Dtype dtype, const void* kv, int64_t kv_stride, const void* weight, float eps,
               const int32_t* positions, Rope rope, const int32_t* seq_lens, const int32_t* num_nodes, Pages pages,
               void* layer_cache, int32_t batch, int32_t max_nodes) {
    float norm[kRank];
    read_values(dtype, weight, 0, kRank, norm);
    for_rows(int64_t{batch} * max_nodes, kRank + kRope, 1000.0, [&](int64_t r, float* row) {
        const int64_t b = r / max_nodes, i = r % max_nodes;
        if (i >= num_nodes[b]) return;
        const int64_t slot = int64_t{seq_lens[b]} + i;
        if (slot < 0 || slot >= int64_t{pages.max_pages_per_seq} * pages.page_size) return;
        const int64_t page = pages.block_table[b * pages.max_pages_per_seq + slot / pages.page_size];
        if (page < 0 || page >= pages.num_pages) return;
        read_values(dtype, kv, r * kv_stride, kRank + kRope, row);
        const float factor = 1.0f / std::sqrt(sum_of_squares(row, kRank) / kRank + eps);
        for (int32_t k = 0; k < kRank; ++k) row[k] = row[k] * factor * norm[k];
        rotate(row + kRank, kRope, row_of(rope, positions[r]), true);
        const int64_t token = page * pages.page_size + slot % pages.page_size;
        write_values(KDT_BF16, row, layer_cache, token * (kRank + kRope), kRank + kRope);
    });
}

void hide_idle(Queue&, const int32_t* active, int32_t* num_nodes, int32_t batch) {
    for (int32_t b = 0; b < batch; ++b)
        if (active[b] == 0) num_nodes[b] = 0;
}

}  // namespace kdt::engine
