// SPDX-License-Identifier: Apache-2.0
//
// The slow path's candidates. They stand in *slots*: slot 0 is the root, then one depth after the other, each in
// lexicographic order of rank tuples, so the children of a slot are contiguous and a slot's tuple is spelled by its
// parents. Slots are uint16: 31 * 1024 + 1 are the most there are.
#ifndef KDTREE_CUDA_TREE_BUILD_LEVEL_LAYOUT_CUH
#define KDTREE_CUDA_TREE_BUILD_LEVEL_LAYOUT_CUH

#include <cstdint>

#include "cuda/carve.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda::tree_build {

constexpr uint16_t kNone = 0xffff;
constexpr int kMaxRows = KDT_MAX_DRAFT_HORIZON;
static_assert(KDT_MAX_DRAFT_HORIZON * KDT_MAX_TREE_BUDGET + 1 < kNone, "slots fit 16 bits");

// `path[s]` orders slots of equal cost (level_path.cuh). `begin[s]` is the slot of the first child of s; the children
// end where those of s + 1 begin.
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

    Forest() = default;
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

// What is left of the levels at the end, in shared memory: the tree's nodes.
struct LevelMemory {
    Forest forest;
    uint16_t* index;    // [budget + 1] node index of a slot
    uint16_t* arrival;  // [budget + 1] place in its bucket, as it came
    uint16_t* item;     // [budget + 1] slots, bucket after bucket

    LevelMemory() = default;
    __host__ __device__ LevelMemory(Carve& carve, int budget, int* level_starts)
        : forest(carve, budget + 1, level_starts),
          index(carve.take<uint16_t>(budget + 1)),
          arrival(carve.take<uint16_t>(budget + 1)),
          item(carve.take<uint16_t>(budget + 1)) {}
};

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_LEVEL_LAYOUT_CUH
