// SPDX-License-Identifier: Apache-2.0
//
// The queue of groups that may hold some of the topk best logits.
#ifndef KDTREE_CUDA_DRAFT_TOPK_QUEUE_CUH
#define KDTREE_CUDA_DRAFT_TOPK_QUEUE_CUH

#include <cstdint>

#include "cuda/draft_topk/group.cuh"
#include "cuda/draft_topk/layout.cuh"
#include "cuda/draft_topk/select.cuh"
#include "cuda/ptx/atomic.cuh"

namespace kdt::cuda::draft_topk {

// The queue of groups, in shared memory.
struct Queue {
    uint4* words;
    int32_t* group;
    int32_t* count;
    int capacity;
    int keep;

    // True when the queue must be thinned before the next tile.
    __device__ __forceinline__ bool push(const uint4& group_words, int number) const {
        return put(ptx::count_up(count), group_words, number);
    }

    __device__ __forceinline__ bool put(int to, const uint4& group_words, int number) const {
        if (to >= capacity) return true;
        words[to] = group_words;
        group[to] = number;
        return to >= keep;
    }
};

// Drops groups from the queue until no more than `keep` are left, among them the topk best: by their largest logit,
// then by their place, for in that order the topk best groups hold the topk best logits. Answers the key they reach.
// Group `last`, if it is there, stays but does not count: it comes behind groups that are not read yet.
template <class T, int kDepth>
__device__ uint32_t thin_queue(TopkBlock& block, const Queue& queue, const Plan& plan, int last) {
    constexpr int kEach = (kMaxKeep + kThreads * kDepth + kThreads - 1) / kThreads;
    const int count = min(*queue.count, queue.capacity);
    uint64_t best[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        const int i = k * kThreads + static_cast<int>(threadIdx.x);
        best[k] = 0;
        if (i < count && queue.group[i] != last)
            best[k] = candidate_of(key_of<T>(Group<T>::unpacked_max(packed_max<T>(queue.words[i]))), queue.group[i]);
    }
    const uint64_t limit =
        cut<Keys<T>::kBits>(block, plan.topk, plan.keep, plan.group_bits, [&](uint64_t trial) -> uint32_t {
            uint32_t reached = 0;
#pragma unroll
            for (int k = 0; k < kEach; ++k) reached += best[k] >= trial ? 1 : 0;
            return reached;
        });
    if (threadIdx.x == 0) *queue.count = 0;
    // In place: what a step writes lies behind what all steps up to it have read.
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        const int i = k * kThreads + static_cast<int>(threadIdx.x);
        uint4 words = {};
        int number = 0;
        const bool stays = best[k] >= limit || (i < count && queue.group[i] == last);
        if (stays) {
            words = queue.words[i];
            number = queue.group[i];
        }
        __syncthreads();
        if (stays) queue.push(words, number);
    }
    __syncthreads();
    return candidate_key(limit);
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_QUEUE_CUH
