// SPDX-License-Identifier: Apache-2.0
//
// One search, up to a limit that is given: branching by branching rather than depth by depth, which takes two to five
// rounds instead of draft_horizon.
//
// A node's cost is the spine's down to its depth, plus the excess of every rank above 0 on its path. So a branch of
// excess E has the run of depths with spine <= limit - E, and each node of the run parts into the ranks r >= 1 of the
// next row whose own excess still fits. Slots and branches are handed out in a racy order; nothing of the answer
// depends on it.
#ifndef KDTREE_CUDA_TREE_BUILD_GROWTH_CUH
#define KDTREE_CUDA_TREE_BUILD_GROWTH_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/layout.cuh"
#include "cuda/tree_build/rows.cuh"

namespace kdt::cuda::tree_build {

struct GrowShared {
    static constexpr int kCounts = 3;  // times that the limit may be halved
    static constexpr int kDigits = 2;

    uint32_t single[kCounts][kWarpSize];  // nodes of at most one branching up to each lane's limit
    int32_t box;
    uint32_t reciprocal[kMaxRows + 1];
    // By generation, the number of branchings: a counter is never one that a slower warp still reads.
    int branches[kMaxRows + 2];
    int slots;
    int num_nodes;                       // of the tree, at last
    uint32_t found[kDigits][kWarpSize];  // nodes by digits of their cost

    __device__ void clear_search() {
        if (threadIdx.x < kMaxRows + 2) branches[threadIdx.x] = 0;
        if (threadIdx.x < kDigits * kWarpSize) found[threadIdx.x / kWarpSize][threadIdx.x % kWarpSize] = 0;
        if (threadIdx.x == 0) slots = 0;
    }
    __device__ void clear() {
        if (threadIdx.x < kMaxRows + 1) reciprocal[threadIdx.x] = 0xffffffffu / max(threadIdx.x, 2u) + 1;
        if (threadIdx.x < kCounts * kWarpSize) single[threadIdx.x / kWarpSize][threadIdx.x % kWarpSize] = 0;
        clear_search();
    }
};

// Rank tuples of branches as numbers. Of two tuples, that whose first rank above 0 stands deeper comes first, then that
// of the lower rank; none at all comes before any. Four branchings fit into 60 bits.
constexpr int kPathBits = 15;
constexpr int kPathBranchings = 4;

__device__ __forceinline__ uint32_t branching_code(int depth, int rank) {
    return static_cast<uint32_t>((kMaxRows - depth) << 10 | rank);
}

__device__ __forceinline__ uint64_t extended_path(uint64_t path, int generation, int depth, int rank) {
    if (generation > kPathBranchings) return path;
    return path | static_cast<uint64_t>(branching_code(depth, rank)) << kPathBits * (kPathBranchings - generation);
}

// Depths down to which the spine costs at most `cost`, the root's included; the spine ascends.
__device__ __forceinline__ int depths_up_to(const Rows& rows, int32_t cost) {
    static_assert(kMaxRows + 1 == 32, "four times eight");
    const int32_t* const spine = rows.coarse_spine;
    int eights = 0;
    if (rows.depth >= 8)
        eights = (spine[8] <= cost ? 1 : 0) + (spine[16] <= cost ? 1 : 0) + (spine[24] <= cost ? 1 : 0);
    const int4 low = reinterpret_cast<const int4*>(spine)[2 * eights];
    const int4 high = reinterpret_cast<const int4*>(spine)[2 * eights + 1];
    return 8 * eights + (low.x <= cost ? 1 : 0) + (low.y <= cost ? 1 : 0) + (low.z <= cost ? 1 : 0) +
           (low.w <= cost ? 1 : 0) + (high.x <= cost ? 1 : 0) + (high.y <= cost ? 1 : 0) + (high.z <= cost ? 1 : 0) +
           (high.w <= cost ? 1 : 0);
}

// One search up to `limit`, of which the caller keeps the counts.
template <int kThreads>
struct Growth {
    const Rows& rows;
    const uint32_t reciprocal;  // of rows.depth
    const int32_t limit;
    Branches& branches;
    Slots& slots;
    GrowShared& shared;
    int root_run;

    // Where a branch is first known: everything but its run.
    __device__ void announce(int u, int above, int generation, int depth, int rank) {
        branches.parent[u] = static_cast<uint16_t>(above);
        branches.place[u] = Branches::place_of(depth, generation, rank);
    }

    // Lays out the run of a branch that stands below slot `parent_slot`.
    __device__ void lay_run(int u, int64_t excess, int32_t coarse, uint64_t path, int depth, int rank,
                            int parent_slot) {
        const int run = depths_up_to(rows, limit - coarse) - depth;
        const int slot = root_run + atomicAdd(&shared.slots, run);
        branches.excess[u] = excess;
        branches.path[u] = path;
        branches.slot[u] = slot < slots.capacity ? static_cast<uint16_t>(slot) : kNone;
        if (rank == 1 && parent_slot < slots.capacity) slots.child[parent_slot] = static_cast<uint16_t>(u);
#pragma unroll 1
        for (int s = slot; s < min(slot + run, slots.capacity); ++s) slots.branch[s] = static_cast<uint16_t>(u);
    }

