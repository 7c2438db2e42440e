// SPDX-License-Identifier: Apache-2.0
//
// First step of tree_build: a request's log-probs become integer costs, checked on the way.
#ifndef KDTREE_CUDA_TREE_BUILD_ROWS_CUH
#define KDTREE_CUDA_TREE_BUILD_ROWS_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/layout.cuh"

namespace kdt::cuda::tree_build {

// A node of rank r at depth d follows its d - 1 ancestors and r left siblings, so ranks above budget - d cannot be
// selected: row d needs budget - d + 1 entries at most.
__device__ __forceinline__ int reachable(const Sizes& sizes, int row) {
    const int limit = sizes.budget - row;
    return limit < 0 ? 0 : limit < sizes.topk ? limit : sizes.topk;
}

struct RowsShared {
    int usable[kMaxRows];
    int64_t spine[kMaxRows + 1];
    int status;

    __device__ void clear(const Sizes& sizes) {
        if (threadIdx.x < kMaxRows) usable[threadIdx.x] = reachable(sizes, threadIdx.x);
        if (threadIdx.x == 0) status = 0;
    }
};

// Entries of an ascending row, from `low` on, that are at most `limit`.
__device__ __forceinline__ int count_up_to(const int64_t* row, int low, int count, int64_t limit) {
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

// Fills the rows and the spine; every entry is checked for NaN and > 0, reachable or not. Returns the refusal bits.
// `shared` is cleared, and a barrier has passed since.
template <int kThreads>
__device__ int load_rows(const Sizes& sizes, const float* log_probs, const int32_t* token_ids, int32_t* tokens,
                         Rows& rows, RowsShared& shared) {
    constexpr int kTogether = kThreads == 1024 ? 2 : 4;
    const int thread = threadIdx.x;
    const int lane = thread % kWarpSize;
    const int entries = sizes.horizon * sizes.topk;
    // An entry, the one before it, which must not be less likely, and the best of the row.
    float log_prob[kTogether], before[kTogether], best[kTogether];
    int32_t token[kTogether];
    const auto load = [&](int base) {
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
            const int i = base + u * kThreads;
            if (i >= entries) continue;
            const int row = sizes.row_of(i);
            log_prob[u] = log_probs[i];
            before[u] = log_probs[i == 0 ? 0 : i - 1];
            best[u] = log_probs[row * sizes.topk];
            if (tokens != nullptr) token[u] = token_ids[i];
        }
    };
    const float head = lane < sizes.horizon ? log_probs[lane * sizes.topk] : -INFINITY;
    load(thread);

    // The spine: a prefix sum over the depths that can be reached.
    const unsigned ends = __ballot_sync(kAllLanes, !(reachable(sizes, lane) > 0 && head >= KDT_LOG_PROB_FLOOR));
    rows.depth = ends == 0 ? kWarpSize : __ffs(ends) - 1;
    if (thread < kWarpSize) {
        int64_t spine = lane < rows.depth ? fixed_point_cost(head) : 0;
        for (int step = 1; step < rows.depth; step *= 2) {
            const int64_t other = __shfl_up_sync(kAllLanes, spine, step);
            if (lane >= step) spine += other;
        }
        if (thread == 0) shared.spine[0] = 0;
        if (thread < kMaxRows) shared.spine[thread + 1] = spine;
    }

    int refused = 0;
    for (int base = thread;; load(base)) {
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
            const int i = base + u * kThreads;
            if (i >= entries) continue;
            const int row = sizes.row_of(i);
            const int rank = i - row * sizes.topk;
            if (log_prob[u] != log_prob[u]) refused |= KDT_REQ_NAN;
            if (log_prob[u] > 0.0f) refused |= KDT_REQ_POSITIVE;
            if (tokens != nullptr) tokens[i] = token[u];
            if (rank >= reachable(sizes, row)) continue;
            // Rows descend: the first entry below the floor ends the row, and so would one that ascends.
            if (log_prob[u] >= KDT_LOG_PROB_FLOOR && (rank == 0 || log_prob[u] <= before[u]))
                rows.excess[row * rows.stride + rank] = fixed_point_cost(log_prob[u]) - fixed_point_cost(best[u]);
            else
                atomicMin(&shared.usable[row], rank);
        }
        base += kTogether * kThreads;
        if (base - thread >= entries) break;
    }
    if (refused != 0) atomicOr(&shared.status, refused);
    __syncthreads();
    return shared.status;
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_ROWS_CUH
