// SPDX-License-Identifier: Apache-2.0
//
// The slow path's expansion, level by level. A node of cost c has as children the prefix of the next row with costs up
// to threshold - c. Parents in lexicographic order times ranks in ascending order keep each level lexicographic.
#ifndef KDTREE_CUDA_TREE_BUILD_LEVEL_EXPAND_CUH
#define KDTREE_CUDA_TREE_BUILD_LEVEL_EXPAND_CUH

#include <climits>
#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/layout.cuh"
#include "cuda/tree_build/level_path.cuh"
#include "cuda/tree_build/rows.cuh"

namespace kdt::cuda::tree_build {

// What a level may keep: everything below `threshold`, and of what equals it the first `ties`.
struct LevelCut {
    int64_t threshold;
    int ties;
};

// Children of the level [first, last) that exceed their parent by the row's excess, if that makes at most `limit`.
template <int kThreads>
__device__ uint32_t count_children(Block<kThreads>& block, const Forest& forest, const int64_t* row, int entries,
                                   int first, int last, int64_t limit) {
    uint32_t children = 0;
    for (int s = first + threadIdx.x; s < last; s += kThreads)
        children += count_up_to(row, 0, entries, limit - forest.cost[s]);
    return block.sum(children);
}

// The cut that leaves the best `budget` of a level's children by (cost, lexicographic position). Nothing is lost by it:
// a selected node has fewer than `budget` nodes before it, so fewer on its own level, and its parent is selected too.
template <int kThreads>
__device__ LevelCut cut_level(Block<kThreads>& block, const Sizes& sizes, const Forest& forest, const int64_t* row,
                              int entries, int first, int last, int64_t threshold) {
    const uint32_t budget = sizes.budget;
    if (count_children(block, forest, row, entries, first, last, threshold) <= budget) return {threshold, INT_MAX};
    int64_t low = 0;
    int64_t high = threshold;  // always enough
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (count_children(block, forest, row, entries, first, last, middle) >= budget)
            high = middle;
        else
            low = middle + 1;
    }
    const uint32_t below = count_children(block, forest, row, entries, first, last, high - 1);
    return {high, static_cast<int>(budget - below)};
}

// Grows `forest` from its root to the candidates of cost <= threshold, the best `budget` of each level.
template <int kThreads>
__device__ void expand(Block<kThreads>& block, const Sizes& sizes, const Rows& rows, int64_t threshold,
                       Forest& forest) {
    const int thread = threadIdx.x;
    if (thread == 0) {
        forest.cost[0] = 0;
        forest.path[0] = 0;
        forest.parent[0] = kNone;
        forest.rank[0] = 0;
        forest.depth[0] = 0;
        forest.level[0] = 0;
        forest.level[1] = 1;
    }
    __syncthreads();

    int first = 0;
    int last = 1;
    int depth = 1;
    for (; depth <= rows.depth; ++depth) {
        const int64_t* const row = rows.row(depth);
        const int entries = rows.count(depth);
        const int64_t best = rows.best(depth);
        // The cut, too, without the best of the row.
        const LevelCut cut = cut_level(block, sizes, forest, row, entries, first, last, threshold - best);

        int next = last;
        uint32_t ties_before = 0;
        for (int base = first; base < last; base += kThreads) {
            const int s = base + thread;
            int children = s < last ? count_up_to(row, 0, entries, cut.threshold - forest.cost[s]) : 0;
            const int cheaper = s < last ? count_up_to(row, 0, entries, cut.threshold - 1 - forest.cost[s]) : 0;
            const int ties = max(children - cheaper, 0);
            uint32_t chunk_ties;
            const int64_t before = ties_before + block.exclusive_scan(ties, chunk_ties);
            ties_before += chunk_ties;
            const int64_t left = cut.ties - before;
            children = cheaper + static_cast<int>(left <= 0 ? 0 : left < ties ? left : ties);
            uint32_t chunk_children;
            const int offset = block.exclusive_scan(children, chunk_children);
            if (s < last) forest.begin[s] = static_cast<uint16_t>(next + offset);
            next += static_cast<int>(chunk_children);
        }
        if (next == last) break;
        if (thread == 0) forest.level[depth + 1] = next;
        __syncthreads();

        for (int s = last + thread; s < next; s += kThreads) {
            // The last parent whose children begin at or before s; those without children are stepped over.
            int low = first;
            int high = last;
            while (high - low > 1) {
                const int middle = (low + high) >> 1;
                if (forest.begin[middle] <= s)
                    low = middle;
                else
                    high = middle;
            }
            const int rank = s - forest.begin[low];
            forest.cost[s] = forest.cost[low] + best + row[rank];
            forest.path[s] = extended_level_path(forest.path[low], rank);
            forest.parent[s] = static_cast<uint16_t>(low);
            forest.rank[s] = static_cast<uint16_t>(rank);
            forest.depth[s] = static_cast<uint8_t>(depth);
        }
        // No barrier here: what the next level counts with is its own thread's.
        first = last;
        last = next;
    }
    // The deepest level has no children: they begin, and end, behind the last slot.
    for (int s = first + thread; s <= last; s += kThreads) forest.begin[s] = static_cast<uint16_t>(last);
    forest.levels = depth;
    forest.count = last;
    __syncthreads();
}

// Pre-order positions, which are the lexicographic order of rank tuples with a tuple before its extensions, counting
// only slots that `counts` accepts (with every accepted slot its parent). Sizes of subtrees go up, offsets come down;
// children are contiguous, so both are prefix sums along a level.
template <int kThreads, class Counts>
__device__ void preorder(Block<kThreads>& block, const Forest& forest, const PreorderScratch& scratch, Counts counts) {
    const int thread = threadIdx.x;
    for (int depth = forest.levels - 1; depth >= 1; --depth) {
        const int last = forest.level[depth + 1];
        uint32_t carry = 0;
        for (int base = forest.level[depth]; base < last; base += kThreads) {
            const int s = base + thread;
            uint32_t size = 0;
            if (s < last) {
                const int child = forest.begin[s];
                const int end = forest.begin[s + 1];
                size = counts(s) ? 1 : 0;
                if (child < end) size += scratch.offset[end - 1] + scratch.size[end - 1] - scratch.offset[child];
            }
            uint32_t chunk;
            const uint32_t before = carry + block.exclusive_scan(size, chunk);
            carry += chunk;
            if (s < last) {
                scratch.size[s] = static_cast<uint16_t>(size);
                scratch.offset[s] = static_cast<uint16_t>(before);
            }
        }
        __syncthreads();
    }
    if (thread == 0) scratch.order[0] = 0;
    __syncthreads();
    for (int depth = 1; depth < forest.levels; ++depth) {
        for (int s = forest.level[depth] + thread; s < forest.level[depth + 1]; s += kThreads) {
            const int parent = forest.parent[s];
            scratch.order[s] = static_cast<uint16_t>(scratch.order[parent] + 1 + scratch.offset[s] -
                                                     scratch.offset[forest.begin[parent]]);
        }
        __syncthreads();
    }
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_LEVEL_EXPAND_CUH
