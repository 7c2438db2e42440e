// SPDX-License-Identifier: Apache-2.0
//
// How the blocks of a row bring their candidates together. In a cluster they write into the shared memory of the block
// that merges; elsewhere into the workspace, and the block that comes last merges. Either way the merge reads the same
// lists in the same order, so its answer does not depend on who was first.
#ifndef KDTREE_CUDA_DRAFT_TOPK_HAND_OVER_CUH
#define KDTREE_CUDA_DRAFT_TOPK_HAND_OVER_CUH

#include <cstdint>

#include "cuda/draft_topk/cluster.cuh"
#include "cuda/draft_topk/group.cuh"
#include "cuda/draft_topk/layout.cuh"
#include "cuda/draft_topk/merge_parts.cuh"
#include "cuda/draft_topk/queue.cuh"
#include "cuda/draft_topk/select.cuh"
#include "cuda/ticket.cuh"

namespace kdt::cuda::draft_topk {

__device__ inline Mail mail_of_row(const Mail& all, const Plan& plan, int row) {
    const int64_t first = int64_t{row} * plan.blocks();
    return {all.parts + first * kWarps, all.counts + first, all.lists + first * plan.slots};
}

// Lists the logits of the queued groups that reach `limit`, in no order. True when they are more than `slots`.
template <class T>
__device__ bool list_candidates(Shared& shared, const Queue& queue, const Segment<T>& segment, uint64_t limit,
                                uint64_t* list, int slots) {
    constexpr int kLogits = Group<T>::kLogits;
    constexpr int kEach = 2;  // independent of each other, to hide what each waits for
    const int places = min(*queue.count, queue.capacity) * kLogits;
    const T* const logits = reinterpret_cast<const T*>(queue.words);
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    bool full = false;
    for (int first = static_cast<int>(threadIdx.x) - lane; first < places; first += kEach * kThreads) {
        uint64_t candidates[kEach];
        bool reaches[kEach];
        int to[kEach];
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            const int i = first + k * kThreads + lane;
            candidates[k] = 0;
            reaches[k] = false;
            if (i >= places) continue;
            const uint32_t token = segment.token_of(queue.group[i / kLogits], i % kLogits);
            candidates[k] = candidate_of(key_of<T>(Keys<T>::value(logits[i])), static_cast<int>(token));
            reaches[k] = segment.is_token(token) && candidates[k] >= limit;
        }
        append_places(reaches, &shared.listed, to);
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
            if (!reaches[k]) continue;
            if (to[k] < slots)
                list[to[k]] = candidates[k];
            else
                full = true;
        }
    }
    return full;
}

// The same when they were too many: a limit among the candidates themselves.
template <class T>
__device__ void list_fewer_candidates(TopkBlock& block, Shared& shared, const Queue& queue, const Segment<T>& segment,
                                      const Plan& plan, uint64_t* list) {
    constexpr int kLogits = Group<T>::kLogits;
    const int places = min(*queue.count, queue.capacity) * kLogits;
    const T* const logits = reinterpret_cast<const T*>(queue.words);
    const uint64_t limit =
        cut<Keys<T>::kBits>(block, plan.topk, plan.slots, plan.token_bits, [&](uint64_t trial) -> uint32_t {
            uint32_t reached = 0;
            for (int i = threadIdx.x; i < places; i += kThreads) {
                const uint32_t token = segment.token_of(queue.group[i / kLogits], i % kLogits);
                const uint64_t candidate = candidate_of(key_of<T>(Keys<T>::value(logits[i])), static_cast<int>(token));
                reached += segment.is_token(token) && candidate >= trial ? 1 : 0;
            }
            return reached;
        });
    if (threadIdx.x == 0) shared.listed = 0;
    __syncthreads();
    list_candidates<T>(shared, queue, segment, limit, list, plan.slots);
    __syncthreads();
}

// Lists at most `slots` candidates, among them the topk best of the segment. Answers how many; ends with a barrier.
template <class T>
__device__ int list_best(TopkBlock& block, Shared& shared, const Queue& queue, const Segment<T>& segment,
                         const Plan& plan, uint32_t limit_key, uint64_t* list) {
    const bool full =
        list_candidates<T>(shared, queue, segment, static_cast<uint64_t>(limit_key) << 32, list, plan.slots);
    if (__syncthreads_or(full ? 1 : 0)) list_fewer_candidates<T>(block, shared, queue, segment, plan, list);
    return min(shared.listed, plan.slots);
}

// Sends this block's list to the first block of the cluster.
__device__ inline void send_list(Shared& shared, const Plan& plan, const Mail& mail, int rank, int count) {
    uint64_t* const signal = &shared.lists_here;
    for (int i = threadIdx.x; i < count; i += kThreads)
        send(mail.lists + rank * plan.slots + i, mail.lists[i], signal, 0);
    if (threadIdx.x != 0) return;
    send(reinterpret_cast<uint32_t*>(mail.counts + rank), static_cast<uint32_t>(count), signal, 0);
    expect_in(signal, 0, count * static_cast<int>(sizeof(uint64_t)) + static_cast<int>(sizeof(int32_t)));
}

// The workspace's mail into shared memory.
__device__ inline void fetch(const Plan& plan, const Mail& from, const Mail& to) {
    const int tid = static_cast<int>(threadIdx.x);
    for (int i = tid; i < plan.blocks() * kWarps; i += kThreads) {
        const float4 part = __ldcg(reinterpret_cast<const float4*>(from.parts) + i);
        to.parts[i] = {part.x, part.y, static_cast<int32_t>(__float_as_uint(part.z)), 0};
    }
    for (int rank = 0; rank < plan.blocks(); ++rank) {
        const int count = __ldcg(from.counts + rank);
        if (tid == 0) to.counts[rank] = count;
        for (int i = tid; i < count; i += kThreads)
            to.lists[rank * plan.slots + i] = __ldcg(from.lists + rank * plan.slots + i);
    }
}

// Brings the candidates of the row's blocks into `mine`, this block's shared memory; false in blocks that are done.
// `posted` is where parts went.
template <class T, Meet kMeet>
__device__ bool hand_over(TopkBlock& block, Shared& shared, const Queue& queue, const Segment<T>& segment,
                          const Plan& plan, uint32_t limit_key, const Mail& posted, const Mail& mine, int row,
                          int rank) {
    const int tid = static_cast<int>(threadIdx.x);
    if (kMeet == Meet::alone) {
        const int count = list_best<T>(block, shared, queue, segment, plan, limit_key, mine.lists);
        if (tid == 0) mine.counts[0] = count;
        __syncthreads();
        return true;
    }
    if (kMeet == Meet::cluster) {
        const int count = list_best<T>(block, shared, queue, segment, plan, limit_key, mine.lists);
        if (rank != 0) {
            send_list(shared, plan, mine, rank, count);
            return false;
        }
        if (tid == 0) mine.counts[0] = count;
        if (tid / kWarpSize == kWarps - 1) {
            wait_for(&shared.parts_here);
            merge_parts(shared, plan, mine);
        }
        wait_for(&shared.lists_here);
        __syncthreads();
        return true;
    }
    const int count = list_best<T>(block, shared, queue, segment, plan, limit_key, posted.lists + rank * plan.slots);
    if (tid == 0) posted.counts[rank] = count;
    __syncthreads();
    if (tid == 0) shared.merges = is_last_arriver(plan.tickets + row, plan.blocks());
    __syncthreads();
    if (!shared.merges) return false;
    fetch(plan, posted, mine);
    __syncthreads();
    return true;
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_HAND_OVER_CUH
