// SPDX-License-Identifier: Apache-2.0
//
// The search: all nodes up to a cost that is at least that of the last node wanted. It proceeds branching by branching
// rather than depth by depth, which takes two to five rounds instead of draft_horizon.
//
// A node's cost is the spine's down to its depth, plus the excess of every rank above 0 on its path. So a branch of
// excess E has the run of depths with spine <= limit - E, and each node of the run parts into the ranks r >= 1 of the
// next row whose own excess still fits. Slots and branches are handed out in a racy order; nothing of the answer
// depends on it.
#ifndef KDTREE_CUDA_TREE_BUILD_GROW_CUH
#define KDTREE_CUDA_TREE_BUILD_GROW_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/bins.cuh"
#include "cuda/tree_build/bound.cuh"
#include "cuda/tree_build/layout.cuh"
#include "cuda/tree_build/rows.cuh"

namespace kdt::cuda::tree_build {

struct GrowShared {
    __align__(16) uint32_t counts[kBins];
    // By generation, the number of branchings: a counter is never one that a slower warp still reads.
    int branches[kMaxRows + 2];
    int slots[kMaxRows + 2];
    int64_t found;

    __device__ void clear() {
        for (int i = threadIdx.x; i < kBins; i += blockDim.x) counts[i] = 0;
        if (threadIdx.x < kMaxRows + 2) branches[threadIdx.x] = slots[threadIdx.x] = 0;
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

// Where a branch stands that was announced by its parent's slot: its depth, rank and excess.
struct Offshoot {
    int above;  // branch
    int depth;
    int rank;
    int64_t excess;

    __device__ Offshoot(const Rows& rows, const Branches& branches, const Slots& slots, int u) {
        const int slot = branches.slot[u];
        above = slots.branch[slot];
        depth = branches.depth(above) + slot - branches.slot[above] + 1;
        rank = u - slots.child[slot] + 1;
        excess = branches.excess[above] + rows.row(depth)[rank];
    }
};

// The root, its run and the announcement of its branches, a node a warp. Returns the nodes of the run.
template <int kThreads>
__device__ int grow_root(const Rows& rows, int64_t limit, Branches& branches, Slots& slots, GrowShared& shared) {
    const int lane = threadIdx.x % kWarpSize;
    const int run = __popc(__ballot_sync(kAllLanes, lane <= rows.depth && rows.spine[lane] <= limit));
    if (threadIdx.x < run) {
        slots.cost[threadIdx.x] = rows.spine[threadIdx.x];
        slots.branch[threadIdx.x] = 0;
    }
    if (threadIdx.x == 0) {
        branches.excess[0] = 0;
        branches.path[0] = 0;
        branches.place[0] = Branches::place_of(0, 0, 0);
        branches.parent[0] = kNone;
        branches.slot[0] = 0;
    }
    for (int slot = threadIdx.x / kWarpSize; slot < run; slot += kThreads / kWarpSize) {
        int children = 0;
        if (slot < rows.depth) {
            const int64_t* const row = rows.row(slot + 1);
            const int entries = rows.count(slot + 1);
            const int64_t left = limit - rows.spine[slot + 1];
            for (int from = 1, found = kWarpSize; found == kWarpSize; from += kWarpSize, children += found) {
                const bool fits = from + lane < entries && row[from + lane] <= left;
                found = __popc(__ballot_sync(kAllLanes, fits));
            }
        }
        int child = 0;
        if (lane == 0 && children > 0) child = 1 + atomicAdd(&shared.branches[1], children);
        child = __shfl_sync(kAllLanes, child, 0);
        for (int r = lane; r < children; r += kWarpSize)
            if (child + r < branches.capacity) branches.slot[child + r] = static_cast<uint16_t>(slot);
        if (lane == 0) slots.child[slot] = children > 0 ? static_cast<uint16_t>(child) : kNone;
    }
    return run;
}

// Runs and branches of all generations up to `limit`, one after the other: a thread a branch lays out its run, then a
// thread a node announces the branches that part below it. False when they are too many to keep; `counts` then holds
// the nodes found so far.
template <int kThreads>
__device__ bool grow_runs(const Rows& rows, uint32_t budget, int64_t& limit, const Bins& bins, Branches& branches,
                          Slots& slots, GrowShared& shared) {
    slots.count = grow_root<kThreads>(rows, limit, branches, slots, shared);
    branches.count = 1;
    for (int generation = 1;; ++generation) {
        __syncthreads();
        const int first = branches.count;
        branches.count += shared.branches[generation];
        if (branches.count > branches.capacity) {
            for (int u = first + threadIdx.x; generation > 1 && u < branches.capacity; u += kThreads) {
                const Offshoot at(rows, branches, slots, u);
                atomicAdd(&shared.counts[bins.of(at.excess + rows.spine[at.depth])], 1u);
            }
            __syncthreads();
            return false;
        }
        if (branches.count == first) return true;
        for (int u = first + threadIdx.x; u < branches.count; u += kThreads) {
            const Offshoot at(rows, branches, slots, u);
            const int end = count_up_to(rows.spine, at.depth, rows.depth + 1, limit - at.excess);
            const int run = end - at.depth;
            const int slot = slots.count + atomicAdd(&shared.slots[generation], run);
            branches.excess[u] = at.excess;
            branches.path[u] = extended_path(branches.path[at.above], generation, at.depth, at.rank);
            branches.place[u] = Branches::place_of(at.depth, generation, at.rank);
            branches.parent[u] = static_cast<uint16_t>(at.above);
            branches.slot[u] = run > 0 && slot < slots.capacity ? static_cast<uint16_t>(slot) : kNone;
            for (int s = slot; s < min(slot + run, slots.capacity); ++s) slots.branch[s] = static_cast<uint16_t>(u);
        }
        __syncthreads();
        const int first_slot = slots.count;
        slots.count += shared.slots[generation];
        const int last_slot = min(slots.count, slots.capacity);
        for (int s = first_slot + threadIdx.x; s < last_slot; s += kThreads) {
            const int u = slots.branch[s];
            const int depth = branches.depth(u) + s - branches.slot[u];
            const int64_t excess = branches.excess[u];
            const int64_t cost = excess + rows.spine[depth];
            slots.cost[s] = cost;
            // Those of one branching were counted before.
            if (generation > 1) atomicAdd(&shared.counts[bins.of(cost)], 1u);
            int child = kNone;
            if (depth < rows.depth) {
                const int64_t* const row = rows.row(depth + 1);
                const int entries = rows.count(depth + 1);
                const int64_t next = excess + rows.spine[depth + 1];
                const int64_t left = limit - next;
                int end = 1;  // few, as a rule
#pragma unroll
                for (int r = 1; r < 5; ++r) end += r < entries && row[r] <= left ? 1 : 0;
                if (end == 5) end = count_up_to(row, 5, entries, left);
                if (end > 1) {
                    child = branches.count + atomicAdd(&shared.branches[generation + 1], end - 1);
                    for (int r = 1; r < end; ++r) {
                        const int offshoot = child + r - 1;
                        if (offshoot < branches.capacity)
                            branches.slot[offshoot] = static_cast<uint16_t>(s);
                        else
                            atomicAdd(&shared.counts[bins.of(next + row[r])], 1u);
                    }
                }
            }
            slots.child[s] = static_cast<uint16_t>(child);
        }
        if (slots.count > slots.capacity) {
            __syncthreads();
            return false;
        }
        if constexpr (kThreads == 1024) {
            if (generation == 2) {
                // Deeper generations of large trees gain by a lower limit.
                __syncthreads();
                const auto bin = [&] { return bin_of(shared.counts, budget); };
                limit = bins.lowered(limit, static_cast<int>(find_together<kThreads>(shared.found, bin)));
            }
        }
    }
}

// Finds at least `budget` nodes, those of the tree among them, or all there are. False when they are too many to keep;
// `limit` is then a cost that `budget` nodes do not exceed.
template <int kThreads>
__device__ bool grow(const Sizes& sizes, const Rows& rows, const Box& box, int64_t& limit, Branches& branches,
                     Slots& slots, GrowShared& shared) {
    constexpr int kAttempts = 4;
    constexpr int kFineBin = 24;  // from here on a bin is narrow, against the costs of the nodes in it
    const uint32_t budget = sizes.budget;
    const uint32_t reciprocal = rows.depth < 2 ? 0 : 0xffffffffu / static_cast<uint32_t>(rows.depth) + 1;
    const auto answer = [&] {
        return static_cast<int>(find_together<kThreads>(shared.found, [&] { return bin_of(shared.counts, budget); }));
    };
    limit = find_together<kThreads>(shared.found, [&] { return cheapest_box<kThreads>(rows, box); });
    Bins bins;
    int64_t base = 0;
    for (int attempt = 0;; ++attempt) {
        bins.fit(limit, base);
        count_single_branches<kThreads>(rows, reciprocal, limit, bins, shared.counts);
        __syncthreads();
        // Lowers the limit to the bin in which the budget is reached.
        int bin = answer();
        limit = bins.lowered(limit, bin);
        if (bin < 0 || bin >= kFineBin || bins.width == 0 || attempt > 0) {
            if (grow_runs<kThreads>(rows, budget, limit, bins, branches, slots, shared)) return true;
            // What was found by then may do to lower it further.
            bin = answer();
            limit = bins.lowered(limit, bin);
            if (bin < 0 || bins.width == 0 || attempt == kAttempts) return false;
        }
        // Once more, with narrow bins about the answer.
        base = bins.bottom(bin);
        __syncthreads();
        shared.clear();
        __syncthreads();
    }
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_GROW_CUH
