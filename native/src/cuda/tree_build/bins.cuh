// SPDX-License-Identifier: Apache-2.0
//
// Nodes found, counted by cost: the bin in which the budget is reached ends at a cost beyond which the search need not
// go.
#ifndef KDTREE_CUDA_TREE_BUILD_BINS_CUH
#define KDTREE_CUDA_TREE_BUILD_BINS_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/layout.cuh"

namespace kdt::cuda::tree_build {

// Four a lane.
constexpr int kBins = 4 * kWarpSize;

__device__ __forceinline__ int bit_length(int64_t value) {
    return 64 - __clzll(value);
}

// Bins of equal width, in 32-bit units of cost that are rounded up: a node in a bin costs no more than its top. What
// costs less than `base` counts in the first.
struct Bins {
    static constexpr int kUnitBits = 30;
    int unit;   // log2, of a unit
    int width;  // log2, in units
    uint32_t base;

    // For costs up to `limit`, where it is not below those of `base_cost`.
    __device__ void fit(int64_t limit, int64_t base_cost) {
        unit = max(0, bit_length(limit) - kUnitBits);
        base = units(base_cost);
        width = max(0, bit_length(units(limit) - base) - bit_length(kBins - 1));
    }
    __device__ uint32_t units(int64_t cost) const { return static_cast<uint32_t>(cost >> unit) + 1; }
    __device__ int of_units(uint32_t cost) const { return static_cast<int>((cost < base ? 0 : cost - base) >> width); }
    __device__ int of(int64_t cost) const { return of_units(units(cost)); }
    __device__ int64_t bottom(int bin) const {
        return bin == 0 ? 0 : static_cast<int64_t>(base - 1 + (static_cast<uint32_t>(bin) << width)) << unit;
    }
    // `limit`, or what `bin` ends with; -1 is no bin.
    __device__ int64_t lowered(int64_t limit, int bin) const {
        if (bin < 0) return limit;
        const int64_t top = static_cast<int64_t>(base) + (static_cast<int64_t>(bin + 1) << width) - 1;
        return min(limit, (top << unit) - 1);
    }
};

// The bin in which the n-th count falls, by a warp; -1 when there are fewer.
__device__ inline int bin_of(const uint32_t* bins, uint32_t n) {
    const int lane = threadIdx.x % kWarpSize;
    const uint4 here = reinterpret_cast<const uint4*>(bins)[lane];
    const uint32_t sum = here.x + here.y + here.z + here.w;
    uint32_t through = sum;
#pragma unroll
    for (int step = 1; step < kWarpSize; step *= 2) {
        const uint32_t other = __shfl_up_sync(kAllLanes, through, step);
        if (lane >= step) through += other;
    }
    const unsigned reached = __ballot_sync(kAllLanes, through >= n);
    if (reached == 0) return -1;
    int bin = 4 * lane;
    uint32_t before = through - sum + here.x;
    bin += before < n ? 1 : 0;
    before += here.y;
    bin += before < n ? 1 : 0;
    before += here.z;
    bin += before < n ? 1 : 0;
    return __shfl_sync(kAllLanes, bin, __ffs(reached) - 1);
}

// What one warp finds out and all threads need, a barrier later; in a small block every warp rather finds out itself.
template <int kThreads, class Find>
__device__ __forceinline__ int64_t find_together(int64_t& shared, Find find) {
    if constexpr (kThreads <= 256) return find();
    if (threadIdx.x < kWarpSize) {
        const int64_t found = find();
        if (threadIdx.x == 0) shared = found;
    }
    __syncthreads();
    return shared;
}

// Counts the nodes of at most one branching, by cost up to `limit`. Consecutive threads take the same rank of all rows,
// so that the cheap entries share the first warps.
template <int kThreads>
__device__ void count_single_branches(const Rows& rows, uint32_t reciprocal, int64_t limit, const Bins& bins,
                                      uint32_t* counts) {
    constexpr int kTogether = 8;
    constexpr uint32_t kMuch = 1u << 30;
    const int lane = threadIdx.x % kWarpSize;
    const uint32_t spine = static_cast<uint32_t>(min(rows.spine[lane] >> bins.unit, int64_t{kMuch} - 1)) + 1;
    const uint32_t top = bins.units(limit);
    const int entries = rows.depth * rows.stride;
    for (int base = 0; base < entries; base += kThreads) {
        const int i = base + threadIdx.x;
        const int rank = rows.depth == 1 ? i : static_cast<int>(__umulhi(static_cast<uint32_t>(i), reciprocal));
        const int row = i - rank * rows.depth;
        uint32_t excess = kMuch;
        if (i < entries && rank < rows.usable[row]) {
            const int64_t entry = rows.excess[row * rows.stride + rank];
            if (entry + rows.spine[row + 1] <= limit) excess = static_cast<uint32_t>(entry >> bins.unit) + (rank > 0);
        }
        if (!__any_sync(kAllLanes, excess < kMuch)) continue;
        const int last = rank == 0 ? row + 1 : rows.depth;
        for (int first = 1; first <= rows.depth; first += kTogether) {
#pragma unroll
            for (int j = 0; j < kTogether; ++j) {
                const int depth = first + j;
                const uint32_t cost = excess + __shfl_sync(kAllLanes, spine, depth);
                if (depth > row && depth <= last && cost <= top) atomicAdd(&counts[bins.of_units(cost)], 1u);
            }
        }
    }
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_BINS_CUH
