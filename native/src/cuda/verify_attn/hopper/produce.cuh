// SPDX-License-Identifier: Apache-2.0
//
// The loading warpgroup: queries once, then tiles of latents into whichever half of a stage is free.
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_PRODUCE_CUH
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_PRODUCE_CUH

#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/verify_attn/hopper/layout.cuh"
#include "cuda/verify_attn/hopper/tiles.cuh"

namespace kdt::cuda::verify_attn::hopper {

struct Maps {
    CUtensorMap q_nope;   // [B * rows, 512], boxes of 64 x 64
    CUtensorMap q_pe;     // [B * rows, 64]
    CUtensorMap latents;  // [num_pages * page_size, 576], boxes of 64 x 64
};

// Boxes of a half of a stage. The left half is read last by the left group, the right one by the right group; the last
// box, which comes to hold the weights, by the group that did not compute them.
__device__ __forceinline__ int first_box(int half) {
    return half == 0 ? 0 : 4;
}
__device__ __forceinline__ bool half_has_last_box(int stage, int half) {
    return half != stage;
}

// By one thread.
__device__ __forceinline__ void load_queries(const Args& args, const Maps& maps, const Work& work, Shared& shared) {
    const uint32_t barrier = ptx::shared_address(&shared.queries_full);
    const uint32_t queries = ptx::shared_address(shared.queries);
    const int row = work.b * args.num_rows + work.first_row;
    ptx::mbarrier_arrive_expect(barrier, kTileBytes);
#pragma unroll 1
    for (int box = 0; box < kBoxes - 1; ++box)
        ptx::tma_load(&maps.q_nope, queries + box * kBoxBytes, barrier, box * 64, row);
    ptx::tma_load(&maps.q_pe, queries + (kBoxes - 1) * kBoxBytes, barrier, 0, row);
}

// By one thread: pages are multiples of 64 slots.
__device__ __forceinline__ void load_latents(const Args& args, const Maps& maps, Shared& shared) {
    const TileWalk walk(shared);
    const Work& work = shared.work;
    const int32_t* const pages = args.block_table + int64_t{work.b} * args.max_pages_per_seq;
    const uint32_t page_size = static_cast<uint32_t>(args.page_size);
    // Where a tile's rows start in the cache: behind its last row, where the copy engine finds zeros, for a page that
    // does not exist.
    const auto locate = [&](int tile) {
        if (tile >= walk.end()) return 0;
        const uint32_t slot = static_cast<uint32_t>(tile) * kSlots;
        const uint32_t page_at = slot / page_size;
        const int page = pages[page_at];
        const int row = page * static_cast<int>(page_size) + static_cast<int>(slot - page_at * page_size);
        return page < 0 || page >= args.num_pages ? args.num_pages * args.page_size : row;
    };
    int tile = walk.first();
    int row = locate(tile);
#pragma unroll 1
    for (int j = 0; tile < walk.end(); ++j) {
        const int next = walk.next(tile);
        const int next_row = locate(next);
        const int stage = j % kStages;
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
            if (j >= kStages)
                ptx::mbarrier_wait(ptx::shared_address(&shared.empty[stage][half]), (j / kStages - 1) & 1);
            const int boxes = half_has_last_box(stage, half) ? 5 : 4;
#pragma unroll 1
            for (int i = 0; i < boxes; ++i) {
                const int box = i == 4 ? kBoxes - 1 : first_box(half) + i;
                const uint32_t barrier = ptx::shared_address(&shared.full[stage][box]);
                ptx::mbarrier_arrive_expect(barrier, kBoxBytes);
                ptx::tma_load(&maps.latents, ptx::shared_address(shared.stages[stage]) + box * kBoxBytes, barrier,
                              box * 64, row);
            }
        }
        tile = next;
        row = next_row;
    }
}

// By the whole warpgroup: pages of any size, slot by slot. Eight threads copy a slot's 128 bytes of a box; a thread has
// four slots of a tile, 16 apart, so that it always meets the same swizzle.
__device__ __forceinline__ void gather_latents(const Args& args, Shared& shared, int thread) {
    const TileWalk walk(shared);
    const Work& work = shared.work;
    constexpr int kSteps = kSlots / 16;
    const int first_slot = thread / 8;
    const int chunk = thread % 8;
    const uint32_t offset = static_cast<uint32_t>(first_slot * kBoxRowBytes + ((chunk ^ (first_slot & 7)) << 4));
    const int32_t* const pages = args.block_table + int64_t{work.b} * args.max_pages_per_seq;
    const uint32_t page_size = static_cast<uint32_t>(args.page_size);
    // Slots that nobody sees may hold anything and come as zeros, and so do those on pages that do not exist: -1.
    const auto locate = [&](int tile, int64_t(&where)[kSteps]) {
        uint64_t seen = tile < walk.end() ? ~uint64_t{0} : 0;
        if (tile < walk.end() && walk.is_masked(tile)) seen = shared.windows[tile - shared.range.first_masked];
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
            const int in_tile = first_slot + i * 16;
            where[i] = -1;
            if ((seen >> in_tile & 1) == 0) continue;
            const uint32_t slot = static_cast<uint32_t>(tile) * kSlots + in_tile;
            const uint32_t page_at = slot / page_size;
            const int page = pages[page_at];
            if (page >= 0 && page < args.num_pages)
                where[i] = (int64_t{page} * page_size + (slot - page_at * page_size)) * kHeadDim + chunk * 8;
        }
    };
    int64_t where[kSteps];
    int tile = walk.first();
    locate(tile, where);
#pragma unroll 1
    for (int j = 0; tile < walk.end(); ++j) {
        const int stage = j % kStages;
        const uint32_t stage_at = ptx::shared_address(shared.stages[stage]) + offset;
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
            if (j >= kStages)
                ptx::mbarrier_wait(ptx::shared_address(&shared.empty[stage][half]), (j / kStages - 1) & 1);
            const int boxes = half_has_last_box(stage, half) ? 5 : 4;
#pragma unroll 1
            for (int i = 0; i < boxes; ++i) {
                const int box = i == 4 ? kBoxes - 1 : first_box(half) + i;
#pragma unroll
                for (int k = 0; k < kSteps; ++k)
                    ptx::cp_async_16(stage_at + box * kBoxBytes + k * 16 * kBoxRowBytes,
                                     args.kv_cache + (where[k] < 0 ? 0 : where[k] + box * 64), where[k] >= 0);
                ptx::mbarrier_arrive_after_copies(ptx::shared_address(&shared.full[stage][box]));
            }
        }
        tile = walk.next(tile);
        locate(tile, where);
    }
}

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_PRODUCE_CUH
