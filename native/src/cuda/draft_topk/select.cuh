// SPDX-License-Identifier: Apache-2.0
//
// Thresholds and orders of candidates, by a whole block.
#ifndef KDTREE_CUDA_DRAFT_TOPK_SELECT_CUH
#define KDTREE_CUDA_DRAFT_TOPK_SELECT_CUH

#include <climits>
#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/draft_topk/layout.cuh"
#include "cuda/ptx/atomic.cuh"

namespace kdt::cuda::draft_topk {

// A limit that at least `wanted` candidates reach, found bit by bit from the top: the search ends as soon as no more
// than `enough` do, at the latest when exactly `wanted` do. 1, which all reach, when there are fewer. `reached(limit)`
// answers how many of a thread's own candidates reach a limit; places are below 2^place_bits.
template <int kKeyBits, class Reached>
__device__ uint64_t cut(TopkBlock& block, uint32_t wanted, uint32_t enough, int place_bits, Reached reached) {
    uint64_t limit = 0;
#pragma unroll 1
    for (int bit = 63; bit >= 64 - kKeyBits; --bit) {
        const uint64_t trial = limit | uint64_t{1} << bit;
        const uint32_t count = block.sum(reached(trial));
        if (count < wanted) continue;
        limit = trial;
        if (count <= enough) return limit;
    }
    if (limit == 0) return 1;
    // Equal keys: the lowest places. Above place_bits a place is all zeros, its complement all ones.
    limit |= ~uint32_t{0} << place_bits;
#pragma unroll 1
    for (int bit = place_bits - 1; bit >= 0; --bit) {
        const uint64_t trial = limit | uint64_t{1} << bit;
        const uint32_t count = block.sum(reached(trial));
        if (count < wanted) continue;
        limit = trial;
        if (count <= enough) return limit;
    }
    return limit;
}

// Samples: an order is a number that grows with a candidate's rank, perhaps equal for near ones (Keys<T>::order). The
// topk-th largest of the orders of any topk candidates or more is reached by at least topk candidates.
//
// A sample is the best of some threads' orders. Its low bits are its place among the samples, so that no two are equal;
// 0 is none.
constexpr uint32_t kPlaceOfSample = kSamples - 1;

__device__ __forceinline__ uint32_t sample_of(uint32_t order, int place) {
    return order == 0 ? 0u : (order & ~kPlaceOfSample) | static_cast<uint32_t>(place);
}

__device__ __forceinline__ uint2 max_of(const uint2& a, const uint2& b) {
    return {max(a.x, b.x), max(a.y, b.y)};
}
__device__ __forceinline__ uint4 max_of(const uint4& a, const uint4& b) {
    return {max(a.x, b.x), max(a.y, b.y), max(a.z, b.z), max(a.w, b.w)};
}

// Stores the topk-th largest sample as an order that topk candidates reach; 0 when there are fewer samples than that.
// Where `twins` are given, a sample is the greater of two. By the whole block.
__device__ inline void find_threshold(const uint32_t* samples, const uint32_t* twins, int topk, uint32_t& threshold) {
    constexpr int kShare = 2 * kThreads / kSamples;  // threads that compare the same two samples
    const int part = static_cast<int>(threadIdx.x) % kShare;
    const auto at = [](const uint32_t* from, int i, auto vector) {
        return reinterpret_cast<const decltype(vector)*>(from)[i];
    };
    uint2 mine = at(samples, threadIdx.x / kShare, uint2{});
    if (twins != nullptr) mine = max_of(mine, at(twins, threadIdx.x / kShare, uint2{}));
    int greater[2] = {0, 0};
#pragma unroll
    for (int i = part; i < kSamples / 4; i += kShare) {
        uint4 others = at(samples, i, uint4{});
        if (twins != nullptr) others = max_of(others, at(twins, i, uint4{}));
        greater[0] += (others.x > mine.x) + (others.y > mine.x) + (others.z > mine.x) + (others.w > mine.x);
        greater[1] += (others.x > mine.y) + (others.y > mine.y) + (others.z > mine.y) + (others.w > mine.y);
    }
    int both = greater[0] | greater[1] << 16;
#pragma unroll
    for (int step = 1; step < kShare; step *= 2) both += __shfl_xor_sync(kAllLanes, both, step);
    if (part != 0) return;
    const auto is_it = [&](uint32_t sample, int rank) { return sample == 0 ? rank < topk : rank == topk - 1; };
    if (is_it(mine.x, both & 0xffff)) threshold = mine.x & ~kPlaceOfSample;
    if (is_it(mine.y, both >> 16)) threshold = mine.y & ~kPlaceOfSample;
}

// Ranks items[0 .. count), all different, with zeros from there to kMaxRanked. Each thread compares kRankEach items
// with a part of all; it ends with the rank of items[ranked_item()], or INT_MAX if it is not to answer for one.
constexpr int kRankEach = 4;
constexpr int kRankShare = kRankEach * kThreads / kMaxRanked;  // threads that compare the same items
static_assert(kRankShare >= kRankEach, "one of them answers for each");

__device__ __forceinline__ int ranked_item() {
    const int tid = static_cast<int>(threadIdx.x);
    return tid / kRankShare * kRankEach + tid % kRankShare % kRankEach;
}

__device__ inline int rank_mine(const uint64_t* items, int count) {
    const int tid = static_cast<int>(threadIdx.x);
    const int part = tid % kRankShare;
    if (tid / kWarpSize * (kRankEach * kWarpSize / kRankShare) >= count) return INT_MAX;
    uint64_t mine[kRankEach];
    int greater[kRankEach] = {};
#pragma unroll
    for (int k = 0; k < kRankEach; ++k) mine[k] = items[tid / kRankShare * kRankEach + k];
#pragma unroll 2
    for (int i = part; i * 2 < count; i += kRankShare) {
        const ulonglong2 others = reinterpret_cast<const ulonglong2*>(items)[i];
#pragma unroll
        for (int k = 0; k < kRankEach; ++k) greater[k] += (others.x > mine[k] ? 1 : 0) + (others.y > mine[k] ? 1 : 0);
    }
    __syncwarp();
    int low = greater[0] | greater[1] << 16;
    int high = greater[2] | greater[3] << 16;
#pragma unroll
    for (int step = 1; step < kRankShare; step *= 2) {
        low += __shfl_xor_sync(kAllLanes, low, step);
        high += __shfl_xor_sync(kAllLanes, high, step);
    }
    const int rank = (part & 2 ? high : low) >> (part & 1) * 16 & 0xffff;
    return part < kRankEach && ranked_item() < count ? rank : INT_MAX;
}

// Places for what a warp's lanes want to append to an array of `*count` items: those of to[] whose keep[] is set. All
// lanes of the warp call it.
template <int kEach>
__device__ __forceinline__ void append_places(const bool (&keep)[kEach], int32_t* count, int (&to)[kEach]) {
    uint32_t wanted[kEach];
    int total = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
        wanted[k] = __ballot_sync(kAllLanes, keep[k]);
        to[k] = total;
        total += __popc(wanted[k]);
    }
    if (total == 0) return;
    const uint32_t lane = threadIdx.x % kWarpSize;
    int first = 0;
    if (lane == 0) first = ptx::add_to(count, total);
    first = __shfl_sync(kAllLanes, first, 0);
#pragma unroll
    for (int k = 0; k < kEach; ++k) to[k] += first + __popc(wanted[k] & ((1u << lane) - 1));
}

// Sorts items[0 .. size) descending; size is a power of two (bitonic network).
__device__ inline void sort_descending(uint64_t* items, int size) {
    for (int run = 2; run <= size; run *= 2) {
        for (int gap = run / 2; gap > 0; gap /= 2) {
            // Up to a gap of 32, a warp's pairs lie among the same 64 items.
            if (run == 2 || gap > kWarpSize || (gap == kWarpSize && run > 2 * kWarpSize))
                __syncthreads();
            else
                __syncwarp();
            for (int i = threadIdx.x; i < size / 2; i += kThreads) {
                const int a = 2 * i - (i & (gap - 1));
                const int b = a + gap;
                const bool descending = (a & run) == 0;
                const uint64_t x = items[a];
                const uint64_t y = items[b];
                if ((x < y) == descending) {
                    items[a] = y;
                    items[b] = x;
                }
            }
        }
    }
    __syncthreads();
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_SELECT_CUH
