// SPDX-License-Identifier: Apache-2.0
//
// Node indices: the nodes found in the order (cost, rank tuple), the first `budget` of them selected. Costs are spread
// over equal-width buckets and each node counts who precedes it in its own. The places within a bucket are taken in a
// racy order, the counts are not, so the result is the same every time. Equal costs go by path (growth.cuh).
#ifndef KDTREE_CUDA_TREE_BUILD_ORDER_CUH
#define KDTREE_CUDA_TREE_BUILD_ORDER_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/growth.cuh"
#include "cuda/tree_build/layout.cuh"

namespace kdt::cuda::tree_build {

// Whether branch `a` has the lower rank tuple, where the paths of both are equal and cut off: climbs to where they
// part.
__device__ inline bool branch_precedes(const Branches& branches, int a, int b) {
    const int generation_a = branches.generation(a);
    const int generation_b = branches.generation(b);
    for (int g = generation_a; g > generation_b; --g) a = branches.parent[a];
    for (int g = generation_b; g > generation_a; --g) b = branches.parent[b];
    if (a == b) return generation_a < generation_b;  // on the run of the other's ancestor
    while (branches.parent[a] != branches.parent[b]) {
        a = branches.parent[a];
        b = branches.parent[b];
    }
    return branching_code(branches.depth(a), branches.rank(a)) < branching_code(branches.depth(b), branches.rank(b));
}

// Whether the tuple of slot `a` precedes that of slot `b`.
__device__ __forceinline__ bool slot_precedes(const Branches& branches, const Slots& slots, int a, int b) {
    const int branch_a = slots.branch[a];
    const int branch_b = slots.branch[b];
    if (branch_a == branch_b) return a < b;
    const uint64_t path_a = branches.path[branch_a];
    const uint64_t path_b = branches.path[branch_b];
    if (path_a != path_b) return path_a < path_b;
    return branch_precedes(branches, branch_a, branch_b);
}

__device__ __forceinline__ int bit_length(int64_t value) {
    return 64 - __clzll(value);
}

// Fills slots.cost, slots.index and slot_of, with `bucket` zero at first; returns the nodes of the tree, root included.
// No slot costs more than `limit`.
template <int kThreads>
__device__ int order_slots(Block<kThreads>& block, const Sizes& sizes, const Rows& rows, int64_t limit,
                           const Branches& branches, const Slots& slots, uint32_t* bucket, uint16_t* slot_of) {
    static_assert(kBucketsPerThread == 4, "the scan's uint4");
    const int thread = threadIdx.x;
    constexpr int root = 0;
    if (thread == 0) slot_of[0] = root;
    int64_t* const sorted = branches.excess;  // which the search no longer needs: costs in the order of `item`
    const int shift = max(0, bit_length(limit) - bit_length(sizes.buckets - 1));
    int place[kSlotsPerThread];  // arrival in the bucket; -1 for the root
    const auto each = [&](auto visit) {
#pragma unroll
        for (int j = 0; j < kSlotsPerThread; ++j) {
            const int s = thread + j * kThreads;
            if (s < slots.count) visit(j, s);
        }
    };
    each([&](int j, int s) {
        const int u = slots.branch[s];
        const int64_t cost = branches.excess[u] + rows.spine[branches.depth(u) + s - branches.slot[u]];
        slots.cost[s] = cost;
        slots.index[s] = s == root ? 0 : kNone;
        place[j] = -1;
        if (s != root) place[j] = static_cast<int>(atomicAdd(&bucket[cost >> shift], 1u));
    });
    __syncthreads();
    uint4 here = reinterpret_cast<const uint4*>(bucket)[thread];
    uint32_t total;
    const uint32_t before = block.exclusive_scan(here.x + here.y + here.z + here.w, total);
    here.z += here.y += here.x += before;
    reinterpret_cast<uint4*>(bucket)[thread] = {before, here.x, here.y, here.z};
    __syncthreads();

    each([&](int j, int s) {
        if (place[j] < 0) return;
        const int64_t cost = slots.cost[s];
        const int at = static_cast<int>(bucket[cost >> shift]) + place[j];
        slots.item[at] = static_cast<uint16_t>(s);
        if (at < branches.capacity) sorted[at] = cost;
    });
    __syncthreads();

    const auto cost_at = [&](uint32_t i) {
        return i < static_cast<uint32_t>(branches.capacity) ? sorted[i] : slots.cost[slots.item[i]];
    };
    // Buckets that begin beyond the budget hold nothing of the tree.
    const uint32_t budget = sizes.budget;
    for (uint32_t i = thread; i < total; i += kThreads) {
        const int s = slots.item[i];
        const int64_t cost = cost_at(i);
        const int b = static_cast<int>(cost >> shift);
        const uint32_t begin = bucket[b];
        if (begin >= budget) break;
        const uint32_t end = b + 1 < sizes.buckets ? bucket[b + 1] : total;
        uint32_t rank = begin;
        uint32_t tied = 0;
#pragma unroll 4
        for (uint32_t k = begin; k < end; ++k) {
            const int64_t other_cost = cost_at(k);
            rank += other_cost < cost ? 1 : 0;
            tied += other_cost == cost ? 1 : 0;
        }
        if (tied > 1) {  // with others than itself
            for (uint32_t k = begin; k < end; ++k)
                if (k != i && cost_at(k) == cost) rank += slot_precedes(branches, slots, slots.item[k], s) ? 1 : 0;
        }
        if (rank >= budget) continue;
        slots.index[s] = static_cast<uint16_t>(rank + 1);
        slot_of[rank + 1] = static_cast<uint16_t>(s);
    }
    __syncthreads();
    return 1 + static_cast<int>(min(total, budget));
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_ORDER_CUH
