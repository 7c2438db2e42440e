// SPDX-License-Identifier: Apache-2.0
//
// What warpgroups of different roles need (sm_90): registers moved from one to another, barriers of some of a block's
// threads, and the fence between ordinary stores to shared memory and its other readers.
#ifndef KDTREE_CUDA_PTX_WARPGROUP_CUH
#define KDTREE_CUDA_PTX_WARPGROUP_CUH

#include <cstdint>

namespace kdt::cuda::ptx {

// Registers of each thread of this warpgroup from here on.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// Barrier `id` (1 .. 15) of kThreads threads in whole warps: sync waits, arrive does not.
template <int kThreads>
__device__ __forceinline__ void named_barrier_sync(int id) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(id), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void named_barrier_arrive(int id) {
    asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "n"(kThreads) : "memory");
}

// Between this thread's ordinary stores to shared memory and reads of them by tensor cores or the copy engine.
__device__ __forceinline__ void fence_for_async_readers() {
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_WARPGROUP_CUH
