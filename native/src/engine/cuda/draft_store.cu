// SPDX-License-Identifier: Apache-2.0
//
// The drafter's context: keys and values of accepted tokens, all layers in one launch, a head a warp.
#include "cuda/overlap.cuh"
#include "engine/cuda/draft_head.cuh"
#include "engine/cuda/queue.h"

namespace kdt::engine {
namespace {

using cuda::kWarpSize;

constexpr int kThreads = 128;

struct StoreArgs {
    const void* kv;
    const void* k_norms;
    void* cache;
    const int32_t* starts;
    const int32_t* counts;
    Rope rope;
    int64_t layer_stride;
    int64_t heads;  // keys' and values' of all rows and layers
    float eps;
    int num_layers;
    int num_kv_heads;
    int head_dim;
    int capacity;
    int max_rows;
};

template <class T>
__global__ void __launch_bounds__(kThreads) store_heads(const StoreArgs args) {
    const int64_t item = int64_t{blockIdx.x} * (kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    cuda::wait_for_earlier_kernels();
    if (item >= args.heads) return;
    // kv [B * M, L, 2, KVH, head_dim]
    const int heads_a_layer = 2 * args.num_kv_heads;
    const int of_layer = static_cast<int>(item % heads_a_layer);
    const int layer = static_cast<int>(item / heads_a_layer % args.num_layers);
    const int64_t row = item / heads_a_layer / args.num_layers;
    const int64_t b = row / args.max_rows;
    const int i = static_cast<int>(row - b * args.max_rows);
    const int64_t position = int64_t{args.starts[b]} + i;
    const bool exists = i < args.counts[b] && position >= 0 && position < args.capacity;
    const int half = args.head_dim / 2;
    DraftHead head = load_head(static_cast<const T*>(args.kv) + item * args.head_dim, half, lane);
    cuda::let_next_kernel_come();
    if (!exists) return;
    if (of_layer < args.num_kv_heads)
        norm_and_rotate(head, static_cast<const T*>(args.k_norms) + int64_t{layer} * args.head_dim, args.eps,
                        rope_at(args.rope, static_cast<int>(position)), half, lane);
    T* const to = static_cast<T*>(args.cache) + layer * args.layer_stride +
                  ((b * args.capacity + position) * heads_a_layer + of_layer) * args.head_dim;
    store_head(head, to, half, lane);
}

}  // namespace

void draft_store(Queue& queue, Dtype dtype, DraftHeads heads, const void* kv, int32_t num_layers, const void* k_norms,
                 float eps, Rope rope, const int32_t* starts, const int32_t* counts, void* cache, int64_t layer_stride,
                 int32_t capacity, int32_t batch, int32_t max_rows) {
    const int64_t items = int64_t{batch} * max_rows * num_layers * 2 * heads.num_kv_heads;
    if (items == 0) return;
    const StoreArgs args = {kv,
                            k_norms,
                            cache,
                            starts,
                            counts,
                            rope,
                            layer_stride,
                            items,
                            eps,
                            num_layers,
                            heads.num_kv_heads,
                            heads.head_dim,
                            capacity,
                            max_rows};
    const dim3 grid(static_cast<unsigned>(ceil_div(items, kThreads / kWarpSize)));
    by_dtype(dtype, [&](auto value) {
        cuda::launch_overlapped(store_heads<decltype(value)>, grid, kThreads, queue.impl()->stream, args);
    });
}

}  // namespace kdt::engine
