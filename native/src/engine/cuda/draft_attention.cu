// SPDX-License-Identifier: Apache-2.0
//
// The draft block's attention over its context and itself. A block takes 16 (token, head) rows of one KV head and a
// part of the keys, 32 at a time: a lane scores one key for four rows, and sums a few dimensions of their values. Parts
// are put together by the block of a row tile that comes last (the split of flash decoding).
#include "cuda/overlap.cuh"
#include "engine/cuda/arrival.cuh"
#include "engine/cuda/draft_head.cuh"
#include "engine/cuda/queue.h"

namespace kdt::engine {
namespace {

using cuda::kAllLanes;
using cuda::kWarpSize;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kWarpRows = 4;
constexpr int kRows = kWarps * kWarpRows;
constexpr int kKeys = kWarpSize;
constexpr int kMaxSplits = 32;
constexpr int kMinKeysASplit = 64;
constexpr int kLogSums = 2;  // of a row of a partial result: its maximum and its sum
constexpr float kLog2E = 1.4426950408889634f;

struct AttentionArgs {
    const void* qkv;
    const void* q_norm;
    const void* k_norm;
    const void* cache;
    void* out;
    const int32_t* seq_lens;
    float* partials;     // [batch, KV heads, row tiles, splits, kRows, head_dim + kLogSums]
    uint32_t* arrivals;  // [batch, KV heads, row tiles]
    Rope rope;
    float eps;
    float scale;  // of the scores, log2(e) included
    int num_heads;
    int num_kv_heads;
    int capacity;
    int block;
    int row_tiles;
};

template <int kHeadDim>
struct Shared {
    static constexpr int kKeyStride = kHeadDim + 4;  // a lane a key then reads 16 bytes without conflicts
    float queries[kRows][kHeadDim];
    float keys[kKeys][kKeyStride];
    float values[kKeys][kHeadDim];
    float4 weights[kWarps][kKeys];
    bool last;
};

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
    return value;
}
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
    return value;
}

// Keys [first, first + 32) and their values: of the cache below `context`, then of the block; zeros from `end` on.
template <class T, int kHeadDim>
__device__ __forceinline__ void load_keys(const AttentionArgs& args, Shared<kHeadDim>& shared, int64_t b, int kv_head,
                                          int position, int context, int first, int end) {
    constexpr int kChunks = kHeadDim / kChunk;
    const int64_t row_values = int64_t{2} * args.num_kv_heads * kHeadDim;
    const T* const cache = static_cast<const T*>(args.cache) + b * args.capacity * row_values + kv_head * kHeadDim;
#pragma unroll
    for (int item = static_cast<int>(threadIdx.x); item < 2 * kKeys * kChunks; item += kThreads) {
        const int chunk = item % kChunks;
        const int key = item / kChunks % kKeys;
        const bool is_value = item >= kKeys * kChunks;
        const int at = first + key;
        if (at >= context && at < end) continue;
        float held[kChunk] = {};
        if (at < end)
            load_chunk(cache + at * row_values + (is_value ? args.num_kv_heads * kHeadDim : 0) + chunk * kChunk, held);
        store_chunk((is_value ? shared.values[key] : shared.keys[key]) + chunk * kChunk, held);
    }
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int64_t qkv_stride = int64_t{args.num_heads + 2 * args.num_kv_heads} * kHeadDim;
    // Of the tile's keys those of the block are [own, own_end).
    const int own = context > first ? context - first : 0;
    const int own_end = end - first < kKeys ? end - first : kKeys;
#pragma unroll 2
    for (int key = own + warp; key < own_end; key += kWarps) {
        const int i = first + key - context;
        const T* const from = static_cast<const T*>(args.qkv) + (b * args.block + i) * qkv_stride +
                              int64_t{args.num_heads + kv_head} * kHeadDim;
        DraftHead head = load_head(from, kHeadDim / 2, lane);
        const DraftHead value = load_head(from + int64_t{args.num_kv_heads} * kHeadDim, kHeadDim / 2, lane);
        norm_and_rotate(head, static_cast<const T*>(args.k_norm), args.eps, rope_at(args.rope, position + i),
                        kHeadDim / 2, lane);
        store_head(head, shared.keys[key], kHeadDim / 2, lane);
        store_head(value, shared.values[key], kHeadDim / 2, lane);
    }
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 3) attend(const AttentionArgs args) {
    constexpr int kDims = kHeadDim / kWarpSize;  // of a lane: lane, lane + 32, ...
    __shared__ Shared<kHeadDim> shared;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int tile = static_cast<int>(blockIdx.y) % args.row_tiles;
    const int kv_head = static_cast<int>(blockIdx.y) / args.row_tiles;
    const int64_t b = blockIdx.z;
    const int heads_a_kv = args.num_heads / args.num_kv_heads;
    const int rows = args.block * heads_a_kv - tile * kRows;  // from this tile on
    cuda::wait_for_earlier_kernels();
    const int position = args.seq_lens[b];
    const int context = position < 0 ? 0 : position < args.capacity ? position : args.capacity;
    const int keys = context + args.block;
    const int splits = static_cast<int>(gridDim.x);
    const int keys_a_split = ceil_div(ceil_div(keys, splits), kKeys) * kKeys;
    const int parts = ceil_div(keys, keys_a_split);  // splits that have keys
    const int part = static_cast<int>(blockIdx.x);
    if (part >= parts) return;
    const int begin = part * keys_a_split;
    const int end = keys - begin < keys_a_split ? keys : begin + keys_a_split;

    // Row r of the KV head: token r / heads_a_kv, head r % heads_a_kv of those that share it.
    const int64_t qkv_stride = int64_t{args.num_heads + 2 * args.num_kv_heads} * kHeadDim;
    DraftHead queries[kWarpRows];
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
        const int row = tile * kRows + warp * kWarpRows + r;
        queries[r] = {};
        if (warp * kWarpRows + r < rows)
            queries[r] = load_head(static_cast<const T*>(args.qkv) + (b * args.block + row / heads_a_kv) * qkv_stride +
                                       int64_t{kv_head * heads_a_kv + row % heads_a_kv} * kHeadDim,
                                   kHeadDim / 2, lane);
    }
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
        const int token = (tile * kRows + warp * kWarpRows + r) / heads_a_kv;
        norm_and_rotate(queries[r], static_cast<const T*>(args.q_norm), args.eps, rope_at(args.rope, position + token),
                        kHeadDim / 2, lane);
