// SPDX-License-Identifier: Apache-2.0
//
// What happens to a row by itself: embedding, residual and norm, gate. Launches, not bytes, are what these cost: one
// pass each, and each overlaps the kernel before it.
#include "cuda/block.cuh"
#include "cuda/overlap.cuh"
#include "engine/cuda/act.cuh"
#include "engine/cuda/queue.h"
#include "engine/cuda/rows.h"

namespace kdt::engine {
namespace {

using cuda::kAllLanes;
using cuda::kWarpSize;

constexpr int kMaxNormThreads = 512;
constexpr int kGateThreads = 128;

// ---- residual, feature, norm

struct NormArgs {
    const void* x;  // the residual, or what is to be normed
    int64_t x_stride;
    const void* delta;  // may be NULL
    void* residual;     // may be NULL: x + delta is not kept
    void* feature;      // may be NULL
    int64_t feature_stride;
    const void* weight;
    void* out;  // may be NULL
    float eps;
    int hidden;
    int block;  // 0, or rows a draft block, of which the first is left out
};

// Where row `row` of the output comes from.
__device__ __forceinline__ int64_t source_row(const NormArgs& args, int64_t row) {
    return args.block == 0 ? row : row + row / (args.block - 1) + 1;
}

// The sum over a block of whole warps, in every thread; its order depends on the number of threads alone.
__device__ __forceinline__ float block_sum(float value, float (&totals)[kMaxNormThreads / kWarpSize]) {
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
    const int warps = static_cast<int>(blockDim.x) / kWarpSize;
    if (warps == 1) return value;
    if (threadIdx.x % kWarpSize == 0) totals[threadIdx.x / kWarpSize] = value;
    __syncthreads();
    float sum = 0.0f;
    for (int w = 0; w < warps; ++w) sum += totals[w];
    return sum;
}

// A block a row, up to kSteps chunks a thread, which stay in registers between the two passes.
template <class T, int kSteps>
__global__ void __launch_bounds__(kMaxNormThreads) norm_rows(const NormArgs args) {
    __shared__ float totals[kMaxNormThreads / kWarpSize];
    const int64_t row = blockIdx.x;
    const int64_t source = source_row(args, row);
    const T* const x = static_cast<const T*>(args.x) + source * args.x_stride;
    const T* const delta = static_cast<const T*>(args.delta) + source * args.hidden;
    T* const residual = static_cast<T*>(args.residual) + row * args.x_stride;
    T* const feature = static_cast<T*>(args.feature) + row * args.feature_stride;
    cuda::wait_for_earlier_kernels();
    float values[kSteps][kChunk];
    float weights[kSteps][kChunk];
    float squares = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        const int at = (s * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kChunk;
        if (at >= args.hidden) continue;
        load_chunk(x + at, values[s]);
        if (args.out != nullptr) load_chunk(static_cast<const T*>(args.weight) + at, weights[s]);
        if (args.delta != nullptr) {
            float more[kChunk];
            load_chunk(delta + at, more);
#pragma unroll
            for (int i = 0; i < kChunk; ++i) values[s][i] = rounded<T>(values[s][i] + more[i]);
        }
#pragma unroll
        for (int i = 0; i < kChunk; ++i) squares += values[s][i] * values[s][i];
    }
    cuda::let_next_kernel_come();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        const int at = (s * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kChunk;
        if (at >= args.hidden) continue;
        if (args.residual != nullptr && args.delta != nullptr) store_chunk(residual + at, values[s]);
        if (args.feature != nullptr) store_chunk(feature + at, values[s]);
    }
    if (args.out == nullptr) return;
    const float scale = rsqrtf(block_sum(squares, totals) / static_cast<float>(args.hidden) + args.eps);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        const int at = (s * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kChunk;
        if (at >= args.hidden) continue;
        float normed[kChunk];
#pragma unroll
        for (int i = 0; i < kChunk; ++i) normed[i] = values[s][i] * scale * weights[s][i];
        store_chunk(static_cast<T*>(args.out) + row * args.hidden + at, normed);
    }
}

// Any width and any address, value by value.
template <class T>
__global__ void __launch_bounds__(kMaxNormThreads) norm_odd_rows(const NormArgs args) {
    __shared__ float totals[kMaxNormThreads / kWarpSize];
    const int64_t row = blockIdx.x;
    const int64_t source = source_row(args, row);
    const T* const x = static_cast<const T*>(args.x) + source * args.x_stride;
    const T* const delta = static_cast<const T*>(args.delta) + source * args.hidden;
    const auto value_at = [&](int i) {
        const float value = to_float(x[i]);
        return args.delta == nullptr ? value : rounded<T>(value + to_float(delta[i]));
    };
    cuda::wait_for_earlier_kernels();
    float squares = 0.0f;
    for (int i = static_cast<int>(threadIdx.x); i < args.hidden; i += static_cast<int>(blockDim.x)) {
        const float value = value_at(i);
        squares += value * value;
    }
    cuda::let_next_kernel_come();
    const float scale = rsqrtf(block_sum(squares, totals) / static_cast<float>(args.hidden) + args.eps);
    for (int i = static_cast<int>(threadIdx.x); i < args.hidden; i += static_cast<int>(blockDim.x)) {
        const float value = value_at(i);
        const T stored = from_float<T>(value);
        if (args.out != nullptr)
            static_cast<T*>(args.out)[row * args.hidden + i] =
                from_float<T>(value * scale * to_float(static_cast<const T*>(args.weight)[i]));
        if (args.feature != nullptr) static_cast<T*>(args.feature)[row * args.feature_stride + i] = stored;
        if (args.residual != nullptr) static_cast<T*>(args.residual)[row * args.x_stride + i] = stored;
    }
}

template <class T>
void launch_norm(Queue& queue, const NormArgs& args, int rows) {
    const cudaStream_t stream = queue.impl()->stream;
    const dim3 grid(static_cast<unsigned>(rows));
    const bool chunks = args.hidden % kChunk == 0 && in_chunks<T>(args.x, args.x_stride) &&
                        in_chunks<T>(args.delta, args.hidden) && in_chunks<T>(args.residual, args.x_stride) &&
                        in_chunks<T>(args.feature, args.feature_stride) && in_chunks<T>(args.weight, kChunk) &&
                        in_chunks<T>(args.out, args.hidden);
    const int lanes = ceil_div(args.hidden, kChunk * kWarpSize) * kWarpSize;
    const int threads = lanes < kMaxNormThreads ? lanes : kMaxNormThreads;
    const int steps = ceil_div(args.hidden, threads * kChunk);
    if (chunks && steps == 1)
        cuda::launch_overlapped(norm_rows<T, 1>, grid, threads, stream, args);
    else if (chunks && steps == 2)
        cuda::launch_overlapped(norm_rows<T, 2>, grid, threads, stream, args);
    else
        cuda::launch_overlapped(norm_odd_rows<T>, grid, kMaxNormThreads, stream, args);
}

// ---- embedding

struct EmbedArgs {
    const int32_t* ids;  // of rows, or of blocks: their first row's
    const char* table;
    char* out;
    int vocab;
    int row_bytes;
    int block;  // rows a block, or 1
    int other;  // id of a block's other rows
};

template <class Word>
__global__ void __launch_bounds__(kGateThreads) embed_rows(const EmbedArgs args) {
    const int words = args.row_bytes / static_cast<int>(sizeof(Word));
    const int at = static_cast<int>(blockIdx.y) * kGateThreads + static_cast<int>(threadIdx.x);
    cuda::wait_for_earlier_kernels();
    const int row_of_block = static_cast<int>(blockIdx.x) % args.block;
    const int id = row_of_block == 0 ? args.ids[blockIdx.x / args.block] : args.other;
    const int64_t row = id >= 0 && id < args.vocab ? id : 0;
    cuda::let_next_kernel_come();
    if (at < words)
        reinterpret_cast<Word*>(args.out + int64_t{blockIdx.x} * args.row_bytes)[at] =
            reinterpret_cast<const Word*>(args.table + row * args.row_bytes)[at];
}

void launch_embed(Queue& queue, Dtype dtype, EmbedArgs args, int hidden, int rows) {
    if (rows == 0) return;
    by_dtype(dtype, [&](auto value) { args.row_bytes = hidden * static_cast<int>(sizeof(value)); });
    const uintptr_t together = reinterpret_cast<uintptr_t>(args.table) | reinterpret_cast<uintptr_t>(args.out) |
                               static_cast<uintptr_t>(args.row_bytes);
    const bool wide = together % sizeof(uint4) == 0;
    const int blocks = ceil_div(args.row_bytes, kGateThreads * static_cast<int>(wide ? sizeof(uint4) : 2));
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(blocks));
    const auto kernel = wide ? embed_rows<uint4> : embed_rows<uint16_t>;
    cuda::launch_overlapped(kernel, grid, kGateThreads, queue.impl()->stream, args);
}

// ---- gate

struct GateArgs {
    const void* x;
    void* out;
    int half;
};

__device__ __forceinline__ float gated(float gate, float up) {
    return gate / (1.0f + expf(-gate)) * up;
}

template <class T, bool kInChunks>
__global__ void __launch_bounds__(kGateThreads) gate_rows(const GateArgs args) {
    constexpr int kWidth = kInChunks ? kChunk : 1;
    const int at = (static_cast<int>(blockIdx.y) * kGateThreads + static_cast<int>(threadIdx.x)) * kWidth;
    const T* const gate = static_cast<const T*>(args.x) + int64_t{blockIdx.x} * 2 * args.half + at;
    T* const out = static_cast<T*>(args.out) + int64_t{blockIdx.x} * args.half + at;
    cuda::wait_for_earlier_kernels();
    if (at < args.half) {
        if constexpr (kInChunks) {
            float gates[kChunk], ups[kChunk];
            load_chunk(gate, gates);
            load_chunk(gate + args.half, ups);
#pragma unroll
            for (int i = 0; i < kChunk; ++i) gates[i] = gated(gates[i], ups[i]);
            store_chunk(out, gates);
        } else {
            *out = from_float<T>(gated(to_float(*gate), to_float(gate[args.half])));
        }
    }
    cuda::let_next_kernel_come();
}

}  // namespace

