// SPDX-License-Identifier: Apache-2.0
//
// Who arrives last, over counts that the queue keeps at zero between kernels: one atomic operation an arrival, where
// cuda/ticket.cuh, whose counts may begin as anything, tries until it has its turn.
#ifndef KDTREE_ENGINE_CUDA_ARRIVAL_CUH
#define KDTREE_ENGINE_CUDA_ARRIVAL_CUH

#include <cstdint>

namespace kdt::engine {

// To be called by one thread of each of `blocks` blocks, after a barrier behind the block's stores. True for the last:
// what the other blocks stored is visible to that thread and, after another barrier, to its block. The count is zero
// again then.
__device__ __forceinline__ bool arrives_last(uint32_t* count, int blocks) {
    __threadfence();
    const bool last = atomicInc(count, static_cast<uint32_t>(blocks) - 1) == static_cast<uint32_t>(blocks) - 1;
    __threadfence();
    return last;
}

}  // namespace kdt::engine

#endif  // KDTREE_ENGINE_CUDA_ARRIVAL_CUH
