// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_CUDA_PTX_ATOMIC_CUH
#define KDTREE_CUDA_PTX_ATOMIC_CUH

#include <cstdint>

namespace kdt::cuda::ptx {

// Adds 1 to a count in shared memory; answers what it was. Where mostly one lane of a warp does this, it is cheaper
// than what becomes of an addition: a sum over the warp first.
__device__ __forceinline__ int32_t count_up(int32_t* count) {
    int32_t before;
    asm volatile("atom.shared.inc.u32 %0, [%1], 0xffffffff;\n"
                 : "=r"(before)
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(count)))
                 : "memory");
    return before;
}

// Adds to a count in shared memory; answers what it was. For one lane: the compiler would add over the warp first.
__device__ __forceinline__ int32_t add_to(int32_t* count, int32_t more) {
    int32_t before;
    asm volatile("atom.shared.add.u32 %0, [%1], %2;\n"
                 : "=r"(before)
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(count))), "r"(more)
                 : "memory");
    return before;
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_ATOMIC_CUH
