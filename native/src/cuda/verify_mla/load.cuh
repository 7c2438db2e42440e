// SPDX-License-Identifier: Apache-2.0
//
// What an attention block of verify_mla reads: queries of one head, and tiles of 64 slots of its unit's keys and
// values. Rows in shared memory are multiples of 128 bytes whose 16-byte chunks are permuted by the row's low bits.
#ifndef KDTREE_CUDA_VERIFY_MLA_LOAD_CUH
#define KDTREE_CUDA_VERIFY_MLA_LOAD_CUH

#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/verify_mla/layout.cuh"
#include "cuda/verify_mla/slot_tiles.cuh"

namespace kdt::cuda::verify_mla {

constexpr int kKeyChunks = kKey / 8;      // 24: 16 of the nope part, then 8 of the rotary part
constexpr int kValueChunks = kValue / 8;  // 16
constexpr int kNopeChunks = kNope / 8;

// The rows of q_nope and q_pe side by side; rows behind the last node become zeros.
__device__ __forceinline__ void load_queries(const Args& args, const SlotTiles& tiles, uint32_t shared) {
    for (int i = threadIdx.x; i < kRows * kKeyChunks; i += kThreads) {
        const int row = i / kKeyChunks;
        const int chunk = i - row * kKeyChunks;
        const int node = tiles.first_row() + row;
        const bool exists = node < args.max_nodes;
        const int64_t at = (int64_t{tiles.b} * args.max_nodes + (exists ? node : 0)) * args.num_qo_heads + tiles.head;
        const __nv_bfloat16* const from = chunk < kNopeChunks ? args.q_nope + at * kNope + chunk * 8
                                                              : args.q_pe + at * kRope + (chunk - kNopeChunks) * 8;
        ptx::cp_async_16(shared + panel_offset<kRows>(row, chunk), from, exists);
    }
}

// threadIdx.x, asked again: what is computed from it is not kept in registers from tile to tile, and those are what an
// attention block is short of.
__device__ __forceinline__ int thread_anew() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
    return thread;
}

// Starts the copy of a tile's rows of kChunks chunks, which follow one another in `unit_rows`. Those that nobody sees
// become zeros; their addresses may lie behind the unit.
template <int kChunks>
__device__ __forceinline__ void load_slots(const __nv_bfloat16* unit_rows, const SlotTile& tile, uint32_t shared) {
    // After kPeriod steps of all threads a thread is at the same chunk again, kRowStep rows on: a multiple of 8, so
    // that the permutation is the same as well.
    constexpr int kPeriod = kChunks == 24 ? 3 : 1;
    constexpr int kRowStep = kPeriod * kThreads / kChunks;
    static_assert(kPeriod * kThreads % kChunks == 0 && kRowStep % 8 == 0 && kSlots % kRowStep == 0, "whole rows");
    const __nv_bfloat16* const from = unit_rows + int64_t{tile.first} * (kChunks * 8);
    const int thread = thread_anew();
#pragma unroll
    for (int phase = 0; phase < kPeriod; ++phase) {
        const int at = phase * kThreads + thread;
        const int row = at / kChunks;
        const uint32_t to = shared + panel_offset<kSlots>(row, at - row * kChunks);
        const uint64_t seen = tile.seen >> row;
#pragma unroll
        for (int i = 0; i < kSlots / kRowStep; ++i)
            ptx::cp_async_16(to + i * kRowStep * 128, from + at * 8 + i * kRowStep * kChunks * 8,
                             (seen >> (i * kRowStep) & 1) != 0);
    }
}

// This block's keys, and values.
__device__ __forceinline__ void load_keys(const Args& args, const SlotTiles& tiles, const SlotTile& tile,
                                          uint32_t shared) {
    load_slots<kKeyChunks>(args.keys + tiles.unit * args.slots * kKey, tile, shared);
}

__device__ __forceinline__ void load_values(const Args& args, const SlotTiles& tiles, const SlotTile& tile,
                                            uint32_t shared) {
    load_slots<kValueChunks>(args.values + tiles.unit * args.slots * kValue, tile, shared);
}

}  // namespace kdt::cuda::verify_mla

#endif  // KDTREE_CUDA_VERIFY_MLA_LOAD_CUH
