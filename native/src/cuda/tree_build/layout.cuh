// SPDX-License-Identifier: Apache-2.0
//
// What tree_build keeps of one request, and where: all of it in shared memory, except rows too large for it and the
// storage of the exact slow path.
//
// A *branch* is a node of rank 1 or more, or the root, together with the chain of best continuations below it (rank 0
// all the way down): its *run*. A node of the tree stands on exactly one run, so branches are few: 1024 nodes have some
// 400, at most four branchings deep. Nodes found stand in *slots*; the slots of a run are contiguous, in order of
// depth.
#ifndef KDTREE_CUDA_TREE_BUILD_LAYOUT_CUH
#define KDTREE_CUDA_TREE_BUILD_LAYOUT_CUH

#include <cstdint>

#include "cuda/carve.cuh"
#include "cuda/tree_build/level_layout.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda::tree_build {

constexpr int kSlotsPerThread = 4;
constexpr int kBucketsPerThread = 4;
// Above the cost of any path: 31 log-probs of at most 64 in units of 2^-40.
constexpr int64_t kMaxCost = int64_t{1} << 51;
static_assert(KDT_MAX_DRAFT_HORIZON * 64 < 2048 && KDT_LOG_PROB_FLOOR == -64.0f, "costs fit kMaxCost");

// The search adds and compares costs in units of 2^24, rounded down one by one: 2^-16 of a nat in 32 bits. What it
// looks for is a superset of the tree, so a limit need only allow for what 32 such terms lose; the order is that of
// whole costs.
constexpr int kCoarse = 24;
constexpr int32_t kMuch = static_cast<int32_t>(kMaxCost >> kCoarse);
constexpr int32_t kRounding = kMaxRows + 1;

constexpr int kFirstRanks = 5;  // tested without a loop, rank 0 included

struct Sizes {
    int horizon;
    int topk;
    int budget;
    int nodes;    // budget + 1
    int words;    // of a mask row
    int columns;  // entries of a row that can matter
    int stride;   // of the coarse rows: room for the first few ranks, and odd, for the banks
    int threads;
    int max_branches;
    int max_slots;
    int buckets;      // of the final order, a power of two
    int mask_rows;    // that a warp assembles at a time
    int level_slots;  // of the slow path in the workspace
    uint32_t topk_reciprocal;
    bool rows_in_shared;
    bool tokens_in_shared;

    // `roomy`: a block may have 227 KB of shared memory rather than the 99 KB that every GPU since sm_80 gives.
    Sizes(const kdt_tree_build_params& p, bool roomy)
        : horizon(p.draft_horizon),
          topk(p.topk),
          budget(p.tree_budget),
          nodes(p.tree_budget + 1),
          words((p.tree_budget + 64) / 64),
          columns(p.topk < p.tree_budget ? p.topk : p.tree_budget),
          stride((columns > kFirstRanks ? columns : kFirstRanks) | 1),
          level_slots(p.draft_horizon * p.tree_budget + 1),
          topk_reciprocal(p.topk == 1 ? 0 : uint32_t(((uint64_t{1} << 32) + uint64_t(p.topk) - 1) / uint64_t(p.topk))),
          rows_in_shared(p.draft_horizon * columns <= (roomy ? 3072 : 1024)),
          tokens_in_shared(p.draft_horizon * p.topk <= 1024) {
        threads = !rows_in_shared || budget > 256 ? 1024 : budget > 64 || horizon * topk > 512 ? 512 : 256;
        max_branches = roomy || threads < 1024 ? 2 * threads : 1152;
        max_slots = roomy || threads < 1024 ? kSlotsPerThread * threads : 2112;
        buckets = kBucketsPerThread * threads;
        mask_rows = roomy ? 32 : 8;
    }

    // i / topk for the entries of a request: their product with topk is far below 2^32, so the reciprocal is exact.
    __device__ int row_of(int i) const {
        return topk == 1 ? i : static_cast<int>(__umulhi(static_cast<uint32_t>(i), topk_reciprocal));
    }
};

// Rows as what an entry costs over the best of its row. Depth d = 1, 2, ... uses row(d).
struct Rows {
    int64_t* excess;  // [horizon, columns]
    int32_t* coarse;  // [horizon, stride] the same in units of 2^kCoarse; kMuch where an entry is not usable
    int columns;
    int stride;
    int* usable;            // [horizon] leading entries above the floor that the budget can reach
    int64_t* spine;         // [kMaxRows + 1] cost of the path of rank 0 alone, by depth
    int32_t* coarse_spine;  // [kMaxRows + 1] kMuch below `depth`
    int depth;              // the deepest level with a usable entry

    template <class Shared>
    __device__ Rows(const Sizes& sizes, int64_t* excess, int32_t* coarse, Shared& shared, int depth)
        : excess(excess),
          coarse(coarse),
          columns(sizes.columns),
          stride(sizes.stride),
          usable(shared.usable),
          spine(shared.spine),
          coarse_spine(shared.coarse_spine),
          depth(depth) {}

    __device__ const int64_t* row(int d) const { return excess + (d - 1) * columns; }
    __device__ const int32_t* coarse_row(int d) const { return coarse + (d - 1) * stride; }
    __device__ int count(int d) const { return usable[d - 1]; }
    __device__ int64_t best(int d) const { return spine[d] - spine[d - 1]; }
};

struct Branches {
    int64_t* excess;   // over the spine: a node of the run costs excess + spine[its depth]
    uint64_t* path;    // growth.cuh
    uint32_t* place;   // depth, branchings and rank of the first node
    uint16_t* parent;  // branch on whose run the parent stands
    uint16_t* slot;    // of the first node, kNone when it costs too much
    int capacity;
    int count;

