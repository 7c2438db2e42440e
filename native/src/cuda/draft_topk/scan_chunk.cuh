// SPDX-License-Identifier: Apache-2.0
//
// First kernel of draft_topk: a block reads one chunk of a row, once, into registers. It leaves the chunk's maximum and
// sum of exponentials, and the candidates among which the chunk's best topk are.
#ifndef KDTREE_CUDA_DRAFT_TOPK_SCAN_CHUNK_CUH
#define KDTREE_CUDA_DRAFT_TOPK_SCAN_CHUNK_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/draft_topk/layout.cuh"
#include "cuda/draft_topk/select.cuh"
#include "cuda/ptx/math.cuh"

namespace kdt::cuda::draft_topk {

constexpr float kLog2e = 1.44269504f;

// Eight neighbouring logits; what lies at or behind `end` is left alone, and the others' number is returned.
//
// `whole` is a comparison of its own because of ptxas 13.0 for sm_90a: max(0, min(8, x)) == 8 became a predicate of
// VIMNMX.RELU under which threads behind the end took the vector loads (reads out of range, seen on an H200).
__device__ __forceinline__ int load_group(const uint16_t* row, int at, int end, bool vector_loads,
                                          uint32_t (&raw)[kGroup]) {
    const bool whole = at + kGroup <= end;
    const int valid = whole ? kGroup : max(0, end - at);
    if (vector_loads && whole) {
        const uint4 packed = __ldg(reinterpret_cast<const uint4*>(row + at));
        const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            raw[2 * i] = words[i] & 0xffffu;
            raw[2 * i + 1] = words[i] >> 16;
        }
    } else {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) raw[i] = i < valid ? row[at + i] : 0u;
    }
    return valid;
}

__device__ __forceinline__ int load_group(const float* row, int at, int end, bool vector_loads,
                                          uint32_t (&raw)[kGroup]) {
    const bool whole = at + kGroup <= end;
    const int valid = whole ? kGroup : max(0, end - at);
    if (vector_loads && whole) {
        const uint4 low = __ldg(reinterpret_cast<const uint4*>(row + at));
        const uint4 high = __ldg(reinterpret_cast<const uint4*>(row + at) + 1);
        const uint32_t words[kGroup] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < kGroup; ++i) raw[i] = words[i];
    } else {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) raw[i] = i < valid ? __float_as_uint(row[at + i]) : 0u;
    }
    return valid;
}

// The logits of one thread as keys; 0 where the chunk has none. Flat index g * kGroup + i.
struct Held {
    uint32_t key[kGroups * kGroup];

    __device__ int token(int chunk_begin, int at) const {
        return chunk_begin + ((at / kGroup) * kThreads + static_cast<int>(threadIdx.x)) * kGroup + at % kGroup;
    }
};

// The chunk's best min(topk, all) exactly, equal logits by ascending token id, when a threshold on the maxima of groups
// let too many pass (many equal logits, or large ones side by side). Returns how many.
template <class T>
__device__ int keep_exactly(TopkBlock& block, const Plan& plan, const Held& held, int chunk_begin, uint64_t* kept) {
    const uint32_t wanted = plan.topk;
    const uint32_t cut = reached_by(block, held.key, wanted, Keys<T>::kBits);
    uint32_t above = 0;
#pragma unroll
    for (int i = 0; i < kGroups * kGroup; ++i) above += held.key[i] > cut ? 1 : 0;
    uint32_t all_above;
    uint32_t to = block.exclusive_scan(above, all_above);
#pragma unroll
    for (int i = 0; i < kGroups * kGroup; ++i)
        if (held.key[i] > cut) kept[to++] = candidate_of(held.key[i], held.token(chunk_begin, i));
    if (cut == 0) return static_cast<int>(all_above);

    // Group g of all threads comes before group g + 1 of any: that is the order of token ids.
    uint32_t placed = all_above;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
        uint32_t ties = 0;
#pragma unroll
        for (int i = g * kGroup; i < (g + 1) * kGroup; ++i) ties += held.key[i] == cut ? 1 : 0;
        uint32_t all_ties;
        uint32_t place = placed + block.exclusive_scan(ties, all_ties);
#pragma unroll
        for (int i = g * kGroup; i < (g + 1) * kGroup; ++i) {
            if (held.key[i] != cut) continue;
            if (place < wanted) kept[place] = candidate_of(held.key[i], held.token(chunk_begin, i));
            ++place;
        }
        placed += all_ties;
    }
    return static_cast<int>(min(placed, wanted));
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) scan_chunk(const T* logits, const Plan plan) {
    __shared__ TopkBlock::Shared block_shared;
    __shared__ float sums[kThreads / kWarpSize];
    __shared__ int refused;

    TopkBlock block(block_shared);
    const int unit = blockIdx.x;
    const int row = unit / plan.chunks;
    const int begin = (unit - row * plan.chunks) * plan.chunk;
    const int end = min(plan.vocab_size, begin + plan.chunk);
    const T* const values = logits + int64_t{row} * plan.vocab_size;
    if (threadIdx.x == 0) refused = 0;

    Held held;
    uint32_t max_key = 0;
    int status = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
        uint32_t raw[kGroup];
        const int at = held.token(begin, g * kGroup);
        const int valid = load_group(values, at, end, plan.vector_loads, raw);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
            const float logit = Keys<T>::value(raw[i]);
            if (logit != logit) status |= KDT_REQ_NAN;
            if (logit == INFINITY) status |= KDT_REQ_POSITIVE;
            const uint32_t key = i < valid ? key_of<T>(logit) : 0u;
            held.key[g * kGroup + i] = key;
            max_key = max(max_key, key);
        }
    }
    max_key = block.max(max_key);  // its barrier also shows everybody that `refused` is zero
    if (status != 0) atomicOr(&refused, status);

    const float largest = logit_of<T>(max_key);
    float sum = 0.0f;
    if (largest > -INFINITY) {
#pragma unroll
        for (int i = 0; i < kGroups * kGroup; ++i) {
            const float logit = held.key[i] != 0 ? logit_of<T>(held.key[i]) : -INFINITY;
            sum += ptx::exp2_approx((logit - largest) * kLog2e);
        }
    }
    sum = fixed_order_sum(sum, sums);

    // At least topk logits reach the topk-th largest of the groups' maxima, so the best topk all do, and seldom many
    // more. Sixteen bits of it are enough.
    uint32_t group_max[kGroups] = {};
#pragma unroll
    for (int i = 0; i < kGroups * kGroup; ++i) group_max[i / kGroup] = max(group_max[i / kGroup], held.key[i]);
    const uint32_t threshold = reached_by(block, group_max, plan.topk, 16);
    uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < kGroups * kGroup; ++i) mine += held.key[i] != 0 && held.key[i] >= threshold ? 1 : 0;
    uint32_t count;
    uint32_t to = block.exclusive_scan(mine, count);
    uint64_t* const kept = plan.candidates + int64_t{blockIdx.x} * plan.slots;
    if (count <= static_cast<uint32_t>(plan.slots)) {
#pragma unroll
        for (int i = 0; i < kGroups * kGroup; ++i)
            if (held.key[i] != 0 && held.key[i] >= threshold)
                kept[to++] = candidate_of(held.key[i], held.token(begin, i));
    } else {
        count = keep_exactly<T>(block, plan, held, begin, kept);
    }
    if (threadIdx.x == 0) plan.partials[blockIdx.x] = {max_key, sum, refused, static_cast<int32_t>(count)};
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_SCAN_CHUNK_CUH
