// SPDX-License-Identifier: Apache-2.0
//
// The sum of exponentials that a thread adds up as its logits come, and what a warp makes of its threads' sums.
#ifndef KDTREE_CUDA_DRAFT_TOPK_EXP_SUM_CUH
#define KDTREE_CUDA_DRAFT_TOPK_EXP_SUM_CUH

#include <cmath>
#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/draft_topk/cluster.cuh"
#include "cuda/draft_topk/group.cuh"
#include "cuda/draft_topk/layout.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda::draft_topk {

// A thread's sum of exp(logit - reference). The reference is about one of the thread's logits; it need not be the
// largest, only near enough that nothing overflows and no precision is lost. It is kept as a power of 2, so that a
// logit costs one multiply-add: what is subtracted is exactly what is kept, whatever rounding made of it.
struct ExpSum {
    static constexpr float kHeadroom = 8.0f;
    static constexpr float kHuge = 2e38f;  // logits beyond are no reference: times log2(e) they might overflow

    float sum = 0.0f;
    float reference = 0.0f;         // of 2
    float renew_above = -INFINITY;  // until there is a finite logit to refer to

    template <class T>
    __device__ __forceinline__ void add(const uint4& words) {
        const float from = reference;
        sum += Group<T>::sum_of(words, [from](float x) { return ptx::exp2_approx(fmaf(x, kLog2e, -from)); });
    }

    // The sum in terms of another reference, at least as large as any logit in it. Near a huge logit others are nothing
    // or equal to it, and neither shows in a logarithm that is added to it.
    __device__ __forceinline__ float relative_to(float top) const {
        return fabsf(top) > kHuge ? 1.0f : sum * ptx::exp2_approx(fmaf(-top, kLog2e, reference));
    }

    // To be called before logits as large as `logit` are added. Where one of them is huge or infinite the sum becomes
    // infinite, and so NaN is left as the mark of NaN among the logits.
    __device__ __forceinline__ void refer_to(float logit) {
        if (!(logit > renew_above) || logit > kHuge) return;
        const float next = fmaxf(logit, -kHuge) * kLog2e;
        // In bounds that keep an empty sum at 0 and an infinite one infinite.
        sum *= fminf(fmaxf(ptx::exp2_approx(reference - next), 1e-30f), 1.0f);
        reference = next;
        renew_above = logit + kHeadroom;
    }
};

// Adds up what the lanes of a warp have, and posts it to the block that merges.
template <class T, Meet kMeet>
__device__ __forceinline__ void store_part(Shared& shared, const Mail& mail, int rank, const ExpSum& exps, float top) {
    const bool nan = exps.sum != exps.sum;
    const bool positive = top == INFINITY;
    WarpPart part = {};
    part.status =
        (__any_sync(kAllLanes, nan) ? KDT_REQ_NAN : 0) | (__any_sync(kAllLanes, positive) ? KDT_REQ_POSITIVE : 0);
    part.top = logit_of<T>(__reduce_max_sync(kAllLanes, key_of<T>(top)));
    part.sum = part.top > -INFINITY ? exps.relative_to(part.top) : 0.0f;
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) part.sum += __shfl_xor_sync(kAllLanes, part.sum, step);
    WarpPart* const to = mail.parts + rank * kWarps + threadIdx.x / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    if (kMeet != Meet::cluster) {
        if (lane == 0) *to = part;
    } else if (lane < 2) {
        const uint64_t numbers = static_cast<uint64_t>(__float_as_uint(part.sum)) << 32 | __float_as_uint(part.top);
        send(reinterpret_cast<uint64_t*>(to) + lane, lane == 0 ? numbers : static_cast<uint64_t>(part.status),
             &shared.parts_here, 0);
    }
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_EXP_SUM_CUH
