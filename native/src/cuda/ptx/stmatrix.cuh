// SPDX-License-Identifier: Apache-2.0
//
// stmatrix (sm_90): the reverse of ldmatrix. Lanes 8i .. 8i+7 give the addresses of the rows (16 bytes each) of matrix
// i; register i of lane l holds row l / 4, columns 2 (l % 4) and the next, of matrix i.
#ifndef KDTREE_CUDA_PTX_STMATRIX_CUH
#define KDTREE_CUDA_PTX_STMATRIX_CUH

#include <cstdint>

namespace kdt::cuda::ptx {

__device__ __forceinline__ void stmatrix_x4(uint32_t address, uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(v0), "r"(v1),
                 "r"(v2), "r"(v3)
                 : "memory");
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_STMATRIX_CUH