#pragma unroll
        for (int i = 0; i < DraftHead::kPairs; ++i) queries[r].low[i] *= args.scale, queries[r].high[i] *= args.scale;
        store_head(queries[r], shared.queries[warp * kWarpRows + r], kHeadDim / 2, lane);
    }

    float maxima[kWarpRows], sums[kWarpRows], totals[kWarpRows][kDims];
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
        maxima[r] = -INFINITY;
        sums[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < kDims; ++i) totals[r][i] = 0.0f;
    }
    for (int first = begin; first < end; first += kKeys) {
        __syncthreads();
        load_keys<T>(args, shared, b, kv_head, position, context, first, end);
        __syncthreads();
        if (warp * kWarpRows >= rows) continue;
        float scores[kWarpRows] = {};
#pragma unroll 4
        for (int d = 0; d < kHeadDim; d += 4) {
            const float4 key = *reinterpret_cast<const float4*>(&shared.keys[lane][d]);
#pragma unroll
            for (int r = 0; r < kWarpRows; ++r) {
                const float4 query = *reinterpret_cast<const float4*>(&shared.queries[warp * kWarpRows + r][d]);
                scores[r] += query.x * key.x + query.y * key.y + query.z * key.z + query.w * key.w;
            }
        }
        float weights[kWarpRows];
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) {
            const float score = first + lane < end ? scores[r] : -INFINITY;
            const float maximum = fmaxf(maxima[r], warp_max(score));  // finite: the tile has a key
            const float shrink = exp2f(maxima[r] - maximum);
            weights[r] = exp2f(score - maximum);
            sums[r] = sums[r] * shrink + warp_sum(weights[r]);
            maxima[r] = maximum;
#pragma unroll
            for (int i = 0; i < kDims; ++i) totals[r][i] *= shrink;
        }
        shared.weights[warp][lane] = make_float4(weights[0], weights[1], weights[2], weights[3]);
        __syncwarp();
#pragma unroll 8
        for (int key = 0; key < kKeys; ++key) {
            const float4 weight = shared.weights[warp][key];
#pragma unroll
            for (int i = 0; i < kDims; ++i) {
                const float value = shared.values[key][i * kWarpSize + lane];
                totals[0][i] += weight.x * value;
                totals[1][i] += weight.y * value;
                totals[2][i] += weight.z * value;
                totals[3][i] += weight.w * value;
            }
        }
        __syncwarp();
    }
    cuda::let_next_kernel_come();

    if (parts > 1) {
        constexpr int kPartialRow = kHeadDim + kLogSums;
        const int64_t group = (b * gridDim.y + blockIdx.y);
        float* const partials = args.partials + group * splits * (kRows * kPartialRow);
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) {
            if (warp * kWarpRows + r >= rows) break;
            float* const to = partials + (part * kRows + warp * kWarpRows + r) * kPartialRow;
#pragma unroll
            for (int i = 0; i < kDims; ++i) to[i * kWarpSize + lane] = totals[r][i];
            if (lane == 0) to[kHeadDim] = maxima[r], to[kHeadDim + 1] = sums[r];
        }
        __syncthreads();
        if (threadIdx.x == 0) shared.last = arrives_last(args.arrivals + group, parts);
        __syncthreads();
        if (!shared.last) return;
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) {
            if (warp * kWarpRows + r >= rows) break;
            const float* const from = partials + (warp * kWarpRows + r) * kPartialRow;
            // kMaxSplits is a warp's size: a lane a part.
            const bool exists = lane < parts;
            const float own = exists ? __ldcg(from + lane * (kRows * kPartialRow) + kHeadDim) : -INFINITY;
            const float share = exp2f(own - warp_max(own));
            sums[r] = warp_sum(exists ? share * __ldcg(from + lane * (kRows * kPartialRow) + kHeadDim + 1) : 0.0f);
#pragma unroll
            for (int i = 0; i < kDims; ++i) totals[r][i] = 0.0f;
#pragma unroll 4
            for (int other = 0; other < parts; ++other) {
                const float weight = __shfl_sync(kAllLanes, share, other);
#pragma unroll
                for (int i = 0; i < kDims; ++i)
                    totals[r][i] += weight * __ldcg(from + other * (kRows * kPartialRow) + i * kWarpSize + lane);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
        if (warp * kWarpRows + r >= rows) break;
        const int row = tile * kRows + warp * kWarpRows + r;
        T* const to = static_cast<T*>(args.out) + (b * args.block + row / heads_a_kv) * args.num_heads * kHeadDim +
                      int64_t{kv_head * heads_a_kv + row % heads_a_kv} * kHeadDim;
        const float inverse = 1.0f / sums[r];
#pragma unroll
        for (int i = 0; i < kDims; ++i) to[i * kWarpSize + lane] = from_float<T>(totals[r][i] * inverse);
    }
}

