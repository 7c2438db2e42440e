// SPDX-License-Identifier: Apache-2.0
//
// One slot tile of attention: scores, their softmax weights relative to a running maximum ("online softmax"), and the
// weighted sum of the latents, all on tensor cores (bf16 operands, f32 sums).
#ifndef KDTREE_CUDA_VERIFY_ATTN_SCORE_CUH
#define KDTREE_CUDA_VERIFY_ATTN_SCORE_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/verify_attn/layout.cuh"
#include "cuda/verify_attn/load.cuh"

namespace kdt::cuda::verify_attn {

// Byte offset of a 16-byte chunk among the weights, permuted like the latents; with 32 slots two rows share all banks.
template <class T>
__device__ __forceinline__ uint32_t weight_offset(int row, int chunk) {
    const int turn = T::kSlots == 64 ? row & 7 : (row >> 1) & 3;
    return static_cast<uint32_t>(row * T::kSlots * 2 + ((chunk ^ turn) << 4));
}

// scores = queries (16 rows of this warp) x latents (kScoreTiles * 8 slots of this warp), over all 576 columns.
template <class T>
__device__ __forceinline__ void multiply_scores(uint32_t queries, uint32_t latents, int warp_m, int warp_n, int lane,
                                                float (&scores)[T::kScoreTiles][4]) {
    const int a_row = warp_m * 16 + (lane & 15);
    const int a_half = lane >> 4;
    constexpr int kWarpSlots = T::kScoreTiles * 8;
    if constexpr (T::kScoreTiles == 1) {
        // Two steps of 16 columns for one load of latents; two sums, because one would be a chain of 36 products.
        const int b_row = warp_n * kWarpSlots + (lane & 7);
        float odd[4] = {};
#pragma unroll 3
        for (int c = 0; c < kLatentChunks; c += 4) {
            uint32_t b[4], a0[4], a1[4];
            ptx::ldmatrix_x4(b, latents + latent_offset(b_row, c + (lane >> 3)));
            ptx::ldmatrix_x4(a0, queries + latent_offset(a_row, c + a_half));
            ptx::ldmatrix_x4(a1, queries + latent_offset(a_row, c + 2 + a_half));
            ptx::mma_bf16(scores[0], a0, b[0], b[1]);
            ptx::mma_bf16(odd, a1, b[2], b[3]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[0][i] += odd[i];
    } else {
        const int b_row = warp_n * kWarpSlots + (lane & 7) + ((lane >> 4) << 3);
        const int b_half = (lane >> 3) & 1;
        constexpr int kPairs = T::kScoreTiles / 2;
        // Operands of the next 16 columns are fetched before those at hand are multiplied.
        uint32_t a[2][4];
        uint32_t b[2][kPairs][4];
        const auto fetch = [&](int c, int buffer) {
            ptx::ldmatrix_x4(a[buffer], queries + latent_offset(a_row, c + a_half));
#pragma unroll
            for (int n = 0; n < kPairs; ++n)
                ptx::ldmatrix_x4(b[buffer][n], latents + latent_offset(b_row + n * 16, c + b_half));
        };
        fetch(0, 0);
#pragma unroll
        for (int step = 0; step < kLatentChunks / 2; ++step) {
            if (step + 1 < kLatentChunks / 2) fetch(2 * step + 2, (step + 1) % 2);
            const auto& a_now = a[step % 2];
#pragma unroll
            for (int n = 0; n < kPairs; ++n) {
                const auto& b_now = b[step % 2][n];
                ptx::mma_bf16(scores[2 * n], a_now, b_now[0], b_now[1]);
                ptx::mma_bf16(scores[2 * n + 1], a_now, b_now[2], b_now[3]);
            }
        }
    }
}

// out (all rows, 64 columns of this warp) += weights x latents.
template <class T>
__device__ __forceinline__ void multiply_values(uint32_t weights, uint32_t latents, int warp, int lane,
                                                float (&out)[T::kRows / 16][8][4]) {
    const int half = lane >> 4;
#pragma unroll
    for (int step = 0; step < T::kSlots / 16; ++step) {
        const int slot = step * 16 + (lane & 15);
        uint32_t values[4][4];
#pragma unroll
        for (int n = 0; n < 4; ++n)
            ptx::ldmatrix_x4_trans(values[n], latents + latent_offset(slot, warp * 8 + n * 2 + half));
#pragma unroll
        for (int m = 0; m < T::kRows / 16; ++m) {
            uint32_t a[4];
            ptx::ldmatrix_x4(a, weights + weight_offset<T>(m * 16 + (lane & 15), step * 2 + half));
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                ptx::mma_bf16(out[m][2 * n], a, values[n][0], values[n][1]);
                ptx::mma_bf16(out[m][2 * n + 1], a, values[n][2], values[n][3]);
            }
        }
    }
}

// The softmax state of a thread's two rows (g and g + 8 of its warp's 16), the sums over its own columns only.
struct RowState {
    float maximum[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0.0f, 0.0f};
};

// Scales scores and, with kMasked, hides what a row does not see (bit = slot of the tile); returns the rows' maxima
// over the warp's slots.
template <class T, bool kMasked>
__device__ __forceinline__ void scale_scores(float (&scores)[T::kScoreTiles][4], const uint64_t (&visible)[2],
                                             float scale_log2, int warp_n, int lane, float (&maximum)[2]) {
    const int first = warp_n * T::kScoreTiles * 8 + (lane & 3) * 2;
    const uint64_t bits[2] = {visible[0] >> first, visible[1] >> first};
    maximum[0] = maximum[1] = -INFINITY;
#pragma unroll
    for (int n = 0; n < T::kScoreTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            scores[n][i] *= scale_log2;
            if (kMasked && (bits[i / 2] >> (n * 8 + i % 2) & 1) == 0) scores[n][i] = -INFINITY;
            maximum[i / 2] = fmaxf(maximum[i / 2], scores[n][i]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(kAllLanes, maximum[h], 1));
        maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(kAllLanes, maximum[h], 2));
    }
}

// Turns scores into weights 2^(score - maximum), stored as bf16, and folds them into the rows' state. `maximum` is that
// of the whole tile; `rescale` says what to multiply earlier sums by.
template <class T>
__device__ __forceinline__ void weigh_scores(float (&scores)[T::kScoreTiles][4], const float (&maximum)[2],
                                             RowState& state, unsigned char* weights, int warp_m, int warp_n, int lane,
                                             float (&rescale)[2]) {
    float base[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float now = fmaxf(state.maximum[h], maximum[h]);
        // A row that has seen nothing yet stays at -inf, and -inf - -inf would be NaN.
        base[h] = now == -INFINITY ? 0.0f : now;
        rescale[h] = ptx::exp2_approx(state.maximum[h] - base[h]);
        state.maximum[h] = now;
        state.sum[h] *= rescale[h];
    }
    const int row = warp_m * 16 + (lane >> 2);
#pragma unroll
    for (int n = 0; n < T::kScoreTiles; ++n) {
        const int chunk = warp_n * T::kScoreTiles + n;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float w0 = ptx::exp2_approx(scores[n][2 * h] - base[h]);
            const float w1 = ptx::exp2_approx(scores[n][2 * h + 1] - base[h]);
            state.sum[h] += w0 + w1;
            *reinterpret_cast<__nv_bfloat162*>(weights + weight_offset<T>(row + 8 * h, chunk) + (lane & 3) * 4) =
                __floats2bfloat162_rn(w0, w1);
        }
    }
}

}  // namespace kdt::cuda::verify_attn

#endif  // KDTREE_CUDA_VERIFY_ATTN_SCORE_CUH
