// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_ENGINE_CUDA_ROPE_CUH
#define KDTREE_ENGINE_CUDA_ROPE_CUH

#include "engine/ops.h"

namespace kdt::engine {

// cos and sin of a position's pairs. A position outside the table belongs to no request: it takes the nearest one's.
__device__ __forceinline__ const float2* rope_at(const Rope& rope, int position) {
    const int nearest = position < 0 ? 0 : position < rope.max_positions ? position : rope.max_positions - 1;
    return reinterpret_cast<const float2*>(rope.cos_sin) + int64_t{nearest} * rope.pairs;
}

// A pair of values, turned.
__device__ __forceinline__ void rotate(float2 turn, float& a, float& b) {
    const float first = a * turn.x - b * turn.y;
    b = b * turn.x + a * turn.y;
    a = first;
}

}  // namespace kdt::engine

#endif  // KDTREE_ENGINE_CUDA_ROPE_CUH