struct Plan {
    int row_tiles;
    int splits;
    int64_t groups;
    size_t partial_bytes;
};

Plan plan_attention(DraftHeads heads, int batch, int block, int capacity) {
    Plan plan = {};
    plan.row_tiles = ceil_div(int64_t{block} * (heads.num_heads / heads.num_kv_heads), kRows);
    plan.groups = int64_t{batch} * heads.num_kv_heads * plan.row_tiles;
    const int multiprocessors = cuda::current_device().multiprocessors;
    int splits = plan.groups > Queue::Impl::kMaxArrivals ? 1 : ceil_div(multiprocessors, plan.groups);
    const int useful = ceil_div(int64_t{capacity} + block, kMinKeysASplit);
    if (splits > useful) splits = useful;
    plan.splits = splits < kMaxSplits ? splits : kMaxSplits;
    plan.partial_bytes =
        static_cast<size_t>(plan.groups) * plan.splits * kRows * (heads.head_dim + kLogSums) * sizeof(float);
    return plan;
}

template <class T>
void launch_attention(Queue& queue, const AttentionArgs& args, int head_dim, dim3 grid) {
    const auto kernel = head_dim == 32   ? attend<T, 32>
                        : head_dim == 64 ? attend<T, 64>
                        : head_dim == 96 ? attend<T, 96>
                                         : attend<T, 128>;
    cuda::launch_overlapped(kernel, grid, kThreads, queue.impl()->stream, args);
}

}  // namespace

size_t draft_attention_workspace(Dtype, DraftHeads heads, int32_t batch, int32_t block, int32_t capacity) {
    // A shorter block may be split into more parts.
    size_t bytes = 0;
    for (int rows = 1; rows <= block; ++rows) {
        const size_t wanted = plan_attention(heads, batch, rows, capacity).partial_bytes;
        if (wanted > bytes) bytes = wanted;
    }
    return bytes;
}

void draft_attention(Queue& queue, Dtype dtype, DraftHeads heads, const void* qkv, const void* q_norm,
                     const void* k_norm, float eps, Rope rope, const int32_t* seq_lens, const void* cache,
                     int32_t capacity, void* out, int32_t batch, int32_t block, void* workspace) {
    if (batch == 0 || block == 0) return;
    if (heads.head_dim % kWarpSize != 0 || heads.head_dim < kWarpSize || heads.head_dim > kMaxDraftHeadDim)
        fail_argument("draft_attention: head_dim is %d, wanted a multiple of 32 up to 128", heads.head_dim);
    const Plan plan = plan_attention(heads, batch, block, capacity);
    AttentionArgs args = {};
    args.qkv = qkv;
    args.q_norm = q_norm;
    args.k_norm = k_norm;
    args.cache = cache;
    args.out = out;
    args.seq_lens = seq_lens;
    args.arrivals = queue.impl()->arrivals.as<uint32_t>();
    args.partials = static_cast<float*>(workspace);
    args.rope = rope;
    args.eps = eps;
    args.scale = kLog2E / sqrtf(static_cast<float>(heads.head_dim));
    args.num_heads = heads.num_heads;
    args.num_kv_heads = heads.num_kv_heads;
    args.capacity = capacity;
    args.block = block;
    args.row_tiles = plan.row_tiles;
    const dim3 grid(static_cast<unsigned>(plan.splits), static_cast<unsigned>(heads.num_kv_heads * plan.row_tiles),
                    static_cast<unsigned>(batch));
    by_dtype(dtype, [&](auto value) { launch_attention<decltype(value)>(queue, args, heads.head_dim, grid); });
}

}  // namespace kdt::engine
