// SPDX-License-Identifier: Apache-2.0
//
// Node indices: the nodes found in the order (cost, rank tuple), the first `budget` of them selected. Costs are spread
// over equal-width buckets and each node counts who precedes it in its own. The places within a bucket are taken in a
// racy order, the counts are not, so the result is the same every time. Equal costs go by path (grow.cuh).
#ifndef KDTREE_CUDA_TREE_BUILD_ORDER_CUH
#define KDTREE_CUDA_TREE_BUILD_ORDER_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/bins.cuh"
#include "cuda/tree_build/grow.cuh"
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

// As order_slots() for at most kFew slots: every slot counts who precedes it, several threads a slot.
constexpr int kFew = 128;

template <int kThreads>
__device__ int order_few(const Sizes& sizes, const Branches& branches, const Slots& slots, uint32_t* bucket,
                         uint16_t* slot_of) {
    constexpr int kParts = kThreads / kFew;
    static_assert(kBucketsPerThread * kThreads >= 3 * kFew, "paths and ranks fit the buckets");
    uint64_t* const paths = reinterpret_cast<uint64_t*>(bucket);
    uint32_t* const ranks = bucket + 2 * kFew;
    const int s = threadIdx.x % kFew;
    const int part = threadIdx.x / kFew;
    const int count = slots.count;
    if (threadIdx.x < count) paths[s] = branches.path[slots.branch[s]];
    __syncthreads();
    if (s < count) {
        const int64_t cost = slots.cost[s];
        uint32_t before = 0;
        uint32_t tied = 0;
#pragma unroll 8
        for (int other = part; other < count; other += kParts) {
            const int64_t other_cost = slots.cost[other];
            before += other_cost < cost ? 1 : 0;
            tied += other_cost == cost ? 1 : 0;
        }
        const uint32_t itself = s % kParts == part ? 1 : 0;
        if (tied > itself) {
            // Then by path, which differs between slots unless they share a run or their paths are cut off.
            const uint64_t path = paths[s];
            tied = 0;
#pragma unroll 4
            for (int other = part; other < count; other += kParts) {
                const bool ties = slots.cost[other] == cost;
                const uint64_t other_path = paths[other];
                before += ties && other_path < path ? 1 : 0;
                tied += ties && other_path == path ? 1 : 0;
            }
            if (tied > itself) {
                for (int other = part; other < count; other += kParts)
                    if (other != s && slots.cost[other] == cost && paths[other] == path)
                        before += slot_precedes(branches, slots, other, s) ? 1 : 0;
            }
        }
        atomicAdd(&ranks[s], before);
    }
    __syncthreads();
    // The root precedes all.
    if (threadIdx.x < count) {
        const uint32_t index = ranks[threadIdx.x];
        const bool selected = index <= static_cast<uint32_t>(sizes.budget);
        slots.index[threadIdx.x] = selected ? static_cast<uint16_t>(index) : kNone;
        if (selected) slot_of[index] = static_cast<uint16_t>(threadIdx.x);
    }
    __syncthreads();
    return min(count, sizes.nodes);
}

// Fills slots.index and slot_of, with `bucket` zero at first; returns the nodes of the tree, root included.
template <int kThreads>
__device__ int order_slots(Block<kThreads>& block, const Sizes& sizes, int64_t limit, const Branches& branches,
                           const Slots& slots, uint32_t* bucket, uint16_t* slot_of) {
    static_assert(kBucketsPerThread == 4, "the scan's uint4");
    if constexpr (kThreads < 1024) {
        if (slots.count <= kFew) return order_few<kThreads>(sizes, branches, slots, bucket, slot_of);
    }
    const int thread = threadIdx.x;
    const int root = branches.slot[0];
    int64_t* const sorted = branches.excess;  // which the search no longer needs: costs in the order of `item`
    const int shift = max(0, bit_length(limit) - bit_length(sizes.buckets - 1));
    int place[kSlotsPerThread];  // arrival in the bucket; -1 for the root and what costs too much
    const auto each = [&](auto visit) {
#pragma unroll
        for (int j = 0; j < kSlotsPerThread; ++j) {
            const int s = thread + j * kThreads;
            if (s < slots.count) visit(j, s);
        }
    };
    each([&](int j, int s) {
        const int64_t cost = slots.cost[s];
        place[j] = -1;
        if (s != root && cost <= limit) place[j] = static_cast<int>(atomicAdd(&bucket[cost >> shift], 1u));
    });
    __syncthreads();
    uint4 here = reinterpret_cast<const uint4*>(bucket)[thread];
    uint32_t total;
    const uint32_t before = block.exclusive_scan(here.x + here.y + here.z + here.w, total);
    here.z += here.y += here.x += before;
    reinterpret_cast<uint4*>(bucket)[thread] = {before, here.x, here.y, here.z};
    __syncthreads();

    // Buckets that begin beyond the budget hold nothing of the tree.
    const uint32_t budget = sizes.budget;
    each([&](int j, int s) {
        if (place[j] < 0) return;
        const int64_t cost = slots.cost[s];
        const uint32_t begin = bucket[cost >> shift];
        const int at = static_cast<int>(begin) + place[j];
        if (begin >= budget) return;
        slots.item[at] = static_cast<uint16_t>(s);
        if (at < branches.capacity) sorted[at] = cost;
    });
    __syncthreads();

    each([&](int j, int s) {
        uint16_t index = kNone;
        if (s == root) index = 0;
        if (place[j] >= 0) {
            const int64_t cost = slots.cost[s];
            const int b = static_cast<int>(cost >> shift);
            const uint32_t begin = bucket[b];
            const uint32_t end = b + 1 < sizes.buckets ? bucket[b + 1] : total;
            uint32_t rank = begin;
            if (begin < budget) {
                const auto cost_at = [&](uint32_t i) {
                    return i < static_cast<uint32_t>(branches.capacity) ? sorted[i] : slots.cost[slots.item[i]];
                };
                uint32_t tied = 0;
#pragma unroll 4
                for (uint32_t i = begin; i < end; ++i) {
                    const int64_t other_cost = cost_at(i);
                    rank += other_cost < cost ? 1 : 0;
                    tied += other_cost == cost ? 1 : 0;
                }
                if (tied > 1) {  // with others than itself
                    for (uint32_t i = begin; i < end; ++i) {
                        const int other = slots.item[i];
                        if (other != s && cost_at(i) == cost) rank += slot_precedes(branches, slots, other, s) ? 1 : 0;
                    }
                }
            }
            if (rank < budget) index = static_cast<uint16_t>(rank + 1);
        }
        slots.index[s] = index;
        if (index != kNone) slot_of[index] = static_cast<uint16_t>(s);
    });
    __syncthreads();
    return 1 + static_cast<int>(min(total, budget));
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_ORDER_CUH
