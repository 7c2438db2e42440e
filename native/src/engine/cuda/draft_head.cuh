// SPDX-License-Identifier: Apache-2.0
//
// One head of the drafter's queries or keys in a warp: normed, then rotated in pairs (i, i + head_dim / 2).
#ifndef KDTREE_ENGINE_CUDA_DRAFT_HEAD_CUH
#define KDTREE_ENGINE_CUDA_DRAFT_HEAD_CUH

#include "cuda/block.cuh"
#include "engine/cuda/act.cuh"
#include "engine/cuda/rope.cuh"

namespace kdt::engine {

constexpr int kMaxDraftHeadDim = 128;

// Lane l holds pairs l and l + 32, zero where there are none.
struct DraftHead {
    static constexpr int kPairs = kMaxDraftHeadDim / 2 / cuda::kWarpSize;
    float low[kPairs], high[kPairs];
};

template <class T>
__device__ __forceinline__ DraftHead load_head(const T* from, int half, int lane) {
    DraftHead head = {};
#pragma unroll
    for (int i = 0; i < DraftHead::kPairs; ++i) {
        const int pair = i * cuda::kWarpSize + lane;
        if (pair >= half) continue;
        head.low[i] = to_float(from[pair]);
        head.high[i] = to_float(from[pair + half]);
    }
    return head;
}

// By the whole warp.
template <class T>
__device__ __forceinline__ void norm_and_rotate(DraftHead& head, const T* weight, float eps, const float2* turns,
                                                int half, int lane) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < DraftHead::kPairs; ++i) squares += head.low[i] * head.low[i] + head.high[i] * head.high[i];
#pragma unroll
    for (int step = cuda::kWarpSize / 2; step > 0; step /= 2)
        squares += __shfl_xor_sync(cuda::kAllLanes, squares, step);
    const float scale = rsqrtf(squares / static_cast<float>(2 * half) + eps);
#pragma unroll
    for (int i = 0; i < DraftHead::kPairs; ++i) {
        const int pair = i * cuda::kWarpSize + lane;
        if (pair >= half) continue;
        head.low[i] *= scale * to_float(weight[pair]);
        head.high[i] *= scale * to_float(weight[pair + half]);
        rotate(turns[pair], head.low[i], head.high[i]);
    }
}

template <class T>
__device__ __forceinline__ void store_head(const DraftHead& head, T* to, int half, int lane) {
#pragma unroll
    for (int i = 0; i < DraftHead::kPairs; ++i) {
        const int pair = i * cuda::kWarpSize + lane;
        if (pair >= half) continue;
        to[pair] = from_float<T>(head.low[i]);
        to[pair + half] = from_float<T>(head.high[i]);
    }
}

}  // namespace kdt::engine

#endif  // KDTREE_ENGINE_CUDA_DRAFT_HEAD_CUH