    // The root, its run and the branches that part from it, a depth a warp.
    __device__ void grow_root() {
        constexpr int kWarps = kThreads / kWarpSize;
        const int lane = threadIdx.x % kWarpSize;
        root_run = min(depths_up_to(rows, limit), rows.depth + 1);  // no depth where it was refused
        if (threadIdx.x < root_run) slots.branch[threadIdx.x] = 0;
        if (threadIdx.x == 0) {
            announce(0, kNone, 0, 0, 0);
            branches.excess[0] = 0;
            branches.path[0] = 0;
            branches.slot[0] = 0;
        }
#pragma unroll 1
        for (int depth = 1 + threadIdx.x / kWarpSize; depth <= rows.depth; depth += kWarps) {
            const int32_t left = limit - rows.coarse_spine[depth];
            const int32_t* const row = rows.coarse_row(depth);
            int children = 0;
#pragma unroll 1
            for (int from = 1, found = kWarpSize; found == kWarpSize; from += kWarpSize, children += found) {
                const bool fits = from + lane < rows.columns && row[from + lane] <= left;
                found = __popc(__ballot_sync(kAllLanes, fits));
            }
            if (children == 0) continue;
            int first = 0;
            if (lane == 0) first = 1 + atomicAdd(&shared.branches[1], children);
            first = __shfl_sync(kAllLanes, first, 0);
#pragma unroll 1
            for (int rank = 1 + lane; rank <= children; rank += kWarpSize) {
                const int u = first + rank - 1;
                if (u >= branches.capacity) break;
                announce(u, 0, 1, depth, rank);
                lay_run(u, rows.row(depth)[rank], row[rank], extended_path(0, 1, depth, rank), depth, rank, depth - 1);
            }
        }
    }

    // Lays out the branches [first, last), which were announced before.
    __device__ void lay_runs(int generation, int first, int last) {
        // From the last thread on: the first ones have more of announce_branches() to do.
#pragma unroll 1
        for (int u = first + kThreads - 1 - threadIdx.x; u < last; u += kThreads) {
            const uint32_t place = branches.place[u];
            const int depth = Branches::depth_of(place);
            const int rank = Branches::rank_of(place);
            const int above = branches.parent[u];
            const int64_t excess_above = branches.excess[above];
            const int64_t excess = excess_above + rows.row(depth)[rank];
            const int32_t coarse = static_cast<int32_t>(excess_above >> kCoarse) + rows.coarse_row(depth)[rank];
            lay_run(u, excess, coarse, extended_path(branches.path[above], generation, depth, rank), depth, rank,
                    branches.slot[above] + depth - 1 - branches.depth(above));
        }
    }

    // Announces the branches that part from the runs of the branches [first, last), behind them: a thread a branch and
    // a depth. Those from the second generation on may not be laid out yet.
    __device__ void announce_branches(int generation, int first, int last) {
        const int work = (last - first) * rows.depth;
#pragma unroll 1
        for (int i = threadIdx.x; i < work; i += kThreads) {
            const int branch = rows.depth == 1 ? i : static_cast<int>(__umulhi(static_cast<uint32_t>(i), reciprocal));
            const int depth = i - branch * rows.depth + 1;
            const int u = first + branch;
            const uint32_t place = branches.place[u];
            const int branch_depth = Branches::depth_of(place);
            if (depth <= branch_depth) continue;
            const int64_t excess = generation == 1 ? branches.excess[u]
                                                   : branches.excess[branches.parent[u]] +
                                                         rows.row(branch_depth)[Branches::rank_of(place)];
            const int32_t left = limit - static_cast<int32_t>(excess >> kCoarse) - rows.coarse_spine[depth];
            const int32_t* const row = rows.coarse_row(depth);
            int children = 0;
#pragma unroll
            for (int rank = 1; rank < kFirstRanks; ++rank) children += row[rank] <= left ? 1 : 0;
            if (children == 0) continue;
            if (children == kFirstRanks - 1) children = count_up_to(row, kFirstRanks, rows.columns, left) - 1;
            const int to = last + atomicAdd(&shared.branches[generation + 1], children);
#pragma unroll 1
            for (int rank = 1; rank <= children && to + rank <= branches.capacity; ++rank)
                announce(to + rank - 1, u, generation + 1, depth, rank);
        }
    }

    // False when there is no room for all of it.
    __device__ bool run() {
        grow_root();
        __syncthreads();
        int first = 1;
        int last = 1 + shared.branches[1];
#pragma unroll 1
        for (int generation = 1; last > first; ++generation) {
            if (generation > 1) lay_runs(generation, first, min(last, branches.capacity));
            if (last <= branches.capacity) announce_branches(generation, first, last);
            __syncthreads();
            if (last > branches.capacity) break;
            first = last;
            last += shared.branches[generation + 1];
        }
        branches.count = last;
        const int found = root_run + shared.slots;
        slots.count = min(found, slots.capacity);
        return last <= branches.capacity && found <= slots.capacity;
    }
};

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_GROWTH_CUH
