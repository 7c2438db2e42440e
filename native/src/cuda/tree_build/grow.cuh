// SPDX-License-Identifier: Apache-2.0
//
// The search for all nodes up to a cost that is at least that of the last node wanted: the cost is found first, and
// lowered when it lets in more nodes than there is room for.
#ifndef KDTREE_CUDA_TREE_BUILD_GROW_CUH
#define KDTREE_CUDA_TREE_BUILD_GROW_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/bound.cuh"
#include "cuda/tree_build/growth.cuh"
#include "cuda/tree_build/layout.cuh"

namespace kdt::cuda::tree_build {

// After a search found no room: a limit that `budget` of the nodes found keep to, from two digits of their costs.
template <int kThreads>
__device__ __noinline__ int32_t limit_of_found(Rows rows, Branches branches, Slots slots, GrowShared* shared,
                                               int32_t limit, uint32_t budget) {
    constexpr int kDigit = 5;
    const int lane = threadIdx.x % kWarpSize;
    int shift = max(0, 32 - __clz(limit) - kDigit);
    int32_t base = 0;
    uint32_t before = 0;
    int32_t top = limit;
    for (int digit = 0; digit < GrowShared::kDigits; ++digit) {
        for (int s = 1 + threadIdx.x; s < slots.count; s += kThreads) {
            const int u = slots.branch[s];
            const int depth = branches.depth(u) + s - branches.slot[u];
            const int32_t cost = static_cast<int32_t>(branches.excess[u] >> kCoarse) + rows.coarse_spine[depth];
            const int32_t bin = (cost - base) >> shift;
            if (bin >= 0 && bin < kWarpSize) atomicAdd(&shared->found[digit][bin], 1u);
        }
        __syncthreads();
        const uint32_t own = shared->found[digit][lane];
        const uint32_t through = before + warp_scan(own);
        const unsigned enough = __ballot_sync(kAllLanes, through >= budget);
        if (enough == 0) break;
        const int bin = __ffs(enough) - 1;
        before = __shfl_sync(kAllLanes, through - own, bin);
        base += bin << shift;
        top = base + (1 << shift) - 1;
        shift = max(0, shift - kDigit);
    }
    return min(top + kRounding, limit);
}

// A limit that `budget` nodes keep to, if there are as many.
template <int kThreads>
__device__ int32_t first_limit(const Rows& rows, uint32_t reciprocal, uint32_t budget, const Box& box,
                               GrowShared& shared) {
    const int lane = threadIdx.x % kWarpSize;
    int32_t limit;
    if constexpr (kThreads <= 256) {
        limit = cheapest_box(rows, box);
    } else {
        // In a large block, the warps would be in each other's way.
        if (threadIdx.x < kWarpSize) {
            limit = cheapest_box(rows, box);
            if (threadIdx.x == 0) shared.box = limit;
        }
        __syncthreads();
        limit = shared.box;
    }
#pragma unroll 1
    for (int round = 0; round < GrowShared::kCounts; ++round) {
        const int32_t own = limit_of_lane(limit, lane);
        const uint32_t count = count_single_branches<kThreads>(rows, reciprocal, own);
        if (count > 0) atomicAdd(&shared.single[round][lane], count);
        __syncthreads();
        const unsigned enough = __ballot_sync(kAllLanes, shared.single[round][lane] >= budget);
        if (enough == 0) break;
        const int least = __ffs(enough) - 1;
        limit = min(limit, limit_of_lane(limit, least) + kRounding);
        if (least > 0) break;
    }
    return limit;
}

// Finds at least `budget` nodes, those of the tree among them, or all there are. False when they are too many to keep.
// No fewer than `budget` nodes cost up to `limit`.
template <int kThreads>
__device__ bool grow(const Sizes& sizes, const Rows& rows, const Box& box, int32_t& limit, Branches& branches,
                     Slots& slots, GrowShared& shared) {
    constexpr int kAttempts = 4;
    const uint32_t budget = sizes.budget;
    const uint32_t reciprocal = shared.reciprocal[rows.depth];
    limit = first_limit<kThreads>(rows, reciprocal, budget, box, shared);
#pragma unroll 1
    for (int attempt = 1;; ++attempt) {
        Growth<kThreads> growth = {rows, reciprocal, limit, branches, slots, shared, 0};
        if (growth.run()) return true;
        const int32_t lower = limit_of_found<kThreads>(rows, branches, slots, &shared, limit, budget);
        if (lower >= limit || attempt == kAttempts) return false;
        limit = lower;
        __syncthreads();
        shared.clear_search();
        for (int s = threadIdx.x; s < slots.capacity; s += kThreads) slots.child[s] = kNone;
        __syncthreads();
    }
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_GROW_CUH
