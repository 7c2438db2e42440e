// SPDX-License-Identifier: Apache-2.0
#ifndef KDT_ENGINE_MLP_H
#define KDT_ENGINE_MLP_H

#include "engine/ops.h"
#include "engine/weights.h"

namespace kdt::engine {

// down(silu(gate(x)) * up(x)). gate_up and product are scratch: [rows, 2 intermediate] and [rows, intermediate].
inline void run_mlp(Queue& queue, Dtype dtype, const MlpWeights& w, const void* x, int32_t rows, int32_t hidden,
                    void* gate_up, void* product, void* out) {
    gemm(queue, dtype, x, hidden, w.gate_up.data(), gate_up, dtype, rows, hidden, 2 * w.intermediate);
    silu_mul(queue, dtype, gate_up, product, rows, w.intermediate);
    gemm(queue, dtype, product, w.intermediate, w.down.data(), out, dtype, rows, w.intermediate, hidden);
}

// The same of a norm's rows.
inline void run_normed_mlp(Queue& queue, Dtype dtype, const MlpWeights& w, const NormInput& input, int32_t rows,
                           int32_t hidden, void* gate_up, void* product, void* out) {
    norm_gate(queue, dtype, input, w.gate_up.data(), gate_up, product, rows, hidden, w.intermediate);
    gemm(queue, dtype, product, w.intermediate, w.down.data(), out, dtype, rows, w.intermediate, hidden);
}

}  // namespace kdt::engine

#endif  // KDT_ENGINE_MLP_H
