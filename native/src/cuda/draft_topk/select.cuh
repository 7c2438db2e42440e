// SPDX-License-Identifier: Apache-2.0
//
// What both kernels of draft_topk do with the values their threads hold.
#ifndef KDTREE_CUDA_DRAFT_TOPK_SELECT_CUH
#define KDTREE_CUDA_DRAFT_TOPK_SELECT_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/draft_topk/layout.cuh"

namespace kdt::cuda::draft_topk {

using TopkBlock = Block<kThreads>;

// The largest key, of those whose bits below the `bits` highest are zero, that at least `wanted` of the block's values
// reach; 0 when fewer values than that are above zero. Found bit by bit, from the top.
template <int kCount>
__device__ uint32_t reached_by(TopkBlock& block, const uint32_t (&values)[kCount], uint32_t wanted, int bits) {
    uint32_t key = 0;
#pragma unroll 1
    for (int bit = 31; bit >= 32 - bits; --bit) {
        const uint32_t trial = key | 1u << bit;
        uint32_t reached = 0;
#pragma unroll
        for (int i = 0; i < kCount; ++i) reached += values[i] >= trial ? 1 : 0;
        if (block.sum(reached) >= wanted) key = trial;
    }
    return key;
}

// A block's sum of floats in a fixed order: the same bits every time. `scratch` holds a value a warp and is free again
// after the caller's next barrier.
__device__ inline float fixed_order_sum(float value, float* scratch) {
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
    if (threadIdx.x % kWarpSize == 0) scratch[threadIdx.x / kWarpSize] = value;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kThreads / kWarpSize; ++w) sum += scratch[w];
    return sum;
}

// Sorts items[0 .. size) descending; size is a power of two (bitonic network).
__device__ inline void sort_descending(uint64_t* items, int size) {
    for (int run = 2; run <= size; run *= 2) {
        for (int gap = run / 2; gap > 0; gap /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < size / 2; i += kThreads) {
                const int a = 2 * i - (i & (gap - 1));
                const int b = a + gap;
                const bool descending = (a & run) == 0;
                const uint64_t x = items[a];
                const uint64_t y = items[b];
                if ((x < y) == descending) {
                    items[a] = y;
                    items[b] = x;
                }
            }
        }
    }
    __syncthreads();
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_SELECT_CUH
