// SPDX-License-Identifier: Apache-2.0
//
// Second kernel of verify_attn, when slots are split: a block a row adds the splits' partial results, in their order
// whatever order they were computed in.
#ifndef KDTREE_CUDA_VERIFY_ATTN_COMBINE_CUH
#define KDTREE_CUDA_VERIFY_ATTN_COMBINE_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/verify_attn/attend.cuh"
#include "cuda/verify_attn/layout.cuh"

namespace kdt::cuda::verify_attn {

constexpr int kCombineThreads = kRank / 4;
static_assert(kMaxSplits <= kCombineThreads, "a thread looks at one split");

template <class T>
__global__ void __launch_bounds__(kCombineThreads) combine(const Args args) {
    __shared__ float weights[kMaxSplits];
    const int b = blockIdx.x / args.num_rows;
    const int row = blockIdx.x % args.num_rows;
    const int64_t first_unit = (int64_t{b} * args.tiles + row / T::kRows) * args.splits;
    const int row_in_tile = row % T::kRows;
    const int thread = threadIdx.x;
    const int lane = thread % kWarpSize;

    // A request is refused when any split of the tile says so: together they saw all its pages.
    int refused = 0;
    if (thread < args.splits) {
        refused = args.partials.status[first_unit + thread];
        weights[thread] = args.partials.lse[(first_unit + thread) * T::kRows + row_in_tile];
    }
    const bool any_refused = __syncthreads_or(refused != 0);
    if (row == 0 && args.status != nullptr) {
        // All splits that refuse do it for the same reason.
        if (refused != 0) args.status[b] = refused;
        if (thread == 0 && !any_refused) args.status[b] = 0;
    }

    // Each warp for itself, the same way: maximum, weights, their sum.
    float lse[kMaxSplits / kWarpSize];
    float maximum = -INFINITY;
#pragma unroll
    for (int k = 0; k < kMaxSplits / kWarpSize; ++k) {
        const int s = k * kWarpSize + lane;
        lse[k] = s < args.splits ? weights[s] : -INFINITY;
        maximum = fmaxf(maximum, lse[k]);
    }
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2)
        maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, step));

    const int64_t at = int64_t{b} * args.num_rows + row;
    uint2* const out = reinterpret_cast<uint2*>(args.out + at * kRank) + thread;
    if (any_refused || maximum == -INFINITY) {  // a pad
        *out = make_uint2(0, 0);
        if (thread == 0) args.lse[at] = -INFINITY;
        return;
    }
    float total = 0.0f;
#pragma unroll
    for (int k = 0; k < kMaxSplits / kWarpSize; ++k) {
        lse[k] = ptx::exp2_approx(lse[k] - maximum);
        total += lse[k];
    }
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
    __syncthreads();  // all warps have read the lse of all splits
    if (thread < kWarpSize) {
#pragma unroll
        for (int k = 0; k < kMaxSplits / kWarpSize; ++k) weights[k * kWarpSize + lane] = lse[k];
    }
    __syncthreads();

    const float4* const partial =
        reinterpret_cast<const float4*>(args.partials.out + (first_unit * T::kRows + row_in_tile) * kRank) + thread;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int s = 0; s < args.splits; ++s) {
        const float weight = weights[s];
        if (weight == 0.0f) continue;  // that split may not have written anything
        const float4 part = partial[int64_t{s} * T::kRows * (kRank / 4)];
        sum.x += weight * part.x;
        sum.y += weight * part.y;
        sum.z += weight * part.z;
        sum.w += weight * part.w;
    }
    const float scale = 1.0f / total;
    const __nv_bfloat162 low = __floats2bfloat162_rn(sum.x * scale, sum.y * scale);
    const __nv_bfloat162 high = __floats2bfloat162_rn(sum.z * scale, sum.w * scale);
    *out = make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
    if (thread == 0) args.lse[at] = (maximum + log2f(total)) * kLn2;
}

}  // namespace kdt::cuda::verify_attn

#endif  // KDTREE_CUDA_VERIFY_ATTN_COMBINE_CUH
