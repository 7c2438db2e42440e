// SPDX-License-Identifier: Apache-2.0
//
// mbarrier (sm_90 here): a counter in shared memory whose phase ends when all expected arrivals have come and all
// announced bytes have landed. Waiting on the parity of a phase returns once that phase has ended; the phase before the
// first counts as one of parity 1.
#ifndef KDTREE_CUDA_PTX_MBARRIER_CUH
#define KDTREE_CUDA_PTX_MBARRIER_CUH

#include <cstdint>

namespace kdt::cuda::ptx {

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers known to the copy engine and to the other blocks of a cluster.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

// One arrival, and `bytes` more to wait for.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}

// `bytes` more to wait for, in the current phase.
__device__ __forceinline__ void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// An arrival once all cp.async of this thread so far have landed.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done = 0;
    while (done == 0) {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    }
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_MBARRIER_CUH