void embed(Queue& queue, Dtype dtype, const int32_t* ids, const void* table, int32_t vocab, int32_t hidden, void* out,
           int32_t rows) {
    launch_embed(queue, dtype, {ids, static_cast<const char*>(table), static_cast<char*>(out), vocab, 0, 1, 0}, hidden,
                 rows);
}

void embed_block(Queue& queue, Dtype dtype, const int32_t* roots, int32_t mask_token, const void* table, int32_t vocab,
                 int32_t hidden, void* out, int32_t batch, int32_t block) {
    launch_embed(queue, dtype,
                 {roots, static_cast<const char*>(table), static_cast<char*>(out), vocab, 0, block, mask_token}, hidden,
                 batch * block);
}

void rmsnorm(Queue& queue, Dtype dtype, const void* x, int64_t x_stride, const void* weight, float eps, void* out,
             int32_t rows, int32_t hidden) {
    if (rows == 0) return;
    NormArgs args = {};
    args.x = x;
    args.x_stride = x_stride;
    args.weight = weight;
    args.out = out;
    args.eps = eps;
    args.hidden = hidden;
    by_dtype(dtype, [&](auto value) { launch_norm<decltype(value)>(queue, args, rows); });
}

void add_rmsnorm(Queue& queue, Dtype dtype, void* residual, const void* delta, void* feature, int64_t feature_stride,
                 const void* weight, float eps, void* out, int32_t rows, int32_t hidden) {
    if (rows == 0) return;
    const NormArgs args = {residual, hidden, delta, residual, feature, feature_stride, weight, out, eps, hidden, 0};
    by_dtype(dtype, [&](auto value) { launch_norm<decltype(value)>(queue, args, rows); });
}

