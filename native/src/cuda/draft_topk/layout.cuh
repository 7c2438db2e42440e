// SPDX-License-Identifier: Apache-2.0
//
// How draft_topk shares rows among blocks, what its blocks keep in shared memory, and the order of logits.
#ifndef KDTREE_CUDA_DRAFT_TOPK_LAYOUT_CUH
#define KDTREE_CUDA_DRAFT_TOPK_LAYOUT_CUH

#include <algorithm>
#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/carve.cuh"

namespace kdt::cuda::draft_topk {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kGroupBytes = 16;         // a group: the logits of one 16-byte load
constexpr int kDepth = 3;               // groups a thread holds of each tile
constexpr int kWholeDepth = 5;          // or of a segment that it holds as one
constexpr int kTilePlaceBits = 12;      // of a group's place in its tile
constexpr int kMaxKeep = 1280;          // groups the queue may hold when a tile begins
constexpr int kRefresh = 3;             // tiles after which the threshold is found anew, and twice as many
constexpr int kMaxBlocks = 16;          // of a row
constexpr int kSamples = 128;           // ranked all against all
constexpr int kFewTopk = kSamples / 2;  // up to here a threshold is found among samples
constexpr int kMaxRanked = 256;         // finalists ranked all against all; more are sorted
constexpr int kMaxFinalists = 2048;     // sorted at the end; KDT_MAX_TOPK is 1024

static_assert(kThreads * kWholeDepth <= 1 << kTilePlaceBits && kMaxBlocks << kTilePlaceBits <= 1 << 16,
              "places fit the order of bf16");

using TopkBlock = Block<kThreads>;

// Where the blocks of a row meet (cluster.cuh).
enum class Meet { alone, cluster, workspace };

// What a warp leaves of its logits besides the best of them.
struct alignas(16) WarpPart {
    float top;  // the largest
    float sum;  // of exp(logit - top)
    int32_t status;
    int32_t padding;
};

// What the blocks of a row leave for the one that merges: in its shared memory, or in the workspace.
struct Mail {
    WarpPart* parts;  // [blocks, kWarps]
    int32_t* counts;  // [blocks] candidates in each list
    uint64_t* lists;  // [blocks, slots]
};

struct Plan {
    int rows;
    int vocab_size;
    int topk;
    int blocks_log2;    // of a row
    int segment;        // groups of a row that one block reads
    int depth;          // groups a thread holds
    int keep;           // groups the queue may hold when a tile begins
    int slots;          // candidates a block may hand over
    int group_bits;     // of the number of a group in its row
    int token_bits;     // of a token id
    Mail mail;          // of all rows, where blocks merge through the workspace
    uint64_t* tickets;  // [rows]

    __host__ __device__ int blocks() const { return 1 << blocks_log2; }
    __host__ __device__ int queue_capacity() const { return keep + kThreads * depth + 2; }  // two that are not whole
};

// The dynamic shared memory of a block.
struct Arena {
    uint4* queue_words;    // [queue_capacity] groups that may hold some of the best
    int32_t* queue_group;  // [queue_capacity] their numbers
    uint64_t* lists;       // [blocks, slots], of the merging block
    uint64_t* finalists;   // [kMaxFinalists], over the queue when that is done with
    size_t bytes;

    __host__ __device__ Arena(void* base, const Plan& plan) {
        Carve carve(base);
        finalists = reinterpret_cast<uint64_t*>(base);
        queue_words = carve.take<uint4>(plan.queue_capacity());
        queue_group = carve.take<int32_t>(plan.queue_capacity());
        lists = carve.take<uint64_t>(static_cast<size_t>(plan.blocks()) * plan.slots);
        bytes = carve.bytes();
    }
};
static_assert(kThreads * kDepth * sizeof(uint4) >= kMaxFinalists * sizeof(uint64_t),
              "the finalists fit over the queue");

// The static shared memory of a block.
struct Shared {
    TopkBlock::Shared block;
    alignas(16) uint32_t samples[2][kSamples];     // of the first tiles; one is the better of two if blocks are many
    alignas(16) uint32_t merge_samples[kSamples];  // of the candidates that are merged
    uint32_t threshold;                            // among each
    uint32_t merge_threshold;
    WarpPart parts[kMaxBlocks * kWarps];  // of all blocks
    int32_t counts[kMaxBlocks];
    int32_t queued;     // groups
    int32_t listed;     // candidates to hand over
    int32_t finalists;  // candidates left at the end
    int32_t refused;
    float logsumexp;
    bool merges;
    uint64_t samples_here;  // signals in a cluster
    uint64_t parts_here;
    uint64_t lists_here;
};

// A key orders as its logit does, as an unsigned number; -0 and 0 share one. NaN has none of its own (its row is
// refused), and no logit has key 0, which stands for "nothing".
//
// A bf16 key has its 16 low bits zero, so that both dtypes share code and bf16 needs half the bits looked at. In an
// order they hold the place, below 2^16, where an f32 key leaves no room for one.
template <class T>
struct Keys;

template <>
struct Keys<float> {
    static constexpr int kBits = 32;
    __device__ static float value(float raw) { return raw; }
    __device__ static uint32_t negative(uint32_t bits) { return ~bits; }
    __device__ static uint32_t order(uint32_t key, uint32_t) { return key; }
    __device__ static uint32_t key_of_order(uint32_t order) { return order; }
};

template <>
struct Keys<uint16_t> {
    static constexpr int kBits = 16;
    __device__ static float value(uint16_t raw) { return __uint_as_float(static_cast<uint32_t>(raw) << 16); }
    __device__ static uint32_t negative(uint32_t bits) { return ~bits & 0xffff0000u; }
    __device__ static uint32_t order(uint32_t key, uint32_t place) { return key | (place ^ 0xffffu); }
    __device__ static uint32_t key_of_order(uint32_t order) { return order & 0xffff0000u; }
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

// A candidate: a logit and its place (of a token in the vocabulary, or of a group in its row). Descending order is by
// logit, then by ascending place. All differ, and none is 0, which stands for "nothing".
__device__ __forceinline__ uint64_t candidate_of(uint32_t key, int place) {
    return static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(~place);
}

__device__ __forceinline__ uint32_t candidate_key(uint64_t candidate) {
    return static_cast<uint32_t>(candidate >> 32);
}

__device__ __forceinline__ int candidate_place(uint64_t candidate) {
    return ~static_cast<int>(static_cast<uint32_t>(candidate));
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_LAYOUT_CUH
