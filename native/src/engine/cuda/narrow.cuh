// SPDX-License-Identifier: Apache-2.0
//
// Products with few rows: y = x w^T where x has tens of rows. Weights are read once, straight into the registers of the
// tensor cores: 16 of w's rows are the 16 rows of an mma, 8 of x's rows its 8 columns. The warps of a block share the
// inner dimension.
//
// An mma wants of each row, in lane t of four, values 2t, 2t + 1, 2t + 8, 2t + 9 of a step of 16. Both operands may be
// permuted alike along the inner dimension, so lane t takes 8 consecutive values, one load of 16 bytes, of a step
// of 32.
//
// What a row's sums are does not depend on the number of rows: plain and speculative decoding get the same bits.
#ifndef KDTREE_ENGINE_CUDA_NARROW_CUH
#define KDTREE_ENGINE_CUDA_NARROW_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/mma.cuh"
#include "engine/cuda/act.cuh"

namespace kdt::engine {

constexpr int kNarrowFeatures = 16;  // w's rows a block takes
constexpr int kNarrowStep = 32;
constexpr int kTileRows = 8;  // x's rows in an mma

// Warps that share `in`: of it alone, so that the order of sums is.
inline int narrow_warps(int in) {
    const int steps = ceil_div(in, kNarrowStep);
    return steps >= 8 ? 8 : steps >= 4 ? 4 : steps >= 2 ? 2 : 1;
}

__device__ __forceinline__ uint4 load_words(const Bf16* from, int at, int in) {
    return from != nullptr && at < in ? *reinterpret_cast<const uint4*>(from + at) : make_uint4(0, 0, 0, 0);
}
// Weights: nothing writes them while kernels run.
__device__ __forceinline__ uint4 load_weights(const Bf16* from, int at, int in) {
    return from != nullptr && at < in ? __ldg(reinterpret_cast<const uint4*>(from + at)) : make_uint4(0, 0, 0, 0);
}

// kUnroll steps' weights of one lane: rows g and g + 8 of the 16.
template <int kUnroll>
struct NarrowWeights {
    uint4 low[kUnroll], high[kUnroll];

    __device__ __forceinline__ void load(const Bf16* low_row, const Bf16* high_row, int at, int stride, int in) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            low[u] = load_weights(low_row, at + u * stride, in);
            high[u] = load_weights(high_row, at + u * stride, in);
        }
    }
};

__device__ __forceinline__ void narrow_mma(float (&sums)[4], uint4 low, uint4 high, uint4 x) {
    const uint32_t first[4] = {low.x, high.x, low.y, high.y};
    const uint32_t second[4] = {low.z, high.z, low.w, high.w};
    cuda::ptx::mma_bf16(sums, first, x.x, x.y);
    cuda::ptx::mma_bf16(sums, second, x.z, x.w);
}

// Adds up over this warp's share of `in`: the steps at `begin`, begin + stride, ..., of which `weights` holds the first
// kUnroll already. `offset` is the lane's place in a step. Rows that do not exist are NULL. Sums of lane 4 g + t: w's
// rows g (0, 1) and g + 8 (2, 3), x's rows 2 t and 2 t + 1 of each tile.
template <int kTiles, int kUnroll>
__device__ __forceinline__ void narrow_sums(float (&sums)[kTiles][4], NarrowWeights<kUnroll>& weights,
                                            const Bf16* low_row, const Bf16* high_row,
                                            const Bf16* const (&x_rows)[kTiles], int begin, int offset, int stride,
                                            int in) {
    for (int step = begin; step < in; step += kUnroll * stride) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
            uint4 x[kTiles];
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
                x[tile] = load_words(x_rows[tile], step + u * stride + offset, in);
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) narrow_mma(sums[tile], weights.low[u], weights.high[u], x[tile]);
        }
        weights.load(low_row, high_row, step + kUnroll * stride + offset, stride, in);
    }
}

// Each warp's sums side by side, to be added in the order of warps.
template <int kTiles>
struct NarrowShared {
    static constexpr int kStride = kNarrowFeatures + 2;  // even: pairs of sums stay in different banks
    float sums[8][kTiles * kTileRows][kStride];

    __device__ __forceinline__ void put(int warp, int lane, const float (&values)[kTiles][4]) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            float(*const rows)[kStride] = sums[warp] + tile * kTileRows + 2 * t;
            rows[0][g] = values[tile][0];
            rows[1][g] = values[tile][1];
            rows[0][g + 8] = values[tile][2];
            rows[1][g + 8] = values[tile][3];
        }
    }

    __device__ __forceinline__ float total(int warps, int row, int feature) const {
        float sum = 0.0f;
        for (int w = 0; w < warps; ++w) sum += sums[w][row][feature];
        return sum;
    }
};

}  // namespace kdt::engine

#endif  // KDTREE_ENGINE_CUDA_NARROW_CUH
