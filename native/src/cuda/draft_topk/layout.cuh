// SPDX-License-Identifier: Apache-2.0
//
// How draft_topk cuts rows into chunks, what passes from its first kernel to its second, and the order of logits.
#ifndef KDTREE_CUDA_DRAFT_TOPK_LAYOUT_CUH
#define KDTREE_CUDA_DRAFT_TOPK_LAYOUT_CUH

#include <algorithm>
#include <cstdint>

#include "kdtree/kdtree.h"

namespace kdt::cuda::draft_topk {

constexpr int kThreads = 512;
constexpr int kGroup = 8;   // neighbouring logits a thread takes at once
constexpr int kGroups = 4;  // groups a thread holds in registers
constexpr int kMaxChunk = kThreads * kGroup * kGroups;
constexpr int kMinChunk = 4096;
constexpr int kMaxChunks = 1024;  // of a row; the second kernel keeps a count for each
constexpr int kSortCapacity = 4096;

// One chunk's share of its row.
struct Partial {
    uint32_t max_key;  // of the largest logit
    float sum;         // of exp(logit - largest)
    int32_t status;
    int32_t count;  // candidates kept
};

struct Plan {
    int rows;
    int vocab_size;
    int topk;
    int chunk;   // logits, a multiple of kGroup
    int chunks;  // of a row
    int slots;   // candidates a chunk may keep
    bool vector_loads;
    Partial* partials;     // [rows, chunks]
    uint64_t* candidates;  // [rows, chunks, slots]

    Plan(const kdt_draft_topk_params& p, int multiprocessors)
        : rows(p.rows), vocab_size(p.vocab_size), topk(p.topk), partials(nullptr), candidates(nullptr) {
        // Two blocks a multiprocessor when there are few rows, but twice as many groups in a chunk as candidates are
        // wanted of it: the maxima of groups tell which logits can be among the best.
        const int64_t smallest = std::max(kMinChunk, 2 * kGroup * topk);
        const int64_t fewest = ceil_divide(vocab_size, kMaxChunk);
        const int64_t most = std::max(fewest, ceil_divide(vocab_size, smallest));
        const int64_t wanted = ceil_divide(2 * int64_t{multiprocessors}, std::max(rows, 1));
        const int64_t count = std::min(most, std::max(fewest, wanted));
        chunk = static_cast<int>(ceil_divide(ceil_divide(vocab_size, count), kGroup) * kGroup);
        chunks = static_cast<int>(ceil_divide(vocab_size, chunk));
        slots = std::min(chunk, std::max(2 * topk, topk + 64));
        vector_loads = vocab_size % kGroup == 0 && reinterpret_cast<uintptr_t>(p.logits) % 16 == 0;
    }

    static int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }
};

// A key orders as its logit does, as an unsigned number; -0 and 0 share one. NaN has none of its own (its row is
// refused), and no logit has key 0, which stands for "nothing".
//
// A bf16 key has its 16 low bits zero, so that both dtypes share code and bf16 needs half the bits looked at.
template <class T>
struct Keys;

template <>
struct Keys<float> {
    static constexpr int kBits = 32;
    __device__ static float value(uint32_t raw) { return __uint_as_float(raw); }
    __device__ static uint32_t negative(uint32_t bits) { return ~bits; }
};

template <>
struct Keys<uint16_t> {
    static constexpr int kBits = 16;
    __device__ static float value(uint32_t raw) { return __uint_as_float(raw << 16); }
    __device__ static uint32_t negative(uint32_t bits) { return ~bits & 0xffff0000u; }
};

template <class T>
__device__ __forceinline__ uint32_t key_of(float logit) {
    const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 + 0 is 0
    return bits & 0x80000000u ? Keys<T>::negative(bits) : bits | 0x80000000u;
}

template <class T>
__device__ __forceinline__ float logit_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : Keys<T>::negative(key));
}

// A candidate: descending order is by logit, then by ascending token id. All differ.
__device__ __forceinline__ uint64_t candidate_of(uint32_t key, int token) {
    return static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(~token);
}

__device__ __forceinline__ uint32_t candidate_key(uint64_t candidate) {
    return static_cast<uint32_t>(candidate >> 32);
}

__device__ __forceinline__ int candidate_token(uint64_t candidate) {
    return ~static_cast<int>(static_cast<uint32_t>(candidate));
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_LAYOUT_CUH
