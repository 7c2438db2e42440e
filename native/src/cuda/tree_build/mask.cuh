// SPDX-License-Identifier: Apache-2.0
//
// Mask rows.
#ifndef KDTREE_CUDA_TREE_BUILD_MASK_CUH
#define KDTREE_CUDA_TREE_BUILD_MASK_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/layout.cuh"

namespace kdt::cuda::tree_build {

// Each row climbs to the root and gathers a bit at every step; indices fall on the way, so that a word is done when the
// next one begins. A warp assembles some rows in its own piece of shared memory and copies them out as they lie. The
// root's row is written apart, because budgets are as a rule multiples of what the warps take at a time.
template <int kThreads>
__device__ void write_rows_by_climbing(const Sizes& sizes, const uint16_t* up, int num_nodes, uint64_t* shared,
                                       uint64_t* mask) {
    constexpr int kWarps = kThreads / kWarpSize;
    const int lane = threadIdx.x % kWarpSize;
    const int warp = threadIdx.x / kWarpSize;
    const int rows = min(sizes.mask_rows, (sizes.budget + kWarps - 1) / kWarps);
    const int words = sizes.words;
    uint64_t* const piece = shared + warp * rows * words;
    if (threadIdx.x < words) mask[threadIdx.x] = threadIdx.x == 0 ? 1 : 0;
#pragma unroll 1
    for (int first = 1 + warp * rows; first < sizes.nodes; first += kWarps * rows) {
        const int all = min(rows, sizes.nodes - first) * words;
#pragma unroll 4
        for (int w = lane; w < all; w += kWarpSize) piece[w] = 0;
        __syncwarp();
        const int i = first + lane;
        if (lane < rows && i < num_nodes) {
            uint64_t* const row = piece + lane * words;
            uint64_t bits = 0;
            int word = i / 64;
#pragma unroll 1
            for (int node = i; node != kNone; node = up[node]) {
                if (node / 64 != word) {
                    row[word] = bits;
                    bits = 0;
                    word = node / 64;
                }
                bits |= uint64_t{1} << (node & 63);
            }
            row[word] = bits;
        }
        __syncwarp();
        uint64_t* const out = mask + static_cast<int64_t>(first) * words;
#pragma unroll 4
        for (int w = lane; w < all; w += kWarpSize) out[w] = piece[w];
        __syncwarp();
    }
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_MASK_CUH
