// SPDX-License-Identifier: Apache-2.0
//
// From a block's sums to rows: to the answer where the block is the only split, else to its shared memory, where
// add_splits() (reduce.cuh) finds them.
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_FINISH_CUH
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_FINISH_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/verify_attn/hopper/layout.cuh"
#include "cuda/verify_attn/hopper/softmax.cuh"

namespace kdt::cuda::verify_attn::hopper {

constexpr float kLn2 = 0.69314718f;

__device__ __forceinline__ void sync_consumers() {
    ptx::named_barrier_sync<kConsumers>(kAllConsumers);
}

__device__ __forceinline__ int64_t output_row(const Args& args, const Work& work, int r) {
    return int64_t{work.b} * args.num_rows + work.first_row + r;
}

// All rows of the block are pads, known before anything was computed.
__device__ __forceinline__ void write_nothing(const Args& args, const Work& work, int status) {
    if (work.group != 0 || work.split != 0) return;
    const int thread = threadIdx.x;
    if (work.tile == 0 && thread == 0 && args.status != nullptr) args.status[work.b] = status;
    if (thread < work.rows) args.lse[output_row(args, work, thread)] = -INFINITY;
    if (work.rows == 0) return;
    uint4* const out = reinterpret_cast<uint4*>(args.out + output_row(args, work, 0) * kRank);
    for (int i = thread; i < work.rows * kRank / 8; i += kThreads) out[i] = make_uint4(0, 0, 0, 0);
}

// The whole sum of weights of this thread's rows, and their lse to shared memory; answers what to scale the output by:
// 0 for a row that saw nothing.
__device__ __forceinline__ void finish_rows(const Args& args, const Work& work, RowState& state, int side, int warp,
                                            int lane, Shared& shared, float (&scale)[2]) {
    const int row = warp * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = state.sum[h];
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        if (lane % 4 == 0) shared.sums[side][row + 8 * h] = sum;
    }
    // The loading group has checked all pages, and nobody reads the stages any more.
    ptx::named_barrier_sync<kConsumers + kWarpgroup / 2>(kMainLoopDone);
    const int first_node = node_of(args, work.first_row);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int r = row + 8 * h;
        const int node = node_of(args, work.first_row + r) - first_node;
        const bool live = r < work.rows && (shared.live_nodes >> node & 1) != 0;
        // A pad has a sum as well, of the prefix or NaN.
        const float sum = live ? shared.sums[0][r] + shared.sums[1][r] : 0.0f;
        scale[h] = sum == 0.0f ? 0.0f : ptx::reciprocal_approx(sum);
        if (side == 0 && lane % 4 == 0)
            shared.lse[r] = sum == 0.0f ? -INFINITY : state.reference[h] + ptx::log2_approx(sum);
    }
}

// Where 8 columns of a row lie among a block's staged rows of 16-bit values, swizzled against bank conflicts.
__device__ __forceinline__ uint32_t staged_offset(int r, int chunk) {
    return static_cast<uint32_t>(r * kRank * 2 + ((chunk ^ (r & 7)) << 4));
}

__device__ __forceinline__ uint32_t pack_bf16(float x, float y) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

// The block's rows times `scale` to shared memory, in the format that pack makes of two values. Rows of pads may be NaN
// (their queries may hold anything), which their scale of 0 does not clear; they count for nothing.
template <class Pack>
__device__ __forceinline__ void stage_rows(const float (&out)[128], const float (&scale)[2], int side, int warp,
                                           int lane, Shared& shared, Pack pack) {
    const uint32_t at =
        ptx::shared_address(&shared.stages[0][0]) + staged_offset(warp * 16 + lane % 16, side * 32 + lane / 16);
#pragma unroll
    for (int n = 0; n < 32; n += 2) {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            pairs[i] = pack(out[4 * n + 2 * i] * scale[i % 2], out[4 * n + 2 * i + 1] * scale[i % 2]);
        ptx::stmatrix_x4(at ^ (n << 4), pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

// A split's rows, of weight 1, in f16 and units of a power of two that is their own: half a row's greatest value lies
// between 1 and 2 of them. That is eight times as exact as bf16, which would show in the sum of splits.
__device__ __forceinline__ void stage_split(const float (&out)[128], const float (&scale)[2], int side, int warp,
                                            int lane, Shared& shared) {
    float greatest[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 128; ++i) greatest[i / 2 % 2] = fmaxf(greatest[i / 2 % 2], fabsf(out[i]));
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        greatest[h] = fmaxf(greatest[h], __shfl_xor_sync(kAllLanes, greatest[h], 1));
        greatest[h] = fmaxf(greatest[h], __shfl_xor_sync(kAllLanes, greatest[h], 2)) * scale[h];
        // The exponent alone; 1 for zeros, subnormals and what is no number.
        const uint32_t exponent = __float_as_uint(greatest[h]) & 0x7f800000u;
        const bool ordinary = exponent != 0 && exponent < 0x7f000000u;
        if (lane % 4 == 0)
            shared.units[side][warp * 16 + lane / 4 + 8 * h] = ordinary ? __uint_as_float(exponent) : 1.0f;
        inverse[h] = ordinary ? scale[h] * __uint_as_float(0x7f000000u - exponent) : scale[h];
    }
    stage_rows(out, inverse, side, warp, lane, shared, [](float x, float y) { return ptx::pack_f16(x, y); });
}

// The only split: staged rows to the output, in whole lines.
__device__ __forceinline__ void write_rows(const Args& args, const Work& work, const float (&scale)[2], int side,
                                           int warp, int lane, Shared& shared) {
    const unsigned char* const staged = &shared.stages[0][0];
    const bool refused = shared.refused != 0;
    // Four lanes a row: bit 4 i stands for row i or i + 8 of the warp.
    const uint32_t low_pads = __ballot_sync(kAllLanes, scale[0] == 0.0f);
    const uint32_t high_pads = __ballot_sync(kAllLanes, scale[1] == 0.0f);
    // A warp's rows are its own.
    __syncwarp();
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
        const int r = warp * 16 + i;
        if (r >= work.rows) break;
        const bool pad = refused || ((i < 8 ? low_pads : high_pads) >> (i % 8 * 4) & 1) != 0;
        const uint4 chunk =
            pad ? make_uint4(0, 0, 0, 0) : *reinterpret_cast<const uint4*>(staged + staged_offset(r, side * 32 + lane));
        reinterpret_cast<uint4*>(args.out + output_row(args, work, r) * kRank + side * 256)[lane] = chunk;
    }
    if (side == 0) {
        const int r = warp * 16 + lane;
        if (lane < 16 && r < work.rows)
            args.lse[output_row(args, work, r)] = refused ? -INFINITY : shared.lse[r] * kLn2;
    }
    if (work.tile == 0 && side == 0 && warp == 0 && lane == 0 && args.status != nullptr)
        args.status[work.b] = shared.refused;
}

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_FINISH_CUH
