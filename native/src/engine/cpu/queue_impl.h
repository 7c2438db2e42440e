// SPDX-License-Identifier: Apache-2.0
#ifndef KDT_ENGINE_CPU_QUEUE_IMPL_H
#define KDT_ENGINE_CPU_QUEUE_IMPL_H

#include <vector>

#include "engine/cpu/blas.h"
#include "engine/ops.h"

namespace kdt::engine {

struct Queue::Impl {
    explicit Impl(const char* blas_library) : blas(blas_library) {}

    Blas blas;
    // Scratch of gemm, grown as needed: the input in f32, and for each thread a block of weights and of results.
    std::vector<float> input;
    std::vector<float> blocks;
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_CPU_QUEUE_IMPL_H
