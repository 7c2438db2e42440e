// SPDX-License-Identifier: Apache-2.0
//
// mma.sync on bf16 with f32 sums (sm_80 and later): c += a (16 x 16) * b (16 x 8). Lane l = 4 g + t holds of c the rows
// g (c[0], c[1]) and g + 8 (c[2], c[3]), columns 2 t and 2 t + 1.
#ifndef KDTREE_CUDA_PTX_MMA_CUH
#define KDTREE_CUDA_PTX_MMA_CUH

#include <cstdint>

namespace kdt::cuda::ptx {

__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_MMA_CUH
