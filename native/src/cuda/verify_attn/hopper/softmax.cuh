// SPDX-License-Identifier: Apache-2.0
//
// Softmax of one tile of scores in the registers of a warpgroup, relative to a running reference.
//
// The reference of a row is some score not far below the greatest so far. It is raised only when a score exceeds it by
// more than kSlack: weights are then at most 2^kSlack, which costs bf16 and f32 no accuracy, and earlier sums seldom
// have to be rescaled (the idea is FlashAttention-4's).
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_SOFTMAX_CUH
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_SOFTMAX_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/verify_attn/hopper/layout.cuh"

namespace kdt::cuda::verify_attn::hopper {

constexpr float kSlack = 8.0f;

// Of a thread's two rows: 16 warp + lane / 4, and 8 further.
struct RowState {
    float reference[2] = {-INFINITY, -INFINITY};  // in units of log2
    float sum[2] = {0.0f, 0.0f};                  // over the columns of this thread, of the tiles of its warpgroup
};

// A row's reference becomes `next`; returns what sums so far are to be multiplied by.
__device__ __forceinline__ float move_reference(RowState& state, int h, float next) {
    if (next == state.reference[h]) return 1.0f;
    const float factor = ptx::exp2_approx(state.reference[h] - next);
    state.reference[h] = next;
    state.sum[h] *= factor;
    return factor;
}

// Hides the slots whose bits are not set in visible, a word a row.
__device__ __forceinline__ void mask_scores(float (&scores)[32], const uint64_t (&visible)[2]) {
    const int first = static_cast<int>(threadIdx.x % 4) * 2;
    const uint64_t bits[2] = {visible[0] >> first, visible[1] >> first};
#pragma unroll
    for (int i = 0; i < 32; ++i)
        if ((bits[i / 2 % 2] >> (i / 4 * 8 + i % 2) & 1) == 0) scores[i] = -INFINITY;
}

// Scores (layout of wgmma's sums) to weights 2^(score - reference) in bf16 (layout of wgmma's A operand).
__device__ __forceinline__ void weigh_scores(float (&scores)[32], float scale_log2, RowState& state,
                                             uint32_t (&weights)[4][4], float (&factor)[2]) {
    float maximum[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 32; ++i) maximum[i / 2 % 2] = fmaxf(maximum[i / 2 % 2], scores[i]);
    float base[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(kAllLanes, maximum[h], 1));
        maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(kAllLanes, maximum[h], 2));
        const float top = maximum[h] * scale_log2;
        factor[h] = move_reference(state, h, top > state.reference[h] + kSlack ? top : state.reference[h]);
        // A row that has seen nothing yet stays at -inf, and -inf - -inf would be NaN.
        base[h] = state.reference[h] == -INFINITY ? 0.0f : state.reference[h];
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float w0 = ptx::exp2_approx(fmaf(scores[4 * n + 2 * h], scale_log2, -base[h]));
            const float w1 = ptx::exp2_approx(fmaf(scores[4 * n + 2 * h + 1], scale_log2, -base[h]));
            state.sum[h] += w0 + w1;
            const __nv_bfloat162 pair = __floats2bfloat162_rn(w0, w1);
            weights[n / 2][n % 2 * 2 + h] = *reinterpret_cast<const uint32_t*>(&pair);
        }
    }
}

// Weights to shared memory, swizzled like every tile, for the other warpgroup; `box` is where they go.
__device__ __forceinline__ void store_weights(const uint32_t (&weights)[4][4], uint32_t box, int warp, int lane) {
    const int row = warp * 16 + lane % 16;
    const uint32_t at = box + static_cast<uint32_t>(row * kBoxRowBytes + ((lane / 16 ^ (row & 7)) << 4));
#pragma unroll
    for (int k = 0; k < 4; ++k)
        ptx::stmatrix_x4(at ^ (k << 5), weights[k][0], weights[k][1], weights[k][2], weights[k][3]);
}

// Multiplies the rows of a warpgroup's half of the output; most often by 1, which a warp leaves out.
__device__ __forceinline__ void rescale(float (&out)[128], const float (&factor)[2]) {
    if (!__any_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < 128; ++i) out[i] *= factor[i / 2 % 2];
}

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_SOFTMAX_CUH
