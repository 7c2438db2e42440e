// SPDX-License-Identifier: Apache-2.0
//
// The exact way out when too many candidates lie at the threshold (uniform rows, log-probs rounded coarsely): keep the
// best `budget` of each level, in global memory, then the best `budget` of all. Tens to hundreds of microseconds.
#ifndef KDTREE_CUDA_TREE_BUILD_SLOW_PATH_CUH
#define KDTREE_CUDA_TREE_BUILD_SLOW_PATH_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/layout.cuh"
#include "cuda/tree_build/level_expand.cuh"

namespace kdt::cuda::tree_build {

// Slots other than the root that `test` accepts.
template <int kThreads, class Test>
__device__ uint32_t count_slots(Block<kThreads>& block, int count, Test test) {
    uint32_t found = 0;
#pragma unroll 1  // registers
    for (int s = 1 + threadIdx.x; s < count; s += kThreads) found += test(s) ? 1 : 0;
    return block.sum(found);
}

// The smallest value of [low, high] that at least `wanted` slots do not exceed, where `high` is one.
template <int kThreads, class T, class V>
__device__ T smallest_cut(Block<kThreads>& block, int count, uint32_t wanted, T low, T high, V value) {
    while (low < high) {
        const T middle = low + (high - low) / 2;
        if (count_slots(block, count, [&](int s) { return value(s) <= middle; }) >= wanted)
            high = middle;
        else
            low = middle + 1;
    }
    return high;
}

// Copies the slots that `keep` accepts, in order, from `large` to `small`.
template <int kThreads, class Keep>
__device__ void compact(Block<kThreads>& block, const Forest& large, uint16_t* kept_before, Forest& small, Keep keep) {
    const int thread = threadIdx.x;
    uint32_t kept = 0;
    for (int base = 0; base < large.count; base += kThreads) {
        const int s = base + thread;
        const bool kept_here = s < large.count && keep(s);
        uint32_t chunk;
        const uint32_t before = kept + block.exclusive_scan(kept_here ? 1 : 0, chunk);
        if (s < large.count) kept_before[s] = static_cast<uint16_t>(before);
        kept += chunk;
    }
    if (thread == 0) kept_before[large.count] = static_cast<uint16_t>(kept);
    __syncthreads();

    for (int s = thread; s < large.count; s += kThreads) {
        const int to = kept_before[s];
        if (kept_before[s + 1] == to) continue;
        small.cost[to] = large.cost[s];
        small.path[to] = large.path[s];
        small.parent[to] = s == 0 ? kNone : kept_before[large.parent[s]];
        small.rank[to] = large.rank[s];
        small.depth[to] = large.depth[s];
        small.begin[to] = kept_before[large.begin[s]];
    }
    if (thread == 0) small.begin[kept] = static_cast<uint16_t>(kept);
    // The two forests share the starts of the levels: depths grow thinner, and those that end up empty are the last.
    int start = 0;
    if (thread <= large.levels) start = kept_before[large.level[thread]];
    __syncthreads();
    if (thread <= large.levels) small.level[thread] = start;
    __syncthreads();
    small.count = static_cast<int>(kept);
    small.levels = large.levels;
    while (small.level[small.levels - 1] == small.count) --small.levels;
}

// Grows the best `budget` candidates into `small` (shared memory) by way of `large` (workspace).
template <int kThreads>
__device__ void select_slowly(Block<kThreads>& block, const Sizes& sizes, const Rows& rows, int64_t threshold,
                              Forest& large, const PreorderScratch& scratch, uint16_t* kept_before, Forest& small) {
    expand(block, sizes, rows, threshold, large);
    const uint32_t budget = sizes.budget;
    if (large.count - 1 <= sizes.budget) {
        compact(block, large, kept_before, small, [](int) { return true; });
        return;
    }
    const int64_t* const cost = large.cost;
    const int64_t cut =
        smallest_cut<kThreads>(block, large.count, budget, int64_t{0}, kMaxCost, [&](int s) { return cost[s]; });
    const uint32_t below = count_slots(block, large.count, [&](int s) { return cost[s] < cut; });
    // Of those that cost exactly the cut, the lexicographically first fill the rest of the budget.
    preorder(block, large, scratch, [](int) { return true; });
    const uint16_t* const order = scratch.order;
    const int tie_cut = smallest_cut<kThreads>(block, large.count, budget - below, 0, large.count, [&](int s) {
        return cost[s] == cut ? static_cast<int>(order[s]) : large.count + 1;
    });
    compact(block, large, kept_before, small,
            [&](int s) { return s == 0 || cost[s] < cut || (cost[s] == cut && order[s] <= tie_cut); });
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_SLOW_PATH_CUH
