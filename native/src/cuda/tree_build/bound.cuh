// SPDX-License-Identifier: Apache-2.0
//
// A first cost that at least tree_budget nodes do not exceed. Any tree_budget different nodes give one, the most
// expensive of them; the boxes of ranks here have it in a corner, known without a search.
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

// The cheapest box, by a warp; kMaxCost - 1 when the rows hold none.
template <int kThreads>
__device__ int64_t cheapest_box(const Rows& rows, const Box& box) {
    constexpr int kCoarse = 20;                          // bits dropped, rounding up, so that 32 bits do
    constexpr int kTogether = kThreads == 1024 ? 4 : 8;  // registers
    const bool thin = static_cast<int>(threadIdx.x) % kWarpSize < kThinBoxes;
    const int column = min(box.ranks, rows.stride) - 1;
    bool fits = box.depth <= rows.depth;
    uint32_t excess = 0;
    for (int row = 0; row < rows.depth; row += kTogether) {
        int64_t entry[kTogether];
        int usable[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            const int r = min(row + j, rows.depth - 1);
            entry[j] = rows.excess[r * rows.stride + column];
            usable[j] = rows.usable[r];
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
            const bool inside = row + j < box.depth;
            fits = fits && (!inside || box.ranks <= usable[j]);
            const uint32_t coarse = inside ? static_cast<uint32_t>(entry[j] >> kCoarse) + 1 : 0;
            excess = thin ? max(excess, coarse) : excess + coarse;
        }
    }
    uint32_t cost = 0xffffffffu;
    if (fits) cost = static_cast<uint32_t>(rows.spine[box.depth] >> kCoarse) + 1 + excess;
    cost = __reduce_min_sync(kAllLanes, cost);
    return min(static_cast<int64_t>(cost) << kCoarse, kMaxCost) - 1;
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_BOUND_CUH
