// SPDX-License-Identifier: Apache-2.0
//
// The target's attention but for verify_mla itself: its queries, and the latents that go to the cache.
#include "cuda/block.cuh"
#include "cuda/overlap.cuh"
#include "engine/cuda/latent.cuh"
#include "engine/cuda/queue.h"
#include "engine/cuda/rope.cuh"

namespace kdt::engine {
namespace {

using cuda::kWarpSize;

constexpr int kThreads = 128;
constexpr int kNope = KDT_QK_NOPE_HEAD_DIM;
constexpr int kPe = KDT_QK_ROPE_HEAD_DIM;
constexpr int kHeadChunks = (kNope + kPe) / kChunk;

// ---- queries: a chunk a thread

struct QueryArgs {
    const void* q;
    int64_t q_stride;
    const int32_t* positions;
    Bf16* q_nope;
    Bf16* q_pe;
    Rope rope;
    int num_heads;
    int64_t chunks;  // of all rows
};

template <class T, bool kInChunks>
__global__ void __launch_bounds__(kThreads) split_queries(const QueryArgs args) {
    const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    cuda::wait_for_earlier_kernels();
    if (item >= args.chunks) return;
    const int64_t head = item / kHeadChunks;  // of all rows
    const int64_t row = head / args.num_heads;
    const int at = static_cast<int>(item % kHeadChunks) * kChunk;
    float values[kChunk];
    load_values<kInChunks>(
        static_cast<const T*>(args.q) + row * args.q_stride + (head - row * args.num_heads) * (kNope + kPe) + at,
        values);
    if (at < kNope) {
        cuda::let_next_kernel_come();
        store_chunk(args.q_nope + head * kNope + at, values);
        return;
    }
    const float2* const turns = rope_at(args.rope, args.positions[row]) + (at - kNope) / 2;
    float2 held[kChunk / 2];
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) held[i] = turns[i];
    cuda::let_next_kernel_come();
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) rotate(held[i], values[2 * i], values[2 * i + 1]);
    store_chunk(args.q_pe + head * kPe + (at - kNope), values);
}

// ---- latents: a row a warp

template <class T, bool kInChunks>
__global__ void __launch_bounds__(kThreads) store_latents(const LatentArgs args) {
    const int row = static_cast<int>(blockIdx.x) * (kThreads / kWarpSize) + static_cast<int>(threadIdx.x) / kWarpSize;
    cuda::wait_for_earlier_kernels();
    if (row < args.rows) store_latent<T, kInChunks>(args, row, static_cast<int>(threadIdx.x) % kWarpSize);
}

__global__ void __launch_bounds__(kThreads) hide(const int32_t* active, int32_t* num_nodes, int batch) {
    const int b = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
    cuda::wait_for_earlier_kernels();
    if (b < batch && active[b] == 0) num_nodes[b] = 0;
    cuda::let_next_kernel_come();
}

}  // namespace

void mla_queries(Queue& queue, Dtype dtype, const void* q, int64_t q_stride, const int32_t* positions, Rope rope,
                 int32_t num_heads, void* q_nope, void* q_pe, int32_t rows) {
    if (rows == 0) return;
    const QueryArgs args = {q,
                            q_stride,
                            positions,
                            static_cast<Bf16*>(q_nope),
                            static_cast<Bf16*>(q_pe),
                            rope,
                            num_heads,
                            int64_t{rows} * num_heads * kHeadChunks};
    const dim3 grid(static_cast<unsigned>(ceil_div(args.chunks, kThreads)));
    by_dtype(dtype, [&](auto value) {
        using T = decltype(value);
        const auto kernel = in_chunks<T>(q, q_stride) ? split_queries<T, true> : split_queries<T, false>;
        cuda::launch_overlapped(kernel, grid, kThreads, queue.impl()->stream, args);
    });
}

void mla_store(Queue& queue, Dtype dtype, const void* kv, int64_t kv_stride, const void* weight, float eps,
               const int32_t* positions, Rope rope, const int32_t* seq_lens, const int32_t* num_nodes, Pages pages,
               void* layer_cache, int32_t batch, int32_t max_nodes) {
    const int rows = batch * max_nodes;
    if (rows == 0) return;
    const LatentArgs args = {kv,   kv_stride, weight, positions, seq_lens, num_nodes, static_cast<Bf16*>(layer_cache),
                             rope, pages,     eps,    max_nodes, rows};
    const dim3 grid(static_cast<unsigned>(ceil_div(rows, kThreads / kWarpSize)));
    by_dtype(dtype, [&](auto value) {
        using T = decltype(value);
        const bool chunks = in_chunks<T>(kv, kv_stride) && in_chunks<T>(weight, kChunk);
        const auto kernel = chunks ? store_latents<T, true> : store_latents<T, false>;
        cuda::launch_overlapped(kernel, grid, kThreads, queue.impl()->stream, args);
    });
}

void hide_idle(Queue& queue, const int32_t* active, int32_t* num_nodes, int32_t batch) {
    if (batch == 0) return;
    cuda::launch_overlapped(hide, dim3(static_cast<unsigned>(ceil_div(batch, kThreads))), kThreads, size_t{0},
                            queue.impl()->stream, active, num_nodes, batch);
}

}  // namespace kdt::engine
