// SPDX-License-Identifier: Apache-2.0
//
// The slow path's node indices: candidates in the order (cost, rank tuple), the first `budget` of them selected. Costs
// are spread over equal-width buckets and each candidate counts who precedes it in its own. The places within a bucket
// are taken in a racy order, the counts are not, so the result is the same every time.
#ifndef KDTREE_CUDA_TREE_BUILD_LEVEL_ORDER_CUH
#define KDTREE_CUDA_TREE_BUILD_LEVEL_ORDER_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/level_layout.cuh"
#include "cuda/tree_build/level_path.cuh"

namespace kdt::cuda::tree_build {

// Fills memory.index and slot_of; returns the nodes of the tree, root included.
template <int kThreads>
__device__ int order_levels(Block<kThreads>& block, const Sizes& sizes, const LevelMemory& memory, const Forest& forest,
                            uint32_t* bucket, uint16_t* slot_of) {
    constexpr int kBuckets = 2 * kThreads;
    const int thread = threadIdx.x;
    const int count = forest.count;
    for (int i = thread; i < kBuckets; i += kThreads) bucket[i] = 0;
    int64_t highest = 0;
    for (int s = 1 + thread; s < count; s += kThreads) highest = max(highest, forest.cost[s]);
    highest = block.max_wide(highest);

    // Nothing costs less than the first candidate. Any non-decreasing map of costs to buckets will do, so floats serve.
    const int64_t lowest = count > 1 ? forest.cost[1] : 0;
    const float scale = kBuckets / (static_cast<float>(highest - lowest) + 1.0f);
    const auto bucket_of = [&](int s) {
        const int b = static_cast<int>(static_cast<float>(forest.cost[s] - lowest) * scale);
        return max(0, min(kBuckets - 1, b));
    };

    for (int s = 1 + thread; s < count; s += kThreads)
        memory.arrival[s] = static_cast<uint16_t>(atomicAdd(&bucket[bucket_of(s)], 1u));
    __syncthreads();
    // Two neighbouring buckets a thread.
    const uint32_t left = bucket[2 * thread];
    const uint32_t right = bucket[2 * thread + 1];
    uint32_t total;
    const uint32_t before = block.exclusive_scan(left + right, total);
    bucket[2 * thread] = before;
    bucket[2 * thread + 1] = before + left;
    __syncthreads();

    for (int s = 1 + thread; s < count; s += kThreads)
        memory.item[bucket[bucket_of(s)] + memory.arrival[s]] = static_cast<uint16_t>(s);
    if (thread == 0) {
        memory.index[0] = 0;
        slot_of[0] = 0;
    }
    __syncthreads();

    for (int s = 1 + thread; s < count; s += kThreads) {
        const int b = bucket_of(s);
        const int begin = static_cast<int>(bucket[b]);
        const int end = b + 1 < kBuckets ? static_cast<int>(bucket[b + 1]) : count - 1;
        const int64_t cost = forest.cost[s];
        int place = begin;
        for (int i = begin; i < end; ++i) {
            const int other = memory.item[i];
            const int64_t other_cost = forest.cost[other];
            if (other_cost < cost)
                ++place;
            else if (other_cost == cost && other != s)
                place += tuple_precedes(forest, other, s) ? 1 : 0;
        }
        const bool selected = place < sizes.budget;
        memory.index[s] = selected ? static_cast<uint16_t>(place + 1) : kNone;
        if (selected) slot_of[place + 1] = static_cast<uint16_t>(s);
    }
    __syncthreads();
    return 1 + min(count - 1, sizes.budget);
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_LEVEL_ORDER_CUH
