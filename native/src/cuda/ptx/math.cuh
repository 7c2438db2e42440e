// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_CUDA_PTX_MATH_CUH
#define KDTREE_CUDA_PTX_MATH_CUH

namespace kdt::cuda::ptx {

// 2^x in one instruction, to about 2 units in the last place; -inf gives 0 and 0 gives exactly 1.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_MATH_CUH
