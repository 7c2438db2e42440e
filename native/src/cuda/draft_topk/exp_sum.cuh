// SPDX-License-Identifier: Apache-2.0
//
// The sum of exponentials that a thread adds up as its logits come, and what a warp makes of its threads' sums.
#ifndef KDTREE_CUDA_DRAFT_TOPK_EXP_SUM_CUH
#define KDTREE_CUDA_DRAFT_TOPK_EXP_SUM_CUH

#include <cmath>
#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/draft_topk/group.cuh"
#include "cuda/draft_topk/layout.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda::draft_topk {

// A thread's sum of exp(logit - reference). The reference is one of the thread's logits; it need not be the largest,
// only near enough that nothing overflows and no precision is lost.
struct ExpSum {
    static constexpr float kHeadroom = 8.0f;

    float sum = 0.0f;
    float reference = 0.0f;
    float renew_above = -INFINITY;  // until there is a finite logit to refer to

    template <class T>
    __device__ __forceinline__ void add(const uint4& words) {
        const float from = reference;
        sum += Group<T>::sum_of(words, [from](float x) { return exp_of(x - from); });
    }

    // The sum in terms of another reference, at least as large.
    __device__ __forceinline__ float relative_to(float other) const { return sum * exp_of(reference - other); }

    // To be called before logits as large as `logit` are added. Infinity is no reference: the sum becomes infinite, and
    // so NaN is left as the mark of NaN among the logits.
    __device__ __forceinline__ void refer_to(float logit) {
        if (!(logit > renew_above) || logit == INFINITY) return;
        // In bounds that keep an empty sum at 0 and an infinite one infinite.
        sum *= fminf(fmaxf(exp_of(reference - logit), 1e-30f), 1.0f);
        reference = logit;
        renew_above = logit + kHeadroom;
    }
};

// Adds up what the lanes of a warp have.
template <class T>
__device__ __forceinline__ void store_part(Shared& shared, const ExpSum& exps, float top) {
    const bool nan = exps.sum != exps.sum;
    const bool positive = top == INFINITY;
    WarpPart part = {};
    part.status =
        (__any_sync(kAllLanes, nan) ? KDT_REQ_NAN : 0) | (__any_sync(kAllLanes, positive) ? KDT_REQ_POSITIVE : 0);
    part.top = logit_of<T>(__reduce_max_sync(kAllLanes, key_of<T>(top)));
    part.sum = part.top > -INFINITY ? exps.relative_to(part.top) : 0.0f;
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) part.sum += __shfl_xor_sync(kAllLanes, part.sum, step);
    if (threadIdx.x % kWarpSize == 0) shared.scanned[threadIdx.x / kWarpSize] = part;
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_EXP_SUM_CUH
