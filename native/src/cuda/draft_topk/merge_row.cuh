// SPDX-License-Identifier: Apache-2.0
//
// Second kernel of draft_topk: a block a row merges what the row's chunks left.
#ifndef KDTREE_CUDA_DRAFT_TOPK_MERGE_ROW_CUH
#define KDTREE_CUDA_DRAFT_TOPK_MERGE_ROW_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/draft_topk/layout.cuh"
#include "cuda/draft_topk/scan_chunk.cuh"
#include "cuda/draft_topk/select.cuh"
#include "cuda/ptx/math.cuh"

namespace kdt::cuda::draft_topk {

// The candidates of a row, with holes where a chunk kept fewer than it might have.
struct RowCandidates {
    const uint64_t* items;  // [chunks, slots]
    const int* counts;      // [chunks]
    int slots;
    int length;  // chunks * slots

    // 0, below every candidate, for a hole.
    __device__ uint64_t at(int i) const {
        const int chunk = i / slots;
        return i - chunk * slots < counts[chunk] ? items[i] : 0u;
    }
};

// Gathers the candidates that reach `limit` into `items`, in no order; returns how many there are, stored or not.
__device__ inline int gather(const RowCandidates& row, uint64_t limit, uint64_t* items, int* counter) {
    __syncthreads();
    if (threadIdx.x == 0) *counter = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < row.length; i += kThreads) {
        const uint64_t item = row.at(i);
        if (item == 0 || item < limit) continue;
        const int to = atomicAdd(counter, 1);
        if (to < kSortCapacity) items[to] = item;
    }
    __syncthreads();
    return *counter;
}

// The topk-th largest candidate itself: all differ, so exactly topk reach it.
__device__ inline uint64_t exact_limit(TopkBlock& block, const RowCandidates& row, uint32_t topk) {
    uint64_t limit = 0;
    for (int bit = 63; bit >= 0; --bit) {
        const uint64_t trial = limit | uint64_t{1} << bit;
        uint32_t reached = 0;
        for (int i = threadIdx.x; i < row.length; i += kThreads) reached += row.at(i) >= trial ? 1 : 0;
        if (block.sum(reached) >= topk) limit = trial;
    }
    return limit;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_row(const Plan plan, float* topk_log_probs, int32_t* topk_token_ids, int32_t* statuses) {
    __shared__ TopkBlock::Shared block_shared;
    __shared__ float sums[kThreads / kWarpSize];
    __shared__ int counts[kMaxChunks];
    __shared__ uint64_t items[kSortCapacity];
    __shared__ int counter;
    __shared__ int refused;

    TopkBlock block(block_shared);
    const int64_t row = blockIdx.x;
    const Partial* const partials = plan.partials + row * plan.chunks;
    float* const log_probs = topk_log_probs + row * plan.topk;
    int32_t* const token_ids = topk_token_ids + row * plan.topk;
    if (threadIdx.x == 0) refused = 0;
    __syncthreads();

    uint32_t max_key = 0;
    for (int c = threadIdx.x; c < plan.chunks; c += kThreads) {
        counts[c] = partials[c].count;
        max_key = max(max_key, partials[c].max_key);
        if (partials[c].status != 0) atomicOr(&refused, partials[c].status);
    }
    max_key = block.max(max_key);
    if (threadIdx.x == 0) statuses[row] = refused;
    if (refused != 0) {
        for (int k = threadIdx.x; k < plan.topk; k += kThreads) {
            log_probs[k] = NAN;
            token_ids[k] = -1;
        }
        return;
    }

    const float largest = logit_of<T>(max_key);
    float sum = 0.0f;
    if (largest > -INFINITY)
        for (int c = threadIdx.x; c < plan.chunks; c += kThreads)
            sum += partials[c].sum * ptx::exp2_approx((logit_of<T>(partials[c].max_key) - largest) * kLog2e);
    sum = fixed_order_sum(sum, sums);
    // The sum counts the maximum itself as 1, so its logarithm is not negative and no log-prob is above zero. When
    // every logit is -inf no token is possible, and each keeps its -inf.
    const float logsumexp =
        largest > -INFINITY ? static_cast<float>(static_cast<double>(largest) + logf(fmaxf(sum, 1.0f))) : 0.0f;

    // As in the first kernel: the topk-th largest of some maxima bounds the topk-th largest of all.
    const RowCandidates candidates = {plan.candidates + row * plan.chunks * plan.slots, counts, plan.slots,
                                      plan.chunks * plan.slots};
    uint32_t group_max[kGroups] = {};
    for (int base = threadIdx.x; base < candidates.length; base += kGroups * kThreads) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            const int i = base + g * kThreads;
            if (i < candidates.length) group_max[g] = max(group_max[g], candidate_key(candidates.at(i)));
        }
    }
    const uint64_t limit = static_cast<uint64_t>(reached_by(block, group_max, plan.topk, 16)) << 32;
    int found = gather(candidates, limit, items, &counter);
    if (found > kSortCapacity) found = gather(candidates, exact_limit(block, candidates, plan.topk), items, &counter);

    int size = 2;
    while (size < found) size *= 2;
    for (int i = found + threadIdx.x; i < size; i += kThreads) items[i] = 0;
    sort_descending(items, size);
    for (int k = threadIdx.x; k < plan.topk; k += kThreads) {
        // Logit and logsumexp are both float32: their difference is then a multiple of 2^-40 for ordinary logits, and
        // the fixed-point scores of a tree are exact.
        log_probs[k] = logit_of<T>(candidate_key(items[k])) - logsumexp;
        token_ids[k] = candidate_token(items[k]);
    }
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_MERGE_ROW_CUH
