// SPDX-License-Identifier: Apache-2.0
//
// First step of tree_build: a request's log-probs become integer costs, checked on the way.
#ifndef KDTREE_CUDA_TREE_BUILD_ROWS_CUH
#define KDTREE_CUDA_TREE_BUILD_ROWS_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/layout.cuh"

namespace kdt::cuda::tree_build {

// What one thread finds out about the rows and all need to know.
struct RowsShared {
    int usable[kMaxRows];
    int64_t spine[kMaxRows + 1];  // cost of the path of rank 0 alone, by depth
    int64_t reach[kMaxRows + 1];  // what the most expensive path of a depth costs over its spine
    int status;
    int depth;
    int all_fit;  // whether every candidate there is fits into shared memory
};

// Entries of an ascending row that are at most `limit`.
__device__ __forceinline__ int count_up_to(const int64_t* row, int count, int64_t limit) {
    int low = 0;
    int high = count;
    while (low < high) {
        const int middle = (low + high) >> 1;
        if (row[middle] <= limit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Rounds to nearest even; the product with a power of two is exact, so no double is needed.
__device__ __forceinline__ int64_t fixed_point_cost(float log_prob) {
    static_assert(KDT_FIXED_POINT_BITS == 40, "the factor below");
    return __float2ll_rn(-log_prob * 0x1p40f);
}

// A node of rank r at depth d follows its d - 1 ancestors and r left siblings, so ranks above budget - d cannot be
// selected: row d needs budget - d + 1 entries at most.
__device__ __forceinline__ int reachable(const Sizes& sizes, int row) {
    const int limit = sizes.budget - row;
    return limit < 0 ? 0 : limit < sizes.topk ? limit : sizes.topk;
}

// Every entry is checked for NaN and > 0, reachable or not. Returns the refusal bits.
template <int kThreads>
__device__ int load_rows(const Sizes& sizes, const float* log_probs, Rows& rows, RowsShared& shared) {
    const int thread = threadIdx.x;
    if (thread < sizes.horizon) shared.usable[thread] = reachable(sizes, thread);
    if (thread == 0) shared.status = 0;
    __syncthreads();

    int refused = 0;
    const int entries = sizes.horizon * sizes.topk;
#pragma unroll 4
    for (int i = thread; i < entries; i += kThreads) {
        const float log_prob = log_probs[i];
        const int row = i / sizes.topk;
        const int rank = i - row * sizes.topk;
        if (log_prob != log_prob) refused |= KDT_REQ_NAN;
        if (log_prob > 0.0f) refused |= KDT_REQ_POSITIVE;
        if (rank >= reachable(sizes, row)) continue;
        if (log_prob >= KDT_LOG_PROB_FLOOR)
            rows.costs[row * rows.stride + rank] = fixed_point_cost(log_prob);
        else
            atomicMin(&shared.usable[row], rank);  // rows descend: the first entry below the floor ends the row
    }
    if (refused != 0) atomicOr(&shared.status, refused);
    __syncthreads();
    return shared.status;
}

// The spine, the depth that can be reached and whether all candidates fit; one warp works, all threads get the answer.
__device__ inline void survey_rows(const Sizes& sizes, Rows& rows, RowsShared& shared) {
    if (threadIdx.x < kWarpSize) {
        const int lane = threadIdx.x;
        const int usable = lane < sizes.horizon ? shared.usable[lane] : 0;
        const unsigned ends = __ballot_sync(kAllLanes, usable == 0);
        const int depth = ends == 0 ? kWarpSize : __ffs(ends) - 1;

        int64_t spine = lane < depth ? rows.costs[lane * rows.stride] : 0;
        int64_t reach = lane < depth ? rows.costs[lane * rows.stride + usable - 1] - spine : 0;
#pragma unroll
        for (int step = 1; step < kWarpSize; step *= 2) {
            const int64_t other_spine = __shfl_up_sync(kAllLanes, spine, step);
            const int64_t other_reach = __shfl_up_sync(kAllLanes, reach, step);
            if (lane >= step) {
                spine += other_spine;
                reach += other_reach;
            }
        }
        if (lane < kMaxRows) {
            shared.spine[lane + 1] = spine;
            shared.reach[lane + 1] = reach;
        }

        int level = 1;
        int candidates = 0;
        for (int d = 0; d < depth && candidates < sizes.capacity; ++d) {
            const int width = __shfl_sync(kAllLanes, usable, d);
            level = level * width > sizes.capacity ? sizes.capacity : level * width;
            candidates += level;
        }
        if (lane == 0) {
            shared.spine[0] = 0;
            shared.reach[0] = 0;
            shared.depth = depth;
            shared.all_fit = candidates < sizes.capacity;  // the root takes a slot as well
        }
    }
    __syncthreads();
    rows.depth = shared.depth;
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_ROWS_CUH
