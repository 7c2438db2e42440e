// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_ENGINE_CUDA_QUEUE_H
#define KDTREE_ENGINE_CUDA_QUEUE_H

#include <cuda_runtime_api.h>

#include <memory>

#include "cuda/cuda_check.h"
#include "engine/cuda/cublas_api.h"
#include "engine/ops.h"

namespace kdt::engine {

struct Queue::Impl {
    static constexpr int kMaxPartials = 4096;  // of a draw: rows times blocks a row
    static constexpr int kMaxArrivals = 4096;  // pieces of work that several blocks of a kernel share

    cudaStream_t stream = nullptr;
    cuda::Device device = {};
    Memory blas_workspace;
    Memory partials;               // uint64_t [kMaxPartials]
    Memory arrivals;               // uint32_t [kMaxArrivals], zero between kernels
    std::unique_ptr<Cublas> blas;  // nullptr: not found, and every product is ours

    explicit Impl(const char* blas_library);
    ~Impl();
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;
};

}  // namespace kdt::engine

#endif  // KDTREE_ENGINE_CUDA_QUEUE_H
