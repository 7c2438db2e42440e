// SPDX-License-Identifier: Apache-2.0
//
// ldmatrix: four 8x8 matrices of 16-bit values from shared memory into the registers of a warp. Lanes 8i .. 8i+7 give
// the addresses of the rows (16 bytes each) of matrix i; register i of lane l then holds row l / 4, columns 2 (l % 4)
// and the next, of matrix i, or of its transpose.
#ifndef KDTREE_CUDA_PTX_LDMATRIX_CUH
#define KDTREE_CUDA_PTX_LDMATRIX_CUH

#include <cstdint>

namespace kdt::cuda::ptx {

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&values)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&values)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(address)
                 : "memory");
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_LDMATRIX_CUH
