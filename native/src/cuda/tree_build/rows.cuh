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
    static constexpr int kEnded = 1 << 30;  // in `status`: a row ends before its last reachable entry

    __align__(16) int32_t coarse_spine[kMaxRows + 1];
    int64_t spine[kMaxRows + 1];
    int usable[kMaxRows];
    int status;

    __device__ void clear(const Sizes& sizes) {
        if (threadIdx.x < kMaxRows) usable[threadIdx.x] = reachable(sizes, threadIdx.x);
        if (threadIdx.x == 0) status = 0;
    }
};

// Entries of an ascending row, from `low` on, that are at most `limit`.
template <class T>
__device__ __forceinline__ int count_up_to(const T* row, int low, int count, T limit) {
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

// The spine, by the last warp, which has the fewest entries to convert: a prefix sum over the depths that can be
// reached. `head` is the best of the lane's row.
template <int kThreads>
__device__ __forceinline__ void sum_spine(int depth, float head, RowsShared& shared) {
    const int lane = threadIdx.x % kWarpSize;
    if (threadIdx.x < kThreads - kWarpSize) return;
    int64_t spine = lane < depth ? fixed_point_cost(head) : 0;
    for (int step = 1; step < depth; step *= 2) {
        const int64_t other = __shfl_up_sync(kAllLanes, spine, step);
        if (lane >= step) spine += other;
    }
    if (lane < kMaxRows) {
        shared.spine[lane + 1] = spine;
        shared.coarse_spine[lane + 1] = lane < depth ? static_cast<int32_t>(spine >> kCoarse) : kMuch;
    } else {
        shared.spine[0] = 0;
        shared.coarse_spine[0] = 0;
    }
}

// Fills the rows and the spine; every entry is checked for NaN and > 0, reachable or not. Returns the refusal bits.
// `shared` is cleared, the coarse rows are kMuch all over, and a barrier has passed since. Each thread has kTogether
// entries under way at a time.
template <int kThreads, int kTogether>
__device__ __forceinline__ int load_rows_by(const Sizes& sizes, const float* log_probs, const int32_t* token_ids,
                                            int32_t* tokens, Rows& rows, RowsShared& shared) {
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

    const unsigned ends = __ballot_sync(kAllLanes, !(reachable(sizes, lane) > 0 && head >= KDT_LOG_PROB_FLOOR));
    rows.depth = ends == 0 ? kWarpSize : __ffs(ends) - 1;
    sum_spine<kThreads>(rows.depth, head, shared);

    int refused = 0;
#pragma unroll 1
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
            if (log_prob[u] >= KDT_LOG_PROB_FLOOR && (rank == 0 || log_prob[u] <= before[u])) {
                const int64_t excess = fixed_point_cost(log_prob[u]) - fixed_point_cost(best[u]);
                rows.excess[row * rows.columns + rank] = excess;
                rows.coarse[row * rows.stride + rank] = static_cast<int32_t>(excess >> kCoarse);
            } else {
                atomicMin(&shared.usable[row], rank);
                refused |= RowsShared::kEnded;
            }
        }
        base += kTogether * kThreads;
        if (base - thread >= entries) break;
    }
    if (refused != 0) atomicOr(&shared.status, refused);
    __syncthreads();
    const int status = shared.status;
    if ((status & RowsShared::kEnded) == 0) return status;
#pragma unroll 1
    for (int i = thread; i < rows.depth * rows.columns; i += kThreads) {
        const int row = i / rows.columns;
        const int rank = i - row * rows.columns;
        if (rank >= shared.usable[row]) rows.coarse[row * rows.stride + rank] = kMuch;
    }
    __syncthreads();
    return status & ~RowsShared::kEnded;
}

template <int kThreads>
__device__ __forceinline__ int load_rows(const Sizes& sizes, const float* log_probs, const int32_t* token_ids,
                                         int32_t* tokens, Rows& rows, RowsShared& shared) {
    constexpr int kTogether = kThreads == 1024 ? 2 : 4;
    if (sizes.horizon * sizes.topk <= kThreads)
        return load_rows_by<kThreads, 1>(sizes, log_probs, token_ids, tokens, rows, shared);
    return load_rows_by<kThreads, kTogether>(sizes, log_probs, token_ids, tokens, rows, shared);
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_ROWS_CUH
