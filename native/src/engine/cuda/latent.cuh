// SPDX-License-Identifier: Apache-2.0
//
// A token's way into the latent cache: norm, rotation, page.
#ifndef KDTREE_ENGINE_CUDA_LATENT_CUH
#define KDTREE_ENGINE_CUDA_LATENT_CUH

#include "cuda/block.cuh"
#include "cuda/overlap.cuh"
#include "engine/cuda/act.cuh"
#include "engine/cuda/rope.cuh"

namespace kdt::engine {

struct LatentArgs {
    const void* kv;
    int64_t kv_stride;
    const void* weight;
    const int32_t* positions;
    const int32_t* seq_lens;
    const int32_t* num_nodes;
    Bf16* cache;
    Rope rope;
    Pages pages;
    float eps;
    int max_nodes;
    int rows;
};

// By one whole warp, behind the wait for earlier kernels. A lane holds chunks `lane` and `lane + 32` of the latent and
// pair `lane` of the rotated key.
template <class T, bool kInChunks>
__device__ __forceinline__ void store_latent(const LatentArgs& args, int row, int lane) {
    using cuda::kAllLanes;
    using cuda::kWarpSize;
    constexpr int kLatent = KDT_KV_LORA_RANK;
    constexpr int kPe = KDT_QK_ROPE_HEAD_DIM;
    constexpr int kSteps = kLatent / (kWarpSize * kChunk);
    static_assert(kPe == 2 * kWarpSize, "a pair a lane");
    const int request = row / args.max_nodes;
    const int node = row - request * args.max_nodes;
    const int prefix = args.seq_lens[request];
    const int nodes = args.num_nodes[request];
    const T* const kv = static_cast<const T*>(args.kv) + int64_t{row} * args.kv_stride;
    float values[kSteps][kChunk], weights[kSteps][kChunk];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        load_values<kInChunks>(kv + (s * kWarpSize + lane) * kChunk, values[s]);
        load_values<kInChunks>(static_cast<const T*>(args.weight) + (s * kWarpSize + lane) * kChunk, weights[s]);
    }
    float a = to_float(kv[kLatent + 2 * lane]);
    float b = to_float(kv[kLatent + 2 * lane + 1]);
    const float2 turn = rope_at(args.rope, args.positions[row])[lane];
    const int64_t slot = int64_t{prefix} + node;
    const bool has_slot = node < nodes && slot >= 0 && slot / args.pages.page_size < args.pages.max_pages_per_seq;
    const int page =
        has_slot ? args.pages.block_table[int64_t{request} * args.pages.max_pages_per_seq + slot / args.pages.page_size]
                 : -1;
    cuda::let_next_kernel_come();
    float squares = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int i = 0; i < kChunk; ++i) squares += values[s][i] * values[s][i];
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) squares += __shfl_xor_sync(kAllLanes, squares, step);
    if (page < 0 || page >= args.pages.num_pages) return;
    const float scale = rsqrtf(squares / static_cast<float>(kLatent) + args.eps);
    Bf16* const to =
        args.cache + (int64_t{page} * args.pages.page_size + slot % args.pages.page_size) * (kLatent + kPe);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) values[s][i] = values[s][i] * scale * weights[s][i];
        store_chunk(to + (s * kWarpSize + lane) * kChunk, values[s]);
    }
    rotate(turn, a, b);
    reinterpret_cast<uint32_t*>(to + kLatent)[lane] = pack_bf16(a, b);
}

}  // namespace kdt::engine

#endif  // KDTREE_ENGINE_CUDA_LATENT_CUH
