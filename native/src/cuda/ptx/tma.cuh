// SPDX-License-Identifier: Apache-2.0
//
// The bulk tensor copy engine (TMA, sm_90): one thread starts the copy of a box of a tensor into shared memory,
// whose bytes an mbarrier counts. What lies outside the tensor arrives as zeros.
#ifndef KDTREE_CUDA_PTX_TMA_CUH
#define KDTREE_CUDA_PTX_TMA_CUH

#include <cuda.h>

#include <cstdint>

namespace kdt::cuda::ptx {

__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}

// The box that starts at (row, column).
__device__ __forceinline__ void tma_load(const CUtensorMap* map, uint32_t destination, uint32_t barrier, int column,
                                         int row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];\n" ::"r"(destination),
        "l"(map), "r"(barrier), "r"(column), "r"(row)
        : "memory");
}

// Of a 3-d tensor, the box that starts at (block, row, column).
__device__ __forceinline__ void tma_load(const CUtensorMap* map, uint32_t destination, uint32_t barrier, int column,
                                         int row, int block) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];\n" ::"r"(destination),
        "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(block)
        : "memory");
}

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_TMA_CUH
