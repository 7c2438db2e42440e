// SPDX-License-Identifier: Apache-2.0
//
// Thresholds for groups: of a first tile, alone or with the other blocks of a cluster, and of what came since.
#ifndef KDTREE_CUDA_DRAFT_TOPK_THRESHOLD_CUH
#define KDTREE_CUDA_DRAFT_TOPK_THRESHOLD_CUH

#include <cmath>
#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/draft_topk/cluster.cuh"
#include "cuda/draft_topk/group.cuh"
#include "cuda/draft_topk/layout.cuh"
#include "cuda/draft_topk/select.cuh"

namespace kdt::cuda::draft_topk {

// Whether every logit of another tile than the first, if just equal to the limit, comes after topk others that reach
// it.
template <class T>
__device__ __forceinline__ bool comes_after(const Plan& plan, int rank, uint32_t limit) {
    if (Keys<T>::kBits == 32) return rank == plan.blocks() - 1;
    return rank >= static_cast<int>(((limit & 0xffffu) ^ 0xffffu) >> kTilePlaceBits);
}

// Logits of another tile than the first must be above this. -inf never counts there: the row's first tile is full of
// logits that come before.
template <class T>
__device__ __forceinline__ float threshold_of(uint32_t limit_key, bool strict) {
    if (limit_key <= key_of<T>(-INFINITY)) return -INFINITY;
    const float limit = logit_of<T>(limit_key);
    if (strict) return limit;
    const uint32_t bits = __float_as_uint(limit);
    return __uint_as_float(limit == 0.0f ? 0x80000001u : limit > 0.0f ? bits - 1 : bits + 1);  // the number before it
}

// Puts the best order of some threads into shared.samples, of this block or of all blocks of its cluster. Blocks have
// kSamples samples together: with 16 of them, a sample is that of two warps.
template <Meet kMeet>
__device__ __forceinline__ void give_sample(Shared& shared, const Plan& plan, int rank, uint32_t order) {
    const int share_log2 = kMeet == Meet::cluster ? plan.blocks_log2 : 0;
    const int threads = kThreads / kSamples << share_log2;
    const int lanes = min(threads, kWarpSize);
    if (lanes == kWarpSize)
        order = __reduce_max_sync(kAllLanes, order);
    else
        for (int step = 1; step < lanes; step *= 2) order = max(order, __shfl_xor_sync(kAllLanes, order, step));
    const int tid = static_cast<int>(threadIdx.x);
    const int lane = tid & (lanes - 1);
    if (kMeet == Meet::cluster) {
        const int place = rank * (kSamples >> share_log2) + tid / threads;
        const int twin = (tid & (threads - 1)) / kWarpSize;
        if (lane < plan.blocks())
            send(&shared.samples[twin][place], sample_of(order, place), &shared.samples_here, lane);
    } else {
        if (lane == 0) shared.samples[0][tid / threads] = sample_of(order, tid / threads);
    }
}

// A key that at least topk logits of the block's tiles up to here reach; all logits to come are behind them.
template <class T>
__device__ __forceinline__ uint32_t limit_so_far(Shared& shared, const Segment<T>& segment, const Plan& plan,
                                                 float top) {
    constexpr int kThreadsOfSample = kThreads / kSamples;
    uint32_t best = Keys<T>::order(key_of<T>(top), 0);
    if (threadIdx.x == 0 && segment.ragged_end >= 0) best = 0;  // it may know the row's last group already
#pragma unroll
    for (int step = 1; step < kThreadsOfSample; step *= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, step));
    const int place = static_cast<int>(threadIdx.x) / kThreadsOfSample;
    if (threadIdx.x % kThreadsOfSample == 0) shared.merge_samples[place] = sample_of(best, place);
    __syncthreads();
    find_threshold(shared.merge_samples, nullptr, plan.topk, shared.merge_threshold);
    __syncthreads();
    return Keys<T>::key_of_order(shared.merge_threshold);
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_THRESHOLD_CUH
