// SPDX-License-Identifier: Apache-2.0
//
// Operators that are several in one, as several: what a backend does where fusing does not pay.
#ifndef KDT_ENGINE_UNFUSED_H
#define KDT_ENGINE_UNFUSED_H

#include "engine/ops.h"

namespace kdt::engine {

inline void mla_inputs_unfused(Queue& queue, Dtype dtype, const MlaInputs& a) {
    constexpr int32_t kHead = KDT_QK_NOPE_HEAD_DIM + KDT_QK_ROPE_HEAD_DIM;
    const int32_t rows = a.batch * a.max_nodes;
    const int32_t width = a.q_lora_rank > 0 ? a.q_lora_rank : a.num_heads * kHead;
    const int32_t stride = width + KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM;
    const void* const kv = static_cast<const char*>(a.first) + static_cast<size_t>(width) * size_of(dtype);
    mla_store(queue, dtype, kv, stride, a.kv_norm, a.eps, a.positions, a.rope, a.seq_lens, a.num_nodes, a.pages,
              a.layer_cache, a.batch, a.max_nodes);
    const void* q = a.first;
    int32_t q_stride = stride;
    if (a.q_lora_rank > 0) {
        q_stride = a.num_heads * kHead;
        rmsnorm(queue, dtype, a.first, stride, a.q_norm, a.eps, a.q_normed, rows, a.q_lora_rank);
        gemm(queue, dtype, a.q_normed, a.q_lora_rank, a.q_b, a.q, dtype, rows, a.q_lora_rank, q_stride);
        q = a.q;
    }
    mla_queries(queue, dtype, q, q_stride, a.positions, a.rope, a.num_heads, a.q_nope, a.q_pe, rows);
}

}  // namespace kdt::engine

#endif  // KDT_ENGINE_UNFUSED_H
