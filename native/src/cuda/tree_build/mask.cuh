// SPDX-License-Identifier: Apache-2.0
//
// Mask rows of more than two words.
#ifndef KDTREE_CUDA_TREE_BUILD_MASK_CUH
#define KDTREE_CUDA_TREE_BUILD_MASK_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/layout.cuh"

namespace kdt::cuda::tree_build {

// Each row climbs to the root and sets a bit at every step. A warp sets the bits of some rows in its own
// piece of shared memory and copies them out as they lie.
template <int kThreads>
__device__ void write_rows_by_climbing(const Sizes& sizes, const uint16_t* up, int num_nodes, uint64_t* shared,
                                       uint64_t* mask) {
    const int lane = threadIdx.x % kWarpSize;
    const int warp = threadIdx.x / kWarpSize;
    const int rows = sizes.mask_rows;
    uint64_t* const piece = shared + warp * rows * sizes.words;
    for (int first = warp * rows; first < sizes.nodes; first += kThreads / kWarpSize * rows) {
        const int words = min(rows, sizes.nodes - first) * sizes.words;
#pragma unroll 4
        for (int w = lane; w < words; w += kWarpSize) piece[w] = 0;
        __syncwarp();
        const int i = first + lane;
        if (lane < rows && i < num_nodes) {
            uint32_t* const row = reinterpret_cast<uint32_t*>(piece + lane * sizes.words);
            for (int node = i; node != kNone; node = up[node]) atomicOr(&row[node / 32], 1u << node % 32);
        }
        __syncwarp();
        uint64_t* const out = mask + static_cast<int64_t>(first) * sizes.words;
#pragma unroll 4
        for (int w = lane; w < words; w += kWarpSize) out[w] = piece[w];
        __syncwarp();
    }
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_MASK_CUH
