// SPDX-License-Identifier: Apache-2.0
//
// Clusters (sm_90): blocks that run at the same time and read each other's shared memory.
#ifndef KDTREE_CUDA_PTX_CLUSTER_CUH
#define KDTREE_CUDA_PTX_CLUSTER_CUH

#include <cstdint>

namespace kdt::cuda::ptx {

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
    return rank;
}

// Of the grid's clusters along x; the block's own index where it was launched without clusters.
__device__ __forceinline__ uint32_t cluster_index() {
    uint32_t index;
    asm volatile("mov.u32 %0, %%clusterid.x;\n" : "=r"(index));
    return index;
}

// All threads of the cluster that still run arrive and wait; what was stored before is visible after.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
}

// The address of the same place in the shared memory of block `rank`.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
    uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

__device__ __forceinline__ uint4 cluster_load_uint4(uint32_t remote) {
    uint4 v;
    asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(remote)
                 : "memory");
    return v;
}
__device__ __forceinline__ float cluster_load_float(uint32_t remote) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];\n" : "=f"(v) : "r"(remote) : "memory");
    return v;
}
__device__ __forceinline__ int cluster_load_int(uint32_t remote) {
    int v;
    asm volatile("ld.shared::cluster.s32 %0, [%1];\n" : "=r"(v) : "r"(remote) : "memory");
    return v;
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_CLUSTER_CUH
