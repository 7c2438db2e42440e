// SPDX-License-Identifier: Apache-2.0
//
// One block merges what the blocks of its row handed over: the logsumexp, and the topk best candidates in order.
#ifndef KDTREE_CUDA_DRAFT_TOPK_MERGE_ROW_CUH
#define KDTREE_CUDA_DRAFT_TOPK_MERGE_ROW_CUH

#include <cmath>
#include <cstdint>

#include "cuda/draft_topk/group.cuh"
#include "cuda/draft_topk/layout.cuh"
#include "cuda/draft_topk/merge_parts.cuh"
#include "cuda/draft_topk/select.cuh"

namespace kdt::cuda::draft_topk {

// The share of one thread in the lists: all blocks' lists are read at once, each by as many warps as there are. The
// first few candidates stay in registers; there are seldom more.
struct ListShare {
    static constexpr int kHeld = 4;

    uint64_t held[kHeld];
    const uint64_t* list;
    int first;  // of the warp's others
    int count;
    int step;
    int before;  // candidates in the lists before this one
    int total;   // in all

    __device__ ListShare(const Plan& plan, const Mail& mail) {
        const int warps = kWarps >> plan.blocks_log2;
        const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
        const int rank = warp * plan.blocks() / kWarps;
        list = mail.lists + rank * plan.slots;
        count = mail.counts[rank];
        step = warps * kWarpSize;
        first = (warp & (warps - 1)) * kWarpSize;
        before = 0;
        total = 0;
#pragma unroll
        for (int other = 0; other < kMaxBlocks; ++other) {
            const int others = other < plan.blocks() ? mail.counts[other] : 0;
            total += others;
            before += other < rank ? others : 0;
        }
#pragma unroll
        for (int k = 0; k < kHeld; ++k) {
            held[k] = at(first);
            first += step;
        }
    }

    // Stores all, one list behind the other.
    __device__ __forceinline__ void store(uint64_t* to) const {
        const int begin = first - kHeld * step + static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
        for (int k = 0; k < kHeld; ++k)
            if (begin + k * step < count) to[before + begin + k * step] = held[k];
        for (int i = begin + kHeld * step; i < count; i += step) to[before + i] = list[i];
    }

    // For the lane of a warp; 0 behind the end.
    __device__ __forceinline__ uint64_t at(int warp_first) const {
        const int i = warp_first + static_cast<int>(threadIdx.x) % kWarpSize;
        return i < count ? list[i] : 0u;
    }