    Branches() = default;
    __host__ __device__ Branches(Carve& carve, int branches)
        : excess(carve.take<int64_t>(branches)),
          path(carve.take<uint64_t>(branches)),
          place(carve.take<uint32_t>(branches)),
          parent(carve.take<uint16_t>(branches)),
          slot(carve.take<uint16_t>(branches)),
          capacity(branches),
          count(0) {}

    __device__ static uint32_t place_of(int depth, int generation, int rank) {
        return static_cast<uint32_t>(depth | generation << 8 | rank << 16);
    }
    __device__ static int depth_of(uint32_t place) { return static_cast<int>(place & 0xff); }
    __device__ static int rank_of(uint32_t place) { return static_cast<int>(place >> 16); }
    __device__ int depth(int u) const { return depth_of(place[u]); }
    __device__ int generation(int u) const { return static_cast<int>(place[u] >> 8 & 0xff); }
    __device__ int rank(int u) const { return rank_of(place[u]); }
};

struct Slots {
    int64_t* cost;
    uint16_t* branch;
    uint16_t* child;  // first of the branches that part below this node, kNone without any
    uint16_t* index;  // of the node, kNone when not selected
    uint16_t* item;   // slots in buckets of cost
    int capacity;
    int count;

    Slots() = default;
    __host__ __device__ Slots(Carve& carve, int slots)
        : cost(carve.take<int64_t>(slots)),
          branch(carve.take<uint16_t>(slots)),
          child(carve.take<uint16_t>(slots)),
          index(carve.take<uint16_t>(slots)),
          item(carve.take<uint16_t>(slots)),
          capacity(slots),
          count(0) {}
};

// Links by node index, for the pre-order.
struct Links {
    uint16_t* child;    // [nodes]
    uint16_t* sibling;  // [nodes]
    uint32_t* jump;     // [nodes]
    uint32_t* next_jump;

    Links() = default;
    __host__ __device__ Links(Carve& carve, int nodes)
        : child(carve.take<uint16_t>(nodes)),
          sibling(carve.take<uint16_t>(nodes)),
          jump(carve.take<uint32_t>(nodes)),
          next_jump(carve.take<uint32_t>(nodes)) {}
};

// Made on the host over a NULL base, its pointers are offsets, which the kernel finds in its arguments: adding the base
// where a pointer is used is cheaper than keeping it.
struct SharedMemory {
    uint16_t* up;       // [nodes] parent's node index, kNone for the root
    uint16_t* slot_of;  // [nodes]
    int64_t* excess;    // the rows, or of no size
    int32_t* coarse;    // the same, coarsely
    int32_t* tokens;    // [horizon, topk], or of no size
    uint32_t* bucket;   // [buckets]; over when links begin
    Links links;
    // One after the other in the same bytes: the search, or the slow path instead of it, then the rows of the mask.
    Branches branches;
    Slots slots;
    LevelMemory levels;
    uint64_t* mask;  // [warps, mask_rows, words]

    SharedMemory(Carve& carve, const Sizes& sizes) {
        up = carve.take<uint16_t>(sizes.nodes);
        slot_of = carve.take<uint16_t>(sizes.nodes);
        excess = carve.take<int64_t>(sizes.rows_in_shared ? sizes.horizon * sizes.columns : 0);
        coarse = carve.take<int32_t>(sizes.rows_in_shared ? sizes.horizon * sizes.stride : 0);
        tokens = carve.take<int32_t>(sizes.tokens_in_shared ? sizes.horizon * sizes.topk : 0);
        Carve link_carve = carve;
        bucket = carve.take<uint32_t>(sizes.buckets);
        links = Links(link_carve, sizes.nodes);
        carve.skip(link_carve);
        Carve search = carve, slow = carve, rows = carve;
        branches = Branches(search, sizes.max_branches);
        slots = Slots(search, sizes.max_slots);
        levels = LevelMemory(slow, sizes.budget, nullptr);
        mask = rows.take<uint64_t>(sizes.threads / 32 * sizes.mask_rows * sizes.words);
        carve.skip(search);
        carve.skip(slow);
        carve.skip(rows);
    }

    __device__ SharedMemory(const SharedMemory& offsets, unsigned char* base, int* level_starts)
        : SharedMemory(offsets) {
        const auto place = [base](auto&... pointers) { (move(pointers, base), ...); };
        place(up, slot_of, excess, coarse, tokens, bucket, mask);
        place(links.child, links.sibling, links.jump, links.next_jump);
        place(branches.excess, branches.path, branches.place, branches.parent, branches.slot);
        place(slots.cost, slots.branch, slots.child, slots.index, slots.item);
        place(levels.index, levels.arrival, levels.item);
        Forest& forest = levels.forest;
        place(forest.cost, forest.path, forest.parent, forest.rank, forest.begin, forest.depth);
        forest.level = level_starts;
    }

  private:
    template <class T>
    __device__ static void move(T*& pointer, unsigned char* base) {
        pointer = reinterpret_cast<T*>(base + static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer)));
    }
};

// One request's part of the workspace.
struct GlobalMemory {
    Forest forest;
    PreorderScratch preorder;
    uint16_t* kept_before;  // [level_slots + 1]
    int64_t* excess;
    int32_t* coarse;

    __host__ __device__ GlobalMemory(Carve& carve, const Sizes& sizes, int* level_starts)
        : forest(carve, sizes.level_slots, level_starts),
          preorder(carve, sizes.level_slots),
          kept_before(carve.take<uint16_t>(sizes.level_slots + 1)),
          excess(carve.take<int64_t>(sizes.rows_in_shared ? 0 : sizes.horizon * sizes.columns)),
          coarse(carve.take<int32_t>(sizes.rows_in_shared ? 0 : sizes.horizon * sizes.stride)) {}
};

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_LAYOUT_CUH
