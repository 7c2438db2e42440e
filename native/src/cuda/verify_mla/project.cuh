// SPDX-License-Identifier: Apache-2.0
//
// The projections of verify_mla, one 128 x 128 tile a block: queries into the space of latents and outputs out of it
// (absorb mode), latents into keys and values (mha mode).
#ifndef KDTREE_CUDA_VERIFY_MLA_PROJECT_CUH
#define KDTREE_CUDA_VERIFY_MLA_PROJECT_CUH

#include <cstdint>

#include "cuda/verify_mla/gemm.cuh"
#include "cuda/verify_mla/layout.cuh"

namespace kdt::cuda::verify_mla {

constexpr int kAbsorbTiles = kRank / kTile;  // column tiles of an absorbed query
static_assert(kNope == kTile && kValue == kTile, "keys and values of a head are one tile wide");

// absorbed[row, h] = q_nope[row, h] w_uk[h], 128 rows (requests' nodes) a block. Blocks that read the same rows are
// neighbours. A pad's query may be anything, and so is its answer: verify_attn does not look at it.
__global__ void __launch_bounds__(kThreads, kMostBlocks) absorb_queries(const Args args) {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    const int column = blockIdx.x % kAbsorbTiles * kTile;
    const int head = static_cast<int>(blockIdx.x / kAbsorbTiles) % args.num_qo_heads;
    const int64_t first = int64_t{blockIdx.x / kAbsorbTiles / args.num_qo_heads} * kTile;
    const int64_t rows = int64_t{args.batch} * args.max_nodes;
    const int64_t row = first + threadIdx.x;
    const __nv_bfloat16* const a = args.q_nope + (row * args.num_qo_heads + head) * kNope;
    const B b = {args.w_uk + int64_t{head} * kNope * kRank + column, kRank};
    const C c = {args.absorbed + (first * args.num_qo_heads + head) * kRank + column, args.num_qo_heads * kRank,
                 static_cast<int>(min(rows - first, int64_t{kTile}))};
    multiply_tile<BLayout::columns_inside>(threadIdx.x < kTile && row < rows ? a : nullptr, b, c, kNope,
                                           dynamic_shared);
}

// out[row, h] = latent_out[row, h] w_uv[h].
__global__ void __launch_bounds__(kThreads, kMostBlocks) project_out(const Args args) {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    const int head = static_cast<int>(blockIdx.x) % args.num_qo_heads;
    const int64_t first = int64_t{blockIdx.x / args.num_qo_heads} * kTile;
    const int64_t rows = int64_t{args.batch} * args.max_nodes;
    const int64_t row = first + threadIdx.x;
    const __nv_bfloat16* const a = args.latent_out + (row * args.num_qo_heads + head) * kRank;
    const B b = {args.w_uv + int64_t{head} * kRank * kValue, kValue};
    const C c = {args.out + (first * args.num_qo_heads + head) * kValue, args.num_qo_heads * kValue,
                 static_cast<int>(min(rows - first, int64_t{kTile}))};
    multiply_tile<BLayout::columns_inside>(threadIdx.x < kTile && row < rows ? a : nullptr, b, c, kRank,
                                           dynamic_shared);
}

// keys[u, t] = (w_uk[h] c_t, k_pe) or values[u, t] = c_t w_uv[h] of 128 slots of a unit. Blocks that read the same
// latents are neighbours. A slot that nobody sees may hold NaN, which stays in its own row.
__global__ void __launch_bounds__(kThreads, kMostBlocks) make_keys_and_values(const Args args) {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    const bool is_value = blockIdx.x % 2 != 0;
    const int unit = static_cast<int>(blockIdx.x / 2) % args.units;
    const int64_t first = int64_t{blockIdx.x / 2 / args.units} * kTile;
    const int b = args.batch_of(unit);
    const int head = args.head_of(unit);
    const Request request = args.requests[b];
    const int64_t left = int64_t{request.prefix} + request.nodes - first;
    if (left <= 0) return;

    const __nv_bfloat16* latent = nullptr;
    if (threadIdx.x < kTile && threadIdx.x < left) {
        const uint32_t slot = static_cast<uint32_t>(first) + threadIdx.x;
        const uint32_t page_size = args.page_size;
        const uint32_t page_at = slot / page_size;
        const int64_t page = args.block_table[int64_t{b} * args.max_pages_per_seq + page_at];
        latent = args.kv_cache + (page * page_size + (slot - page_at * page_size)) * kLatent;
    }
    const int rows = static_cast<int>(min(left, int64_t{kTile}));
    const int64_t to = int64_t{unit} * args.slots + first;
    if (is_value) {
        const B weights = {args.w_uv + int64_t{head} * kRank * kValue, kValue};
        const C c = {args.values + to * kValue, kValue, rows};
        multiply_tile<BLayout::columns_inside>(latent, weights, c, kRank, dynamic_shared);
    } else {
        const B weights = {args.w_uk + int64_t{head} * kNope * kRank, kRank};
        const C c = {args.keys + to * kKey, kKey, rows};
        multiply_tile<BLayout::depth_inside>(latent, weights, c, kRank, dynamic_shared);
        // Every head gets a copy of k_pe: attention then reads keys without asking where their pages are.
        const int chunk = threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < kTile * 8 / kThreads; ++i) {
            const int row = static_cast<int>(threadIdx.x) / 8 + kThreads / 8 * i;
            if (row < c.rows)
                reinterpret_cast<uint4*>(c.base + int64_t{row} * kKey + kNope)[chunk] =
                    reinterpret_cast<const uint4*>(rows_of_a(dynamic_shared)[row] + kRank)[chunk];
        }
    }
}

}  // namespace kdt::cuda::verify_mla

#endif  // KDTREE_CUDA_VERIFY_MLA_PROJECT_CUH
