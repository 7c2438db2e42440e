// SPDX-License-Identifier: Apache-2.0
//
// What tree_build keeps of one request, and where: all of it in shared memory, except rows too large for it and the
// storage of the exact slow path.
//
// Candidates stand in *slots*: slot 0 is the root, then one depth after the other, each in lexicographic order of rank
// tuples, so the children of a slot are contiguous and a slot's tuple is spelled by its parents. Slots are uint16: the
// slow path's 31 * 1024 + 1 are the most there are.
#ifndef KDTREE_CUDA_TREE_BUILD_LAYOUT_CUH
#define KDTREE_CUDA_TREE_BUILD_LAYOUT_CUH

#include <cstdint>

#include "cuda/carve.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda::tree_build {

constexpr uint16_t kNone = 0xffff;
constexpr int kBins = 64;
constexpr int kMaxRows = KDT_MAX_DRAFT_HORIZON;
// Above the cost of any path: 31 log-probs of at most 64 in units of 2^-40.
constexpr int64_t kMaxCost = int64_t{1} << 51;
static_assert(KDT_MAX_DRAFT_HORIZON * 64 < 2048 && KDT_LOG_PROB_FLOOR == -64.0f, "costs fit kMaxCost");
static_assert(KDT_MAX_DRAFT_HORIZON * KDT_MAX_TREE_BUDGET + 1 < kNone, "slots fit 16 bits");

struct Sizes {
    int horizon;
    int topk;
    int budget;
    int nodes;          // budget + 1
    int words;          // of a mask row
    int columns;        // entries of a row that can matter
    int capacity;       // slots in shared memory
    int slow_capacity;  // slots in the workspace
    int buckets;        // of the final ordering
    bool rows_in_shared;

    Sizes(const kdt_tree_build_params& p, int threads)
        : horizon(p.draft_horizon),
          topk(p.topk),
          budget(p.tree_budget),
          nodes(p.tree_budget + 1),
          words((p.tree_budget + 64) / 64),
          columns(p.topk < p.tree_budget ? p.topk : p.tree_budget),
          // Twice the budget: the threshold's rounding lets in some 10 to 70 % more than the budget.
          capacity(2 * p.tree_budget + 1),
          slow_capacity(p.draft_horizon * p.tree_budget + 1),
          buckets(2 * threads),
          // Everything else at its largest and this much fit the 99 KB that every GPU since sm_80 gives a block.
          rows_in_shared(p.draft_horizon * columns * int(sizeof(int64_t)) <= 24 * 1024) {}
};

// Costs of the usable entries of each row, in fixed point. Depth d = 1, 2, ... uses row(d).
struct Rows {
    int64_t* costs;  // [horizon, stride]
    int stride;
    int* usable;  // [horizon] entries above the floor that the budget can reach
    int depth;    // the deepest level with a usable entry

    __device__ const int64_t* row(int d) const { return costs + (d - 1) * stride; }
    __device__ int count(int d) const { return usable[d - 1]; }
};

// The candidates. `path[s]` orders slots of equal cost (path.cuh). `begin[s]` is the slot of the first child of s; the
// children end where those of s + 1 begin.
struct Forest {
    int64_t* cost;
    uint64_t* path;
    uint16_t* parent;
    uint16_t* rank;
    uint16_t* begin;  // [capacity + 1]
    uint8_t* depth;
    int* level;  // first slot of each depth, [kMaxRows + 2]
    int capacity;
    int levels;  // depths with nodes, the root's included
    int count;

    __host__ __device__ Forest(Carve& carve, int slots, int* level_starts)
        : cost(carve.take<int64_t>(slots)),
          path(carve.take<uint64_t>(slots)),
          parent(carve.take<uint16_t>(slots)),
          rank(carve.take<uint16_t>(slots)),
          begin(carve.take<uint16_t>(slots + 1)),
          depth(carve.take<uint8_t>(slots)),
          level(level_starts),
          capacity(slots),
          levels(1),
          count(1) {}
};

// Scratch of preorder(): one value a slot each.
struct PreorderScratch {
    uint16_t* size;    // of the subtree
    uint16_t* offset;  // sum of the sizes before it on its level
    uint16_t* order;   // the answer

    PreorderScratch() = default;
    __host__ __device__ PreorderScratch(Carve& carve, int slots)
        : size(carve.take<uint16_t>(slots)), offset(carve.take<uint16_t>(slots)), order(carve.take<uint16_t>(slots)) {}
};

struct SharedMemory {
    Forest forest;
    int64_t* row_costs;  // or nullptr
    uint16_t* index;     // [capacity] node index of a slot, or kNone
    uint16_t* slot;      // [nodes] slot of a node
    uint16_t* up;        // [nodes] parent's node index, kNone for the root
    // The threshold's, the ordering's and preorder()'s scratch share their bytes: each is over before the next begins.
    uint16_t* within;   // [horizon, kBins] entries of a row within that many bins of excess
    uint32_t* bucket;   // [buckets]
    uint16_t* arrival;  // [capacity] place in its bucket, as it came
    uint16_t* item;     // [capacity] slots, bucket after bucket
    PreorderScratch preorder;

    __host__ __device__ SharedMemory(Carve& carve, const Sizes& sizes, int* level_starts)
        : forest(carve, sizes.capacity, level_starts),
          row_costs(carve.take<int64_t>(sizes.rows_in_shared ? sizes.horizon * sizes.columns : 0)),
          index(carve.take<uint16_t>(sizes.capacity)),
          slot(carve.take<uint16_t>(sizes.nodes)),
          up(carve.take<uint16_t>(sizes.nodes)) {
        Carve first = carve, second = carve, third = carve;
        within = first.take<uint16_t>(sizes.horizon * kBins);
        bucket = second.take<uint32_t>(sizes.buckets);
        arrival = second.take<uint16_t>(sizes.capacity);
        item = second.take<uint16_t>(sizes.capacity);
        preorder = PreorderScratch(third, sizes.capacity);
        carve.skip(first);
        carve.skip(second);
        carve.skip(third);
    }
};

// One request's part of the workspace.
struct GlobalMemory {
    Forest forest;
    PreorderScratch preorder;
    uint16_t* kept_before;  // [slow_capacity + 1]
    int64_t* row_costs;

    __host__ __device__ GlobalMemory(Carve& carve, const Sizes& sizes, int* level_starts)
        : forest(carve, sizes.slow_capacity, level_starts),
          preorder(carve, sizes.slow_capacity),
          kept_before(carve.take<uint16_t>(sizes.slow_capacity + 1)),
          row_costs(carve.take<int64_t>(sizes.rows_in_shared ? 0 : sizes.horizon * sizes.columns)) {}
};

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_LAYOUT_CUH
