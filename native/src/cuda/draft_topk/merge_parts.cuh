// SPDX-License-Identifier: Apache-2.0
//
// The logsumexp of a row from what the warps of its blocks left.
#ifndef KDTREE_CUDA_DRAFT_TOPK_MERGE_PARTS_CUH
#define KDTREE_CUDA_DRAFT_TOPK_MERGE_PARTS_CUH

#include <cmath>
#include <cstdint>

#include "cuda/draft_topk/group.cuh"
#include "cuda/draft_topk/layout.cuh"

namespace kdt::cuda::draft_topk {

// Logsumexp and status of the row, by one warp. The parts lie in the order of the blocks and are added in it.
__device__ inline void merge_parts(Shared& shared, const Plan& plan, const Mail& mail) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int parts = plan.blocks() * kWarps;
    float top = -INFINITY;
    int32_t status = 0;
#pragma unroll 1
    for (int i = lane; i < parts; i += kWarpSize) {
        top = fmaxf(top, mail.parts[i].top);
        status |= mail.parts[i].status;
    }
    top = logit_of<float>(__reduce_max_sync(kAllLanes, key_of<float>(top)));
    status = static_cast<int32_t>(__reduce_or_sync(kAllLanes, static_cast<uint32_t>(status)));
    float sum = 0.0f;
#pragma unroll 1
    for (int i = lane; i < parts; i += kWarpSize) sum += mail.parts[i].sum * exp_of(mail.parts[i].top - top);
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane != 0) return;
    shared.refused = status;
    // The largest logit counts as 1, whatever was lost on the way: no log-prob is above zero. When every logit is -inf
    // no token is possible, and each keeps its -inf.
    shared.logsumexp = top > -INFINITY ? top + logf(fmaxf(sum, 1.0f)) : 0.0f;
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_MERGE_PARTS_CUH
