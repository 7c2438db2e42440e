// SPDX-License-Identifier: Apache-2.0
//
// Operators that are several in one: on the CPU there is no launch to save, and they are those several.
#include <cstring>

#include "engine/unfused.h"

namespace kdt::engine {
namespace {

void norm_of(Queue& queue, Dtype dtype, const NormInput& input, int32_t rows, int32_t in) {
    if (input.delta == nullptr) {
        // Nothing is added, so that the residual stays as it is.
        add_rmsnorm(queue, dtype, const_cast<void*>(input.residual), nullptr, input.feature, input.feature_stride,
                    input.norm, input.eps, input.hidden, rows, in);
        return;
    }
    std::memcpy(input.residual_out, input.residual,
                static_cast<size_t>(rows) * static_cast<size_t>(in) * size_of(dtype));
    add_rmsnorm(queue, dtype, input.residual_out, input.delta, input.feature, input.feature_stride, input.norm,
                input.eps, input.hidden, rows, in);
}

}  // namespace

void norm_gemm(Queue& queue, Dtype dtype, const NormInput& input, const void* w, void* y, int32_t rows, int32_t in,
               int32_t out) {
    norm_of(queue, dtype, input, rows, in);
    gemm(queue, dtype, input.hidden, in, w, y, dtype, rows, in, out);
}

void norm_gate(Queue& queue, Dtype dtype, const NormInput& input, const void* gate_up, void* both, void* product,
               int32_t rows, int32_t in, int32_t intermediate) {
    norm_of(queue, dtype, input, rows, in);
    gemm(queue, dtype, input.hidden, in, gate_up, both, dtype, rows, in, 2 * intermediate);
    silu_mul(queue, dtype, both, product, rows, intermediate);
}

void mla_inputs(Queue& queue, Dtype dtype, const MlaInputs& inputs) {
    mla_inputs_unfused(queue, dtype, inputs);
}

}  // namespace kdt::engine
