// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_CUDA_VERIFY_MLA_SLOT_TILES_CUH
#define KDTREE_CUDA_VERIFY_MLA_SLOT_TILES_CUH

#include <cstdint>

#include "cuda/verify_mla/layout.cuh"

namespace kdt::cuda::verify_mla {

// A tile of slots: its first logical slot, and which of its 64 slots any row of the block may see. The others are
// loaded as zeros, since they may hold anything and 0 * NaN is NaN.
struct SlotTile {
    uint32_t first;  // a prefix of 2^31 - 1 and its tree still fit
    uint64_t seen;
};

// What a block of attention attends to: the slot tiles of its request, first the prefix, then the tree from node 0 on
// so that a row's mask is one word a tile, and the share of one split. It lies in shared memory because registers are
// what a block is short of.
struct SlotTiles {
    Request request;
    int unit;
    int b;
    int head;
    int row_tile;
    int split;
    int prefix_tiles;
    int begin;
    int end;
    uint64_t seen[kMaxWords];   // columns of the tree that any row of the row tile sees
    uint64_t live[kRows / 64];  // rows that see anything

    // By all threads.
    __device__ void survey(const Args& args) {
        if (threadIdx.x == 0) {
            const int block = static_cast<int>(blockIdx.x);
            row_tile = block % args.tiles;
            split = block / args.tiles % args.splits;
            unit = block / args.tiles / args.splits;
            b = args.batch_of(unit);
            head = args.head_of(unit);
            request = args.requests[b];
            prefix_tiles = static_cast<int>((int64_t{request.prefix} + kSlots - 1) / kSlots);
            const int total = prefix_tiles + (request.nodes + kSlots - 1) / kSlots;
            const int share = (total + args.splits - 1) / args.splits;
            begin = min(total, split * share);
            end = min(total, begin + share);
        }
        if (threadIdx.x < kMaxWords) seen[threadIdx.x] = 0;
        if (threadIdx.x < kRows / 64) live[threadIdx.x] = 0;
        __syncthreads();
        const int nodes = min(kRows, request.nodes - first_row());
        const int64_t masks_at = (int64_t{b} * args.max_nodes + first_row()) * args.words;
#pragma unroll 1
        for (int i = threadIdx.x; i < nodes * args.words; i += kThreads) {
            const int node = i / args.words;
            const int word = i - node * args.words;
            const uint64_t bits = args.tree_mask[masks_at + i] & node_bits(request.nodes, word);
            if (bits == 0) continue;
            atomicOr(reinterpret_cast<unsigned long long*>(&seen[word]), bits);
            atomicOr(reinterpret_cast<unsigned long long*>(&live[node / 64]), uint64_t{1} << (node % 64));
        }
        __syncthreads();
    }

    __device__ int first_row() const { return row_tile * kRows; }
    __device__ bool attends() const { return begin < end && (live[0] | live[1]) != 0; }
    // Whether any of the 64 rows of a thread's warpgroup is.
    __device__ bool is_at_work(int thread) const { return live[thread / 128] != 0; }
    __device__ bool is_live(int row) const { return (live[row / 64] >> (row % 64) & 1) != 0; }

    // The next tile from `tile` on that any row of the block sees, or the end of the split.
    __device__ int next_seen(int tile) const {
        while (tile < end && tile >= prefix_tiles && seen[tile - prefix_tiles] == 0) ++tile;
        return min(tile, end);
    }

    // Nothing behind the end of the split.
    __device__ SlotTile at(int tile) const {
        if (tile >= end) return {0, 0};
        if (tile >= prefix_tiles) {
            const int word = tile - prefix_tiles;
            return {static_cast<uint32_t>(request.prefix) + static_cast<uint32_t>(word) * kSlots, seen[word]};
        }
        const uint32_t first = static_cast<uint32_t>(tile) * kSlots;
        return {first, node_bits(static_cast<int>(static_cast<uint32_t>(request.prefix) - first), 0)};
    }

    // Whether some row may not see all of a tile's slots.
    __device__ bool is_masked(int tile) const {
        return tile >= prefix_tiles || static_cast<uint32_t>(request.prefix) / kSlots == static_cast<uint32_t>(tile);
    }

    // The slots of a tile that node `node` sees.
    __device__ uint64_t visible(const Args& args, int tile, int node) const {
        const uint64_t slots = at(tile).seen;
        if (tile < prefix_tiles) return slots;
        if (node >= request.nodes) return 0;
        return slots & args.tree_mask[(int64_t{b} * args.max_nodes + node) * args.words + (tile - prefix_tiles)];
    }
};

}  // namespace kdt::cuda::verify_mla

#endif  // KDTREE_CUDA_VERIFY_MLA_SLOT_TILES_CUH
