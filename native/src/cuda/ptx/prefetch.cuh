// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_CUDA_PTX_PREFETCH_CUH
#define KDTREE_CUDA_PTX_PREFETCH_CUH

namespace kdt::cuda::ptx {

// Sends for the line of global memory at `address`; nobody waits for it.
__device__ __forceinline__ void prefetch_l1(const void* address) {
    asm volatile("prefetch.global.L1 [%0];\n" ::"l"(address));
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_PREFETCH_CUH
