// SPDX-License-Identifier: Apache-2.0
//
// A cost that at least tree_budget nodes do not exceed, and few others. Any tree_budget different nodes give one, the
// most expensive of them: boxes of ranks have it in a corner, known without a search. Below that, the nodes of at most
// one rank above 0 are counted.
#ifndef KDTREE_CUDA_TREE_BUILD_BOUND_CUH
#define KDTREE_CUDA_TREE_BUILD_BOUND_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/layout.cuh"

namespace kdt::cuda::tree_build {

// Lanes up to kThinBoxes hold, for depth lane + 1, how many ranks a row must offer so that paths with at most one rank
// above 0 are `budget` nodes; the others, for depths from 1 on, how many so that paths of any of these ranks are.
constexpr int kThinBoxes = 22;

struct Box {
    int depth;
    int ranks;
};

__device__ inline Box box_of_lane(int budget) {
    const int lane = threadIdx.x % kWarpSize;
    if (lane < kThinBoxes) {
        const int depth = lane + 1;
        const int a_rank = depth * (depth + 1) / 2;
        return {depth, budget <= depth ? 1 : 1 + (budget - depth + a_rank - 1) / a_rank};
    }
    const int depth = lane - kThinBoxes + 1;
    // From below the answer, give or take the rounding of a root.
    int ranks = max(1, static_cast<int>(exp2f(log2f(static_cast<float>(max(1, budget))) / depth)) - 1);
    for (;; ++ranks) {
        int nodes = 0;
        int level = 1;
        for (int d = 0; d < depth && nodes < budget; ++d) {
            level *= ranks;
            nodes += level;
        }
        if (nodes >= budget) return {depth, ranks};
    }
}

// The cheapest box, by a warp; kMuch - 1, which is beyond any node, when the rows hold none.
__device__ inline int32_t cheapest_box(const Rows& rows, const Box& box) {
    constexpr int kTogether = 8;
    const bool thin = static_cast<int>(threadIdx.x) % kWarpSize < kThinBoxes;
    const int depth = min(box.depth, rows.depth);
    const int32_t* const column = rows.coarse + min(box.ranks, rows.columns) - 1;
    int32_t widest = 0;
    int32_t sum = 0;
#pragma unroll 1
    for (int row = 0; row < rows.depth; row += kTogether) {
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            const int32_t entry = row + j < depth ? column[(row + j) * rows.stride] : 0;
            widest = max(widest, entry);
            sum += entry;
        }
    }
    uint32_t cost = kMuch;
    if (box.ranks <= rows.columns) cost = rows.coarse_spine[box.depth] + (thin ? widest : sum) + kRounding;
    return static_cast<int32_t>(min(__reduce_min_sync(kAllLanes, cost), static_cast<uint32_t>(kMuch - 1)));
}

// Each lane has a limit of its own, from about half of `limit` up to it.
__device__ __forceinline__ int32_t limit_of_lane(int32_t limit, int lane) {
    return limit - (kWarpSize - 1 - lane) * (limit >> 6);
}

// This warp's share of the nodes of at most one branching up to the lane's limit, without the root. The pairs of a
// branching's depth and a node's are dealt to the warps, and a row is searched for the ranks that fit.
template <int kThreads>
__device__ uint32_t count_single_branches(const Rows& rows, uint32_t reciprocal, int32_t limit) {
    constexpr int kTogether = kThreads == 1024 ? 2 : 4;  // registers
    constexpr int kWarps = kThreads / kWarpSize;
    const int warp = threadIdx.x / kWarpSize;
    const int depth = rows.depth;
    // `gap` depths below the branching leave room for depth - gap of those, and so the gap depth - gap for the rest of
    // a turn through the depths.
    const int pairs = depth * (depth / 2 + 1);
    uint32_t count = 0;
#pragma unroll 1
    for (int first = warp; first < pairs; first += kTogether * kWarps) {
        int begin[kTogether];
        int at[kTogether];
        int32_t left[kTogether];
        bool counts[kTogether];
        bool below[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            const int pair = first + j * kWarps;
            int gap = depth == 1 ? pair : static_cast<int>(__umulhi(static_cast<uint32_t>(pair), reciprocal));
            int row = pair - gap * depth;
            counts[j] = pair < pairs && (row + gap < depth || 2 * gap != depth);
            if (row + gap >= depth) {
                gap = depth - gap;
                row -= gap;
            }
            if (!counts[j]) row = gap = 0;
            at[j] = begin[j] = row * rows.stride;
            left[j] = limit - rows.coarse_spine[row + gap + 1];
            below[j] = gap > 0;
        }
#pragma unroll 1
        for (int n = rows.columns; n > 1;) {
            const int half = n / 2;
#pragma unroll
            for (int j = 0; j < kTogether; ++j) at[j] += rows.coarse[at[j] + half - 1] <= left[j] ? half : 0;
            n -= half;
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            const int ranks = at[j] - begin[j] + (rows.coarse[at[j]] <= left[j] ? 1 : 0);
            // Where rank 0 is no branching, its node belongs to another gap.
            if (counts[j]) count += ranks - (below[j] && ranks > 0 ? 1 : 0);
        }
    }
    return count;
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_BOUND_CUH
