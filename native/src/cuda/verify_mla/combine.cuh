// SPDX-License-Identifier: Apache-2.0
//
// Last kernel of verify_mla's mha mode when slots are split: a warp a row adds the splits' partial results, in their
// order whatever order they were computed in.
#ifndef KDTREE_CUDA_VERIFY_MLA_COMBINE_CUH
#define KDTREE_CUDA_VERIFY_MLA_COMBINE_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/verify_mla/attend.cuh"
#include "cuda/verify_mla/layout.cuh"

namespace kdt::cuda::verify_mla {

static_assert(kMaxSplits <= kWarpSize, "a lane looks at one split");
static_assert(kValue == 4 * kWarpSize, "a lane adds four columns");

__global__ void __launch_bounds__(kThreads) combine(const Args args) {
    const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
    if (row >= int64_t{args.units} * args.max_nodes) return;
    const int unit = static_cast<int>(row / args.max_nodes);
    const int node = static_cast<int>(row % args.max_nodes);
    const int lane = threadIdx.x % kWarpSize;
    const int64_t first = (int64_t{unit} * args.tiles + node / kRows) * args.splits * kRows + node % kRows;

    const float lse = lane < args.splits ? args.partial_lse[first + int64_t{lane} * kRows] : -INFINITY;
    float maximum = lse;
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2)
        maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, step));
    const bool pad = maximum == -INFINITY;
    const float weight = pad ? 0.0f : ptx::exp2_approx(lse - maximum);
    float total = weight;
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);

    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int s = 0; s < args.splits; ++s) {
        const float share = __shfl_sync(kAllLanes, weight, s);
        if (share == 0.0f) continue;  // that split may not have written anything
        const float4 part =
            reinterpret_cast<const float4*>(args.partial_out + (first + int64_t{s} * kRows) * kValue)[lane];
        sum.x += share * part.x;
        sum.y += share * part.y;
        sum.z += share * part.z;
        sum.w += share * part.w;
    }
    const float scale = pad ? 0.0f : 1.0f / total;
    const __nv_bfloat162 low = __floats2bfloat162_rn(sum.x * scale, sum.y * scale);
    const __nv_bfloat162 high = __floats2bfloat162_rn(sum.z * scale, sum.w * scale);
    const int64_t at = (int64_t{args.batch_of(unit)} * args.max_nodes + node) * args.num_qo_heads + args.head_of(unit);
    reinterpret_cast<uint2*>(args.out + at * kValue)[lane] =
        make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
    if (lane == 0) args.lse[at] = pad ? -INFINITY : (maximum + log2f(total)) * kLn2;
}

}  // namespace kdt::cuda::verify_mla

#endif  // KDTREE_CUDA_VERIFY_MLA_COMBINE_CUH
