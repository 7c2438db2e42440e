// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_CUDA_PTX_MATH_CUH
#define KDTREE_CUDA_PTX_MATH_CUH

#include <cstdint>

namespace kdt::cuda::ptx {

// 2^x in one instruction, to about 2 units in the last place; -inf gives 0 and 0 gives exactly 1.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// To about 2^-22 of the result or, near 1, absolute.
__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x to 1 unit in the last place.
__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// Two f16 values, x in the lower half.
__device__ __forceinline__ uint32_t pack_f16(float x, float y) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}
__device__ __forceinline__ void unpack_f16(uint32_t pair, float& x, float& y) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}\n"
        : "=f"(x), "=f"(y)
        : "r"(pair));
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_MATH_CUH
