// SPDX-License-Identifier: Apache-2.0
//
// cp.async (sm_80 and later): copies from global to shared memory that run while the thread goes on.
#ifndef KDTREE_CUDA_PTX_CP_ASYNC_CUH
#define KDTREE_CUDA_PTX_CP_ASYNC_CUH

#include <cstdint>

namespace kdt::cuda::ptx {

// The address PTX wants for shared memory.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes, past L1. Without `valid` nothing is read and zeros are stored; `source` must be an address all the same.
__device__ __forceinline__ void cp_async_16(uint32_t destination, const void* source, bool valid) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(destination), "l"(source), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Waits until at most `kGroups` of this thread's latest groups are under way.
template <int kGroups>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroups) : "memory");
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_CP_ASYNC_CUH
