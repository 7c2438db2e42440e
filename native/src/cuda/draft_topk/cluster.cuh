// SPDX-License-Identifier: Apache-2.0
//
// Where the blocks of a row meet: in a cluster, whose blocks run at the same time and write into each other's shared
// memory (sm_90 and later), or through the workspace.
//
// In a cluster a block sends values to a place in another block, and to a signal there (an mbarrier) that knows how
// many bytes to wait for. Whoever waits for the signal sees the values: no fence over all of a thread's memory traffic,
// which is what a barrier of the cluster would need.
#ifndef KDTREE_CUDA_DRAFT_TOPK_CLUSTER_CUH
#define KDTREE_CUDA_DRAFT_TOPK_CLUSTER_CUH

#include <cstdint>

#include "cuda/draft_topk/layout.cuh"

namespace kdt::cuda::draft_topk {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kClusters = true;

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// The address of the same place in block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_in(const void* shared, int rank) {
    uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(remote) : "r"(shared_address(shared)), "r"(rank));
    return remote;
}

// All blocks have begun, with their signals initialised: all threads call one, and later the other.
__device__ __forceinline__ void arrive_at_start() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wait_for_start() {
    asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

// By one thread, which then calls publish_signals().
__device__ __forceinline__ void init_signal(uint64_t* signal, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(signal)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void publish_signals() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

// One arrival at a signal of block `rank`, and `bytes` more to wait for.
__device__ __forceinline__ void expect_in(uint64_t* signal, int rank, int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;\n" ::"r"(address_in(signal, rank)),
        "r"(bytes)
        : "memory");
}

__device__ __forceinline__ void send(uint32_t* to, uint32_t value, uint64_t* signal, int rank) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];\n" ::"r"(address_in(to, rank)),
        "r"(value), "r"(address_in(signal, rank))
        : "memory");
}
__device__ __forceinline__ void send(uint64_t* to, uint64_t value, uint64_t* signal, int rank) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];\n" ::"r"(address_in(to, rank)),
        "l"(value), "r"(address_in(signal, rank))
        : "memory");
}

// Until all arrivals have come and all bytes have landed.
__device__ __forceinline__ void wait_for(uint64_t* signal) {
    uint32_t done = 0;
    while (done == 0) {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
            "selp.u32 %0, 1, 0, p;\n}\n"
            : "=r"(done)
            : "r"(shared_address(signal))
            : "memory");
    }
}
#else
constexpr bool kClusters = false;  // the rest is there so that the code compiles: the host does not launch it

__device__ __forceinline__ void arrive_at_start() {}
__device__ __forceinline__ void wait_for_start() {}
__device__ __forceinline__ void init_signal(uint64_t*, int) {}
__device__ __forceinline__ void publish_signals() {}
__device__ __forceinline__ void expect_in(uint64_t*, int, int) {}
__device__ __forceinline__ void send(uint32_t*, uint32_t, uint64_t*, int) {}
__device__ __forceinline__ void send(uint64_t*, uint64_t, uint64_t*, int) {}
__device__ __forceinline__ void wait_for(uint64_t*) {}
#endif

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_CLUSTER_CUH
