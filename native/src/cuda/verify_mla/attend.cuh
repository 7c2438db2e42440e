// SPDX-License-Identifier: Apache-2.0
//
// Attention of verify_mla's mha mode: one row tile of a unit over one split of its slots, with a running maximum and
// sum a row ("online softmax"). Each warp has rows of its own, whose scores, weights and sums never leave its registers
// (FlashAttention-2, arXiv 2307.08691); keys of the next tile load under the softmax and the products of this one's
// values, and values under the scores.
#ifndef KDTREE_CUDA_VERIFY_MLA_ATTEND_CUH
#define KDTREE_CUDA_VERIFY_MLA_ATTEND_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/verify_mla/layout.cuh"
#include "cuda/verify_mla/load.cuh"
#include "cuda/verify_mla/slot_tiles.cuh"
#include "cuda/verify_mla/wgmma.cuh"

namespace kdt::cuda::verify_mla {

constexpr float kLn2 = 0.69314718f;
constexpr int kQueryBytes = kRows * kKey * 2;
constexpr int kKeyBytes = kSlots * kKey * 2;
constexpr int kValueBytes = kSlots * kValue * 2;

constexpr int kSumBytes = 2 * kThreads * static_cast<int>(sizeof(float));
constexpr int kAttendSharedBytes =
    kQueryBytes + kKeyBytes + kValueBytes + kSumBytes + static_cast<int>(sizeof(SlotTiles));
static_assert(kAttendSharedBytes <= 99 * 1024, "the least that a block can have from sm_80 on");

// scores = the warp's 16 queries x 64 keys.
__device__ __forceinline__ void multiply_keys(uint32_t queries, uint32_t keys, float (&scores)[kSlots / 8][4]) {
#ifdef KDT_WGMMA
    const uint32_t rows = k_major(queries + thread_anew() / 128 * (64 * 128));
    const uint32_t columns = k_major(keys);
    begin_products();
#pragma unroll
    for (int step = 0; step < kKey / 16; ++step) {
        const uint32_t panel = step / 4 * 128;
        multiply_64x64(scores, further(rows, panel * kRows + step % 4 * 32),
                       further(columns, panel * kSlots + step % 4 * 32), step > 0);
    }
    end_products(scores);
#else
    const int lane = thread_anew() % kWarpSize;
    const int query = thread_anew() / kWarpSize * 16 + (lane & 15);
#pragma unroll
    for (int n = 0; n < kSlots / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kKey / 16; ++step) {
        uint32_t a[4];
        ptx::ldmatrix_x4(a, queries + panel_offset<kRows>(query, 2 * step + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < kSlots / 16; ++n) {
            uint32_t key[4];
            ptx::ldmatrix_x4(key, keys + panel_offset<kSlots>(n * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                              2 * step + ((lane >> 3) & 1)));
            ptx::mma_bf16(scores[2 * n], a, key[0], key[1]);
            ptx::mma_bf16(scores[2 * n + 1], a, key[2], key[3]);
        }
    }
#endif
}

// out += the warp's 16 rows of weights x 64 values.
__device__ __forceinline__ void multiply_values(const uint32_t (&weights)[kSlots / 16][4], uint32_t values,
                                                float (&out)[kValue / 8][4]) {
#ifdef KDT_WGMMA
    const uint32_t columns = n_major(values, kSlots * 128);
    begin_products();
#pragma unroll
    for (int step = 0; step < kSlots / 16; ++step)
        multiply_64x128(out, weights[step], further(columns, step * 2 * kAtomBytes));
    end_products(out);
#else
    const int lane = thread_anew() % kWarpSize;
#pragma unroll
    for (int step = 0; step < kSlots / 16; ++step) {
#pragma unroll
        for (int n = 0; n < kValue / 16; ++n) {
            uint32_t value[4];
            ptx::ldmatrix_x4_trans(value, values + panel_offset<kSlots>(step * 16 + (lane & 15), n * 2 + (lane >> 4)));
            ptx::mma_bf16(out[2 * n], weights[step], value[0], value[1]);
            ptx::mma_bf16(out[2 * n + 1], weights[step], value[2], value[3]);
        }
    }
#endif
}

// Scores of a tile to weights e^(score - maximum) in bf16, as the left operand of multiply_values; sums and out are
// rescaled where the maximum has grown.
__device__ __forceinline__ void weigh(const Args& args, const SlotTiles& tiles, int tile,
                                      float (&scores)[kSlots / 8][4], float (&maximum)[2], float* sums,
                                      uint32_t (&weights)[kSlots / 16][4], float (&out)[kValue / 8][4]) {
    if (tiles.is_masked(tile)) {
        // Lane r asks for row r of the warp's.
        const int lane = thread_anew() % kWarpSize;
        const int warp_row = thread_anew() / kWarpSize * 16;
        const uint64_t own = tiles.visible(args, tile, tiles.first_row() + warp_row + lane % 16);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const uint64_t visible = __shfl_sync(kAllLanes, own, lane / 4 + 8 * h) >> lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < kSlots / 8; ++n) {
                if ((visible >> (n * 8) & 1) == 0) scores[n][2 * h] = -INFINITY;
                if ((visible >> (n * 8 + 1) & 1) == 0) scores[n][2 * h + 1] = -INFINITY;
            }
        }
    }
    float rescale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float top = maximum[h];
#pragma unroll
        for (int n = 0; n < kSlots / 8; ++n) top = fmaxf(top, fmaxf(scores[n][2 * h], scores[n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
        top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
        // A row that has seen nothing yet stays at -inf, and -inf - -inf would be NaN.
        rescale[h] = top == -INFINITY ? 1.0f : ptx::exp2_approx((maximum[h] - top) * args.scale_log2);
        maximum[h] = top;
    }
    const int thread = thread_anew();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float base = maximum[h] == -INFINITY ? 0.0f : maximum[h] * args.scale_log2;
        float sum = sums[h * kThreads + thread] * rescale[h];
#pragma unroll
        for (int n = 0; n < kSlots / 8; ++n) {
            const float w0 = ptx::exp2_approx(fmaf(scores[n][2 * h], args.scale_log2, -base));
            const float w1 = ptx::exp2_approx(fmaf(scores[n][2 * h + 1], args.scale_log2, -base));
            sum += w0 + w1;
            const __nv_bfloat162 pair = __floats2bfloat162_rn(w0, w1);
            weights[n / 2][n % 2 * 2 + h] = *reinterpret_cast<const uint32_t*>(&pair);
        }
        sums[h * kThreads + thread] = sum;
    }
    if (__any_sync(kAllLanes, rescale[0] != 1.0f || rescale[1] != 1.0f)) {
#pragma unroll
        for (int n = 0; n < kValue / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) out[n][i] *= rescale[i / 2];
    }
}

// Waits until at most the latest group of this thread's copies is under way, and shows the others to all threads.
__device__ __forceinline__ void land_copies() {
    ptx::cp_async_wait<1>();
#ifdef KDT_WGMMA
    publish_copies();
#endif
    __syncthreads();
}

// All tiles of the split from `tile` on, which is on its way. A warpgroup without a row that sees anything (of a last
// row tile, say: 64-wide budgets spill a root) only loads.
template <bool kWorks>
__device__ __forceinline__ void attend_tiles(const Args& args, const SlotTiles& tiles, int tile, uint32_t queries_at,
                                             float* sums, float (&maximum)[2], float (&out)[kValue / 8][4]) {
    const uint32_t keys_at = queries_at + kQueryBytes;
    const uint32_t values_at = keys_at + kKeyBytes;
    while (tile < tiles.end) {
        land_copies();  // queries and keys; values may still be on their way
        float scores[kSlots / 8][4];
        if constexpr (kWorks) multiply_keys(queries_at, keys_at, scores);
        const int next = tiles.next_seen(tile + 1);
        __syncthreads();  // the keys are done with
        load_keys(args, tiles, tiles.at(next), keys_at);
        ptx::cp_async_commit();

        uint32_t weights[kSlots / 16][4];
        if constexpr (kWorks) weigh(args, tiles, tile, scores, maximum, sums, weights, out);

        land_copies();  // values
        if constexpr (kWorks) multiply_values(weights, values_at, out);
        __syncthreads();  // the values are done with
        load_values(args, tiles, tiles.at(next), values_at);
        ptx::cp_async_commit();
        tile = next;
    }
}

// Blocks that read the same keys and values are neighbours.
__global__ void __launch_bounds__(kThreads, kAttendBlocks) attend(const Args args) {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    // Sums of weights of this thread's two rows over its own columns, [2][kThreads].
    float* const sums = reinterpret_cast<float*>(dynamic_shared + kQueryBytes + kKeyBytes + kValueBytes);
    SlotTiles& tiles =
        *reinterpret_cast<SlotTiles*>(dynamic_shared + kQueryBytes + kKeyBytes + kValueBytes + kSumBytes);
    const uint32_t queries_at = ptx::shared_address(dynamic_shared);

    tiles.survey(args);
    const int tile = tiles.attends() ? tiles.next_seen(tiles.begin) : tiles.end;
    float out[kValue / 8][4] = {};
    float maximum[2] = {-INFINITY, -INFINITY};  // of scores before softmax_scale
    sums[threadIdx.x] = sums[kThreads + threadIdx.x] = 0.0f;
    if (tile < tiles.end) {
        const SlotTile first = tiles.at(tile);
        load_queries(args, tiles, queries_at);
        load_keys(args, tiles, first, queries_at + kQueryBytes);
        ptx::cp_async_commit();
        load_values(args, tiles, first, queries_at + kQueryBytes + kKeyBytes);
        ptx::cp_async_commit();
    }
    if (tiles.is_at_work(threadIdx.x))
        attend_tiles<true>(args, tiles, tile, queries_at, sums, maximum, out);
    else
        attend_tiles<false>(args, tiles, tile, queries_at, sums, maximum, out);
    ptx::cp_async_wait<0>();

    const int lane = threadIdx.x % kWarpSize;
    const int64_t partial = ((int64_t{tiles.unit} * args.tiles + tiles.row_tile) * args.splits + tiles.split) * kRows;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int r = static_cast<int>(threadIdx.x) / kWarpSize * 16 + lane / 4 + 8 * h;
        const int node = tiles.first_row() + r;
        float total = sums[h * kThreads + threadIdx.x];
        total += __shfl_xor_sync(kAllLanes, total, 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        // A pad's sums are those of the prefix, or NaN.
        if (!tiles.is_live(r)) total = 0.0f;
        const float lse = total == 0.0f ? -INFINITY : maximum[h] * args.scale_log2 + log2f(total);
        const float factor = total == 0.0f ? 0.0f : 1.0f / total;
        const int64_t at = (int64_t{tiles.b} * args.max_nodes + node) * args.num_qo_heads + tiles.head;
        if (lane % 4 == 0) {
            if (args.splits > 1)
                args.partial_lse[partial + r] = lse;
            else if (node < args.max_nodes)
                args.lse[at] = lse * kLn2;
        }
#pragma unroll
        for (int n = 0; n < kValue / 8; ++n) {
            const float x = total == 0.0f ? 0.0f : out[n][2 * h] * factor;
            const float y = total == 0.0f ? 0.0f : out[n][2 * h + 1] * factor;
            const int column = n * 8 + lane % 4 * 2;
            if (args.splits > 1) {
                if (total != 0.0f)
                    *reinterpret_cast<float2*>(args.partial_out + (partial + r) * kValue + column) = make_float2(x, y);
            } else if (node < args.max_nodes) {
                *reinterpret_cast<__nv_bfloat162*>(args.out + at * kValue + column) = __floats2bfloat162_rn(x, y);
            }
        }
    }
}

}  // namespace kdt::cuda::verify_mla

#endif  // KDTREE_CUDA_VERIFY_MLA_ATTEND_CUH