void add_rmsnorm_apart(Queue& queue, Dtype dtype, const NormInput& input, int32_t rows, int32_t hidden) {
    if (rows == 0) return;
    const NormArgs args = {input.residual,
                           hidden,
                           input.delta,
                           input.delta == nullptr ? nullptr : input.residual_out,
                           input.feature,
                           input.feature_stride,
                           input.norm,
                           input.hidden,
                           input.eps,
                           hidden,
                           0};
    by_dtype(dtype, [&](auto value) { launch_norm<decltype(value)>(queue, args, rows); });
}

void block_norm(Queue& queue, Dtype dtype, const void* residual, const void* delta, const void* weight, float eps,
                void* out, int32_t batch, int32_t block, int32_t hidden) {
    const int rows = batch * (block - 1);
    if (rows <= 0) return;
    NormArgs args = {};
    args.x = residual;
    args.x_stride = hidden;
    args.delta = delta;
    args.weight = weight;
    args.out = out;
    args.eps = eps;
    args.hidden = hidden;
    args.block = block;
    by_dtype(dtype, [&](auto value) { launch_norm<decltype(value)>(queue, args, rows); });
}

void silu_mul(Queue& queue, Dtype dtype, const void* x, void* out, int32_t rows, int32_t half) {
    if (rows == 0) return;
    const GateArgs args = {x, out, half};
    by_dtype(dtype, [&](auto value) {
        using T = decltype(value);
        const bool chunks = half % kChunk == 0 && in_chunks<T>(x, half) && in_chunks<T>(out, half);
        const int blocks = ceil_div(half, kGateThreads * (chunks ? kChunk : 1));
        const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(blocks));
        if (chunks)
            cuda::launch_overlapped(gate_rows<T, true>, grid, kGateThreads, queue.impl()->stream, args);
        else
            cuda::launch_overlapped(gate_rows<T, false>, grid, kGateThreads, queue.impl()->stream, args);
    });
}

}  // namespace kdt::engine
