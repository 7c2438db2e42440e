// SPDX-License-Identifier: Apache-2.0
//
// Rank tuples as numbers, for comparing candidates of equal cost, of which bf16 logits make many. A path is the tuple's
// ranks in a code that keeps their order, from the top bit on:
//     rank 0: 01      1, 2: 10x      3 .. 6: 110xx      7 .. 14: 1110xxx      ...
// and zeros behind the last, which precede any rank: a tuple comes before its extensions. The low 6 bits hold the
// length. A selected node of tuple (r1, r2, ...) has (r1 + 1) (r2 + 1) ... <= 1024, because as many nodes precede it;
// so 10 or 15 ranks nearly always fit into the 58 bits there are. What does not is cut off, and the parents decide.
#ifndef KDTREE_CUDA_TREE_BUILD_LEVEL_PATH_CUH
#define KDTREE_CUDA_TREE_BUILD_LEVEL_PATH_CUH

#include <cstdint>

#include "cuda/tree_build/level_layout.cuh"

namespace kdt::cuda::tree_build {

constexpr int kLevelPathBits = 58;

__device__ __forceinline__ uint64_t extended_level_path(uint64_t path, int rank) {
    const int length = static_cast<int>(path & 63);
    uint32_t code = 1;
    int width = 2;
    if (rank > 0) {
        const int extra = 31 - __clz(rank + 1);                                    // bits x
        code = ((2u << extra) - 2) << extra | ((rank + 1) & ((1u << extra) - 1));  // `extra` ones, a zero, the bits x
        width = 2 * extra + 1;
    }
    const int surplus = length + width - kLevelPathBits;
    if (surplus > 0) {
        code >>= surplus;
        width -= surplus;
    }
    const uint64_t bits = width == 0 ? 0 : static_cast<uint64_t>(code) << (64 - length - width);
    return ((path >> 6) << 6 | bits) | (length + width);
}

// Whether the tuple of slot `a` precedes that of `b`.
__device__ __forceinline__ bool tuple_precedes(const Forest& forest, int a, int b) {
    const uint64_t path_a = forest.path[a];
    const uint64_t path_b = forest.path[b];
    if (path_a != path_b) return path_a < path_b;
    // Both are cut off. The deeper one is lifted to the other's depth, where slots are in lexicographic order.
    const int depth_a = forest.depth[a];
    const int depth_b = forest.depth[b];
    for (int d = depth_a; d > depth_b; --d) a = forest.parent[a];
    for (int d = depth_b; d > depth_a; --d) b = forest.parent[b];
    return a == b ? depth_a < depth_b : a < b;
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_LEVEL_PATH_CUH
