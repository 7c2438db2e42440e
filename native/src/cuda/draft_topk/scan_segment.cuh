// SPDX-License-Identifier: Apache-2.0
//
// A block reads its segment of a row once, tile by tile. It sums the exponentials and puts the groups that may hold
// some of the topk best into a queue.
#ifndef KDTREE_CUDA_DRAFT_TOPK_SCAN_SEGMENT_CUH
#define KDTREE_CUDA_DRAFT_TOPK_SCAN_SEGMENT_CUH

#include <cstdint>

#include "cuda/draft_topk/cluster.cuh"
#include "cuda/draft_topk/exp_sum.cuh"
#include "cuda/draft_topk/group.cuh"
#include "cuda/draft_topk/layout.cuh"
#include "cuda/draft_topk/queue.cuh"
#include "cuda/draft_topk/select.cuh"
#include "cuda/draft_topk/threshold.cuh"

namespace kdt::cuda::draft_topk {

template <class T>
__device__ __forceinline__ void add_ragged(const Queue& queue, const Segment<T>& segment, int group, ExpSum& exps,
                                           uint32_t& top) {
    if (group < 0) return;
    const uint4 words = segment.load_ragged(group);
    const uint32_t packed = packed_max<T>(words);
    top = Group<T>::packed_max(top, packed);
    exps.refer_to(Group<T>::unpacked_max(packed));
    exps.add<T>(words);
    queue.push(words, group);
}

// Leaves the queue, behind a barrier, and each warp's part in the mail. Answers a key that the topk best of the row
// reach; `rank` is the block's in its row. With kWhole the first tile is the whole segment.
template <class T, Meet kMeet, int kDepth, bool kWhole>
__device__ uint32_t scan_segment(TopkBlock& block, Shared& shared, const Queue& queue, const Segment<T>& segment,
                                 const Plan& plan, const Mail& mail, int rank) {
    constexpr int kTile = kThreads * kDepth;
    ExpSum exps;
    uint32_t top = Group<T>::kNothing;
    // Groups that are not whole are queued in any case, and are no base for a threshold.
    if (threadIdx.x == 0) {
        add_ragged<T>(queue, segment, segment.ragged_begin, exps, top);
        add_ragged<T>(queue, segment, segment.ragged_end, exps, top);
    }

    const int mine = segment.whole_begin + static_cast<int>(threadIdx.x);
    uint4 held[kDepth];
    uint4 next[kDepth];
#pragma unroll
    for (int u = 0; u < kDepth; ++u) held[u] = segment.load(mine + u * kThreads);
    if (!kWhole)
#pragma unroll
        for (int u = 0; u < kDepth; ++u) next[u] = segment.load(mine + kTile + u * kThreads);

    // First tile: a threshold that at least topk of its groups reach, or of the groups of the first tiles of all blocks
    // of the cluster. Of equal groups, the first ones count.
    uint32_t keys[kDepth] = {};
    const auto order = [&](int u) {
        const uint32_t place = static_cast<uint32_t>(rank) << kTilePlaceBits | (u * kThreads + threadIdx.x);
        return keys[u] != 0 ? Keys<T>::order(keys[u], place) : 0u;
    };
    uint32_t best = 0;
#pragma unroll
    for (int u = 0; u < kDepth; ++u) {
        const uint32_t packed = packed_max<T>(held[u]);
        keys[u] = mine + u * kThreads < segment.whole_end ? key_of<T>(Group<T>::unpacked_max(packed)) : 0u;
        best = max(best, order(u));
        top = Group<T>::packed_max(top, packed);
    }
    const bool few = kDepth == kWholeDepth || plan.topk <= kFewTopk;
    if (few) {
        if (kMeet == Meet::cluster) {
            wait_for_start();
            const int samples = plan.blocks() == kMaxBlocks ? 2 * kSamples : kSamples;
            if (threadIdx.x == 0) expect_in(&shared.samples_here, rank, samples * static_cast<int>(sizeof(uint32_t)));
        }
        give_sample<kMeet>(shared, plan, rank, best);
    }
    exps.refer_to(Group<T>::unpacked_max(top));
#pragma unroll
    for (int u = 0; u < kDepth; ++u)
        if (segment.has_any(mine + u * kThreads)) exps.add<T>(held[u]);
    const int tiles = kWhole ? 1 : (segment.whole_end - segment.whole_begin + kTile - 1) / kTile;
    const bool all_began = few || kMeet != Meet::cluster;  // known of the blocks of the cluster
    if (tiles <= 1 && all_began)                           // while other warps still add
        store_part<T, kMeet>(shared, mail, rank, exps, Group<T>::unpacked_max(top));

    bool reaches[kDepth];
    uint32_t limit_key;
    bool strict = true;  // whether a logit of another tile must be above the limit, or just reach it
    if (few) {
        if (kMeet == Meet::cluster)
            wait_for(&shared.samples_here);
        else
            __syncthreads();
        const bool twins = kMeet == Meet::cluster && plan.blocks() == kMaxBlocks;
        find_threshold(shared.samples[0], twins ? shared.samples[1] : nullptr, plan.topk, shared.threshold);
        __syncthreads();
        const uint32_t limit = max(shared.threshold, 1u);
#pragma unroll
        for (int u = 0; u < kDepth; ++u) reaches[u] = order(u) >= limit;
        limit_key = Keys<T>::key_of_order(limit);
        if (kMeet == Meet::cluster) strict = comes_after<T>(plan, rank, limit);
    } else {
        const auto candidate = [&](int u) {
            return keys[u] != 0 ? candidate_of(keys[u], mine + u * kThreads) : uint64_t{0};
        };
        const uint64_t limit = cut<Keys<T>::kBits>(block, plan.topk, min(plan.topk + plan.topk / 4, plan.keep),
                                                   plan.group_bits, [&](uint64_t trial) -> uint32_t {
                                                       uint32_t reached = 0;
#pragma unroll
                                                       for (int u = 0; u < kDepth; ++u)
                                                           reached += candidate(u) >= trial ? 1 : 0;
                                                       return reached;
                                                   });
#pragma unroll
        for (int u = 0; u < kDepth; ++u) reaches[u] = candidate(u) >= limit;
        limit_key = candidate_key(limit);
    }
    bool full = false;
    int to[kDepth];
    append_places(reaches, queue.count, to);
#pragma unroll
    for (int u = 0; u < kDepth; ++u)
        if (reaches[u]) full |= queue.put(to[u], held[u], mine + u * kThreads);

    // The other tiles. Where there are any, the first was full: its threshold is that of topk groups.
    int at = mine + kTile;
    for (int tile = 1;; ++tile) {
        if (__syncthreads_or(full ? 1 : 0)) {
            limit_key = thin_queue<T, kDepth>(block, queue, plan, segment.ragged_end);
            strict = true;
#pragma unroll
            for (int u = 0; u < kDepth && !kWhole; ++u)
                next[u] = segment.load(at + u * kThreads);  // so that it needs no registers
        }
        if (tile >= tiles) break;
        if (few && kMeet != Meet::cluster && (tile == kRefresh || tile == 2 * kRefresh)) {
            const uint32_t key = limit_so_far<T>(shared, segment, plan, Group<T>::unpacked_max(top));
            if (key >= limit_key) strict = true;
            limit_key = max(limit_key, key);
        }
        const float threshold = threshold_of<T>(limit_key, strict);
        float look_above = fminf(threshold, exps.renew_above);
        full = false;
        const auto step = [&](auto has_any, auto load) {
#pragma unroll
            for (int u = 0; u < kDepth; ++u) {
                const uint32_t packed = packed_max<T>(next[u]);
                const float largest = Group<T>::unpacked_max(packed);
                top = Group<T>::packed_max(top, packed);
                if (largest > look_above) {
                    if (largest > threshold) full |= queue.push(next[u], at + u * kThreads);
                    exps.refer_to(largest);
                    look_above = fminf(threshold, exps.renew_above);
                }
                if (has_any(u)) exps.add<T>(next[u]);
                next[u] = load(u);
            }
        };
        const uint4* const from = segment.address(at + kTile);
        if (segment.whole_begin + (tile + 2) * kTile <= segment.whole_end)
            step([](int) { return true; }, [&](int u) { return __ldg(from + u * kThreads); });
        else
            step([&](int u) { return segment.has_any(at + u * kThreads); },
                 [&](int u) { return segment.load(at + kTile + u * kThreads); });
        at += kTile;
    }
    if (!all_began) wait_for_start();
    if (tiles > 1 || !all_began) store_part<T, kMeet>(shared, mail, rank, exps, Group<T>::unpacked_max(top));
    return limit_key;
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_SCAN_SEGMENT_CUH
