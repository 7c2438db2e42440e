// SPDX-License-Identifier: Apache-2.0
//
// The projections of absorb mode for few rows: a 128 x 128 tile would be mostly empty then, and a block that walks down
// the whole depth alone is slow. Here a block has 8 rows, and its eight warps share columns and depth: each takes 16
// columns and 64 of the depth, which it asks for all at once.
//
// The weights are the mma's 16 rows, the queries its 8 columns.
#ifndef KDTREE_CUDA_VERIFY_MLA_NARROW_CUH
#define KDTREE_CUDA_VERIFY_MLA_NARROW_CUH

#include <cstdint>

#include "cuda/overlap.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/verify_mla/layout.cuh"

namespace kdt::cuda::verify_mla {

constexpr int kNarrowRows = 8;
constexpr int kNarrowColumns = 16;  // of a warp
constexpr int kNarrowDepth = 64;    // of a warp

// c[row, h] = a[row, h] w[h], w [H, kDepth, kColumns].
struct NarrowProduct {
    const __nv_bfloat16* a;
    const __nv_bfloat16* w;
    __nv_bfloat16* c;
    int rows;
    int num_qo_heads;
};

template <int kDepth>
constexpr int kNarrowBlockColumns = kWarps / (kDepth / kNarrowDepth) * kNarrowColumns;

// Grid: column tiles, heads, tiles of 8 rows.
template <int kDepth, int kColumns>
__global__ void __launch_bounds__(kThreads) multiply_narrow(const NarrowProduct args) {
    constexpr int kShares = kDepth / kNarrowDepth;  // warps that share the depth
    constexpr int kBlockColumns = kNarrowBlockColumns<kDepth>;
    constexpr int kSumStride = kNarrowColumns + 2;
    __shared__ __align__(16) __nv_bfloat16 slices[kWarps][kNarrowDepth][kNarrowColumns];
    __shared__ float sums[kWarps][kNarrowRows][kSumStride];
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4, t = lane % 4;
    const int share = warp % kShares;
    const int column = static_cast<int>(blockIdx.x) * kBlockColumns + warp / kShares * kNarrowColumns;
    const int head = static_cast<int>(blockIdx.y);
    const int64_t first = int64_t{blockIdx.z} * kNarrowRows;
    wait_for_earlier_kernels();

    // 16-byte halves of the slice's rows, the two exchanged in every other group of four rows: the eight rows that
    // ldmatrix reads at once then lie in different banks.
    const __nv_bfloat16* const w = args.w + (int64_t{head} * kDepth + share * kNarrowDepth) * kColumns + column;
    const uint32_t slice = ptx::shared_address(slices[warp]);
    const auto half_of = [&](int row, int half) {
        return slice + static_cast<uint32_t>(row * 32 + (half ^ (row >> 2 & 1)) * 16);
    };
#pragma unroll
    for (int i = 0; i < kNarrowDepth * 2 / 32; ++i) {
        const int row = i * 16 + lane / 2, half = lane % 2;
        ptx::cp_async_16(half_of(row, half), w + int64_t{row} * kColumns + half * 8, true);
    }
    ptx::cp_async_commit();
    uint32_t a[kNarrowDepth / 16][2] = {};
    if (first + g < args.rows) {
        const __nv_bfloat16* const from =
            args.a + ((first + g) * args.num_qo_heads + head) * kDepth + share * kNarrowDepth + 2 * t;
#pragma unroll
        for (int k = 0; k < kNarrowDepth / 16; ++k) {
            a[k][0] = *reinterpret_cast<const uint32_t*>(from + k * 16);
            a[k][1] = *reinterpret_cast<const uint32_t*>(from + k * 16 + 8);
        }
    }
    ptx::cp_async_wait<0>();
    __syncwarp();
    let_next_kernel_come();
    float c[4] = {};
#pragma unroll
    for (int k = 0; k < kNarrowDepth / 16; ++k) {
        uint32_t weights[4];
        ptx::ldmatrix_x4_trans(weights, half_of(k * 16 + (lane >> 4) * 8 + (lane & 7), lane >> 3 & 1));
        ptx::mma_bf16(c, weights, a[k][0], a[k][1]);
    }
    float(*const own)[kSumStride] = sums[warp];
    own[2 * t][g] = c[0];
    own[2 * t + 1][g] = c[1];
    own[2 * t][g + 8] = c[2];
    own[2 * t + 1][g + 8] = c[3];
    __syncthreads();
    for (int item = static_cast<int>(threadIdx.x); item < kNarrowRows * kBlockColumns / 2; item += kThreads) {
        const int row = item / (kBlockColumns / 2), at = item % (kBlockColumns / 2) * 2;
        if (first + row >= args.rows) continue;
        float low = 0.0f, high = 0.0f;
#pragma unroll
        for (int s = 0; s < kShares; ++s) {
            const float* const part = sums[at / kNarrowColumns * kShares + s][row] + at % kNarrowColumns;
            low += part[0];
            high += part[1];
        }
        *reinterpret_cast<__nv_bfloat162*>(args.c + ((first + row) * args.num_qo_heads + head) * kColumns +
                                           int64_t{blockIdx.x} * kBlockColumns + at) = __floats2bfloat162_rn(low, high);
    }
}

template <int kDepth, int kColumns>
void launch_narrow(const NarrowProduct& args, cudaStream_t stream) {
    const dim3 grid(kColumns / kNarrowBlockColumns<kDepth>, static_cast<unsigned>(args.num_qo_heads),
                    static_cast<unsigned>((args.rows + kNarrowRows - 1) / kNarrowRows));
    launch_overlapped(multiply_narrow<kDepth, kColumns>, grid, kThreads, stream, args);
}

}  // namespace kdt::cuda::verify_mla

#endif  // KDTREE_CUDA_VERIFY_MLA_NARROW_CUH
