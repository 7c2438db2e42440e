// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_CUDA_PTX_PACKED_CUH
#define KDTREE_CUDA_PTX_PACKED_CUH

#include <cstdint>

namespace kdt::cuda::ptx {

// The greater of each pair of bf16 in two words; a number beats NaN.
__device__ __forceinline__ uint32_t max_bf16x2(uint32_t a, uint32_t b) {
    uint32_t greater;
    asm("max.bf16x2 %0, %1, %2;\n" : "=r"(greater) : "r"(a), "r"(b));
    return greater;
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_PACKED_CUH