    template <class Use>
    __device__ __forceinline__ void each(Use use) const {
#pragma unroll
        for (int k = 0; k < kHeld; ++k) use(held[k]);
        for (int i = first; i < count; i += step) use(at(i));
    }
};

// Gathers the candidates that `wants` wants, in no order; answers how many they are, stored or not.
template <class Wants>
__device__ int gather(Shared& shared, const ListShare& share, uint64_t* finalists, Wants wants) {
    bool wanted[ListShare::kHeld];
    int to[ListShare::kHeld];
#pragma unroll
    for (int k = 0; k < ListShare::kHeld; ++k) wanted[k] = share.held[k] != 0 && wants(share.held[k]);
    append_places(wanted, &shared.finalists, to);
#pragma unroll
    for (int k = 0; k < ListShare::kHeld; ++k)
        if (wanted[k] && to[k] < kMaxFinalists) finalists[to[k]] = share.held[k];
    for (int i = share.first; i < share.count; i += share.step) {
        const uint64_t candidate = share.at(i);
        const bool one[1] = {candidate != 0 && wants(candidate)};
        int place[1];
        append_places(one, &shared.finalists, place);
        if (one[0] && place[0] < kMaxFinalists) finalists[place[0]] = candidate;
    }
    __syncthreads();
    return shared.finalists;
}

// Gathers the topk best of many candidates, and at most `room`; answers how many. Zeros follow, up to kMaxRanked.
template <class T>
__device__ int gather_best(TopkBlock& block, Shared& shared, const Plan& plan, const ListShare& share,
                           uint64_t* finalists, int room) {
    const int tid = static_cast<int>(threadIdx.x);
    if (tid < kMaxRanked) finalists[tid] = 0;
    uint32_t order_limit = 0;
    const int place_shift = max(plan.token_bits - 16, 0);
    const auto order = [&](uint64_t candidate) {
        return candidate == 0 ? 0u
                              : Keys<T>::order(candidate_key(candidate),
                                               static_cast<uint32_t>(candidate_place(candidate)) >> place_shift);
    };
    if (plan.topk <= kFewTopk) {
        uint32_t best = 0;
        share.each([&](uint64_t candidate) { best = max(best, order(candidate)); });
        constexpr int kThreadsOfSample = kThreads / kSamples;
#pragma unroll
        for (int step = 1; step < kThreadsOfSample; step *= 2) best = max(best, __shfl_xor_sync(kAllLanes, best, step));
        if (tid % kThreadsOfSample == 0)
            shared.merge_samples[tid / kThreadsOfSample] = sample_of(best, tid / kThreadsOfSample);
        __syncthreads();
        find_threshold(shared.merge_samples, nullptr, plan.topk, shared.merge_threshold);
        __syncthreads();
        order_limit = shared.merge_threshold;
    } else {
        __syncthreads();  // the zeros are written
    }
    int found = gather(shared, share, finalists, [&](uint64_t candidate) { return order(candidate) >= order_limit; });
    if (found <= room) return found;

    // Still too many: equal logits, or topk is large.
    const uint64_t limit =
        cut<Keys<T>::kBits>(block, plan.topk, room, plan.token_bits, [&](uint64_t trial) -> uint32_t {
            uint32_t count = 0;
            share.each([&](uint64_t candidate) { count += candidate >= trial ? 1 : 0; });
            return count;
        });
    if (tid == 0) shared.finalists = 0;
    if (tid < kMaxRanked) finalists[tid] = 0;
    __syncthreads();
    return gather(shared, share, finalists, [&](uint64_t candidate) { return candidate >= limit; });
}

template <class T, Meet kMeet>
__device__ void merge_row(TopkBlock& block, Shared& shared, const Plan& plan, const Mail& mail, uint64_t* finalists,
                          float* log_probs, int32_t* token_ids, int32_t* status) {
    const int tid = static_cast<int>(threadIdx.x);
    const ListShare share(plan, mail);
    const int room = plan.topk <= kMaxRanked ? kMaxRanked : kMaxFinalists;
    // Few candidates are ranked as they are. Of many, as in a first tile, samples bound the topk-th largest from below,
    // and leave few.
    int found = share.total;
    if (share.total <= kMaxRanked) {
        share.store(finalists);
        if (tid >= share.total && tid < kMaxRanked) finalists[tid] = 0;
        __syncthreads();
    } else {
        found = gather_best<T>(block, shared, plan, share, finalists, room);
    }

    // Sorted, or few enough to be ranked. The last warp has the least to rank, and merges the parts meanwhile, where
    // they did not come before the lists.
    const bool ranked = found <= kMaxRanked;
    int my_rank = INT_MAX;
    if (kMeet != Meet::cluster && tid / kWarpSize == kWarps - 1) merge_parts(shared, plan, mail);
    if (ranked) {
        my_rank = rank_mine(finalists, found);
    } else {
        int size = kMaxRanked;
        while (size < found) size *= 2;
        for (int i = found + tid; i < size; i += kThreads) finalists[i] = 0;
        sort_descending(finalists, size);
    }
    __syncthreads();

    const auto answer = [&](int k, uint64_t candidate) {
        // Logit and logsumexp are both float32: their difference is then a multiple of 2^-40 for ordinary logits, and
        // the fixed-point scores of a tree are exact.
        log_probs[k] = logit_of<T>(candidate_key(candidate)) - shared.logsumexp;
        token_ids[k] = candidate_place(candidate);
    };
    if (tid == 0) *status = shared.refused;
    if (shared.refused != 0) {
        for (int k = tid; k < plan.topk; k += kThreads) {
            log_probs[k] = NAN;
            token_ids[k] = -1;
        }
    } else if (ranked) {
        if (my_rank < plan.topk) answer(my_rank, finalists[ranked_item()]);
    } else {
        for (int k = tid; k < plan.topk; k += kThreads) answer(k, finalists[k]);
    }
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_MERGE_ROW_CUH
