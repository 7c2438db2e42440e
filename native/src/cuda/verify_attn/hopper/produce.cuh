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

// All are of blocks of 64 columns, boxes of 64 columns a row.
struct Maps {
    CUtensorMap q_nope;   // [B * rows, 512], all blocks at a time
    CUtensorMap q_pe;     // [B * rows, 64]
    CUtensorMap latents;  // [num_pages * page_size, 576], one block of 64 slots, or of a smaller page's
    CUtensorMap halves;   // the same, half a stage at a time
};

// Boxes of a half of a stage. The left half is read last by the left group, the right one by the right group; the last
// box, which comes to hold the weights, by the group that did not compute them.
__device__ __forceinline__ int first_box(int half) {
    return half == 0 ? 0 : kHalfBoxes;
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
    ptx::tma_load(&maps.q_nope, queries, barrier, 0, row, 0);
    ptx::tma_load(&maps.q_pe, queries + (kBoxes - 1) * kBoxBytes, barrier, 0, row, 0);
}

// slot / page_size, exact for slots below 2^31.
__device__ __forceinline__ uint32_t page_of(const Args& args, uint32_t slot) {
    return args.page_size == 1 ? slot : __umulhi(slot, args.page_reciprocal) >> args.page_shift;
}

// Where a tile's rows start in the cache, page by page.
struct TileRows {
    int at[kMaxPagesPerTile];
};

// One half of every tile, by one thread: pages are multiples of 64 slots, or 16 or 32.
__device__ __forceinline__ void load_latents(const Args& args, const Maps& maps, Shared& shared, const TileWalk& walk,
                                             int half) {
    const Work& work = shared.work;
    const int32_t* const pages = args.block_table + int64_t{work.b} * args.max_pages_per_seq;
    const uint32_t page_size = static_cast<uint32_t>(args.page_size);
    const int box_rows = args.page_size < kSlots ? args.page_size : kSlots;
    const uint32_t slots = static_cast<uint32_t>(shared.request.prefix) + static_cast<uint32_t>(shared.request.nodes);
    // Behind the cache's last row, where the copy engine finds zeros, for a page that does not exist.
    const auto locate = [&](int tile) {
        TileRows rows;
#pragma unroll
        for (int i = 0; i < kMaxPagesPerTile; ++i) {
            const uint32_t slot = static_cast<uint32_t>(tile) * kSlots + i * box_rows;
            rows.at[i] = args.num_pages * args.page_size;
            if (tile >= walk.end() || i * box_rows >= kSlots || slot >= slots) continue;
            const uint32_t page_at = page_of(args, slot);
            const int page = pages[page_at];
            if (page >= 0 && page < args.num_pages)
                rows.at[i] = page * args.page_size + static_cast<int>(slot - page_at * page_size);
        }
        return rows;
    };
    int tile = walk.first();
    TileRows rows = locate(tile);
#pragma unroll 1
    for (int j = 0; tile < walk.end(); ++j) {
        const int next = walk.next(tile);
        const TileRows next_rows = locate(next);
        const int stage = j % kStages;
        if (j >= kStages) ptx::mbarrier_wait(ptx::shared_address(&shared.empty[stage][half]), (j / kStages - 1) & 1);
        const bool last_box = half_has_last_box(stage, half);
        const uint32_t barrier = ptx::shared_address(&shared.full[stage][half]);
        const uint32_t to = ptx::shared_address(shared.stages[stage]);
        ptx::mbarrier_arrive_expect(barrier, (kHalfBoxes + (last_box ? 1 : 0)) * kBoxBytes);
        if (box_rows == kSlots) {
            ptx::tma_load(&maps.halves, to + first_box(half) * kBoxBytes, barrier, 0, rows.at[0], first_box(half));
            if (last_box)
                ptx::tma_load(&maps.latents, to + (kBoxes - 1) * kBoxBytes, barrier, 0, rows.at[0], kBoxes - 1);
        } else {
#pragma unroll 1
            for (int i = 0; i < kHalfBoxes + (last_box ? 1 : 0); ++i) {
                const int box = i == kHalfBoxes ? kBoxes - 1 : first_box(half) + i;
#pragma unroll
                for (int k = 0; k < kMaxPagesPerTile; ++k)
                    if (k * box_rows < kSlots)
                        ptx::tma_load(&maps.latents, to + box * kBoxBytes + k * box_rows * kBoxRowBytes, barrier, 0,
                                      rows.at[k], box);
            }
        }
        tile = next;
        rows = next_rows;
    }
}

// One half of every tile, by two warps: pages of any size, slot by slot. Eight threads copy a slot's 128 bytes of a
// box; a thread has eight slots of a tile, 8 apart, so that it always meets the same swizzle. Where a tile of the
// prefix lies in one run of the cache, as most do that were allocated together, the copy engine takes it.
class Gatherer {
  public:
    __device__ __forceinline__ Gatherer(const Args& args, const Maps& maps, Shared& shared, int half)
        : args_(args),
          maps_(maps),
          shared_(shared),
          walk_(args, shared),
          pages_(args.block_table + int64_t{shared.work.b} * args.max_pages_per_seq),
          half_(half),
          thread_(static_cast<int>(threadIdx.x) % (kWarpgroup / 2)),
          first_slot_(thread_ / 8),
          offset_(static_cast<uint32_t>(first_slot_ * kBoxRowBytes + ((thread_ % 8 ^ first_slot_) << 4))) {}

    __device__ __forceinline__ void run() {
        int tile = walk_.first();
        Entries entries = look_up(tile);
#pragma unroll 1
        for (int j = 0; tile < walk_.end(); ++j) {
            const int stage = j % kStages;
            const Sources sources = find_sources(tile, entries);
            const int run = entries.run;
            tile = walk_.next(tile);
            entries = look_up(tile);  // long before it is needed
            if (j >= kStages)
                ptx::mbarrier_wait(ptx::shared_address(&shared_.empty[stage][half_]), (j / kStages - 1) & 1);
            const uint32_t stage_at = ptx::shared_address(shared_.stages[stage]);
            const uint32_t barrier = ptx::shared_address(&shared_.full[stage][half_]);
            const bool last_box = half_has_last_box(stage, half_);
            if (run >= 0) {
                if (thread_ == 0) load_run(run, stage_at, last_box, barrier);
            } else {
                copy_boxes<kHalfBoxes>(sources, stage_at, first_box(half_));
                if (last_box) copy_boxes<1>(sources, stage_at, kBoxes - 1);
            }
            ptx::mbarrier_arrive_after_copies(barrier);
        }
    }

  private:
    static constexpr int kSteps = kSlots / 8;

    // Pages of this thread's slots of a tile, -1 for a slot that nobody sees; and where the tile begins in the cache if
    // it is all prefix and lies there in one piece, else -1.
    struct Entries {
        int page[kSteps];
        int run;
    };
    // Rows of the cache that a thread copies from; -1 for slots that nobody sees, which may hold anything, and for
    // those on pages that do not exist. They come as zeros.
    struct Sources {
        int row[kSteps];
    };

    __device__ __forceinline__ uint32_t slot(int tile, int i) const {
        return static_cast<uint32_t>(tile) * kSlots + first_slot_ + i * 8;
    }

    __device__ __forceinline__ Entries look_up(int tile) const {
        Entries entries;
        uint64_t seen = tile < walk_.end() ? ~uint64_t{0} : 0;
        if (tile < walk_.end() && walk_.is_masked(tile)) seen = seen_slots(args_, shared_, tile);
        const uint64_t own = seen >> first_slot_;
#pragma unroll
        for (int i = 0; i < kSteps; ++i)
            entries.page[i] = (own >> (i * 8) & 1) != 0 ? pages_[page_of(args_, slot(tile, i))] : -1;
        entries.run = tile < walk_.end() && !walk_.is_masked(tile) ? find_run(tile) : -1;
        return entries;
    }

    // Every warp looks at all slots of the tile, two a lane.
    __device__ __forceinline__ int find_run(int tile) const {
        const int lane = thread_ % kWarpSize;
        const uint32_t page_size = static_cast<uint32_t>(args_.page_size);
        int rows[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t at = static_cast<uint32_t>(tile) * kSlots + lane + i * kWarpSize;
            const uint32_t page_at = page_of(args_, at);
            const int page = pages_[page_at];
            rows[i] = page < 0 || page >= args_.num_pages
                          ? -kSlots
                          : page * args_.page_size + static_cast<int>(at - page_at * page_size);
        }
        const int begin = __shfl_sync(kAllLanes, rows[0], 0);
        const bool follows = rows[0] == begin + lane && rows[1] == begin + lane + kWarpSize;
        return __all_sync(kAllLanes, follows) ? begin : -1;
    }

    // By one thread. Its arrival at the barrier is still to come, so the bytes are counted in time.
    __device__ __forceinline__ void load_run(int row, uint32_t stage, bool last_box, uint32_t barrier) const {
        ptx::mbarrier_expect(barrier, (kHalfBoxes + (last_box ? 1 : 0)) * kBoxBytes);
        ptx::tma_load(&maps_.halves, stage + first_box(half_) * kBoxBytes, barrier, 0, row, first_box(half_));
        if (last_box) ptx::tma_load(&maps_.latents, stage + (kBoxes - 1) * kBoxBytes, barrier, 0, row, kBoxes - 1);
    }

    __device__ __forceinline__ Sources find_sources(int tile, const Entries& entries) const {
        Sources sources;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
            const int page = entries.page[i];
            const uint32_t page_size = static_cast<uint32_t>(args_.page_size);
            const uint32_t at = slot(tile, i);
            // Slots of the cache are less than 2^31.
            const uint32_t row = static_cast<uint32_t>(page) * page_size + (at - page_of(args_, at) * page_size);
            sources.row[i] = page >= 0 && page < args_.num_pages ? static_cast<int>(row) : -1;
        }
        return sources;
    }

    template <int kCount>
    __device__ __forceinline__ void copy_boxes(const Sources& sources, uint32_t stage, int first) const {
        const uint32_t to = stage + offset_ + first * kBoxBytes;
        const char* const base =
            reinterpret_cast<const char*>(args_.kv_cache) + first * kBoxRowBytes + thread_ % 8 * 16;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
            const bool exists = sources.row[i] >= 0;
            const char* const from = base + (exists ? int64_t{sources.row[i]} * (kHeadDim * 2) : 0);
#pragma unroll
            for (int box = 0; box < kCount; ++box)
                ptx::cp_async_16(to + box * kBoxBytes + i * 8 * kBoxRowBytes, from + box * kBoxRowBytes, exists);
        }
    }

    const Args& args_;
    const Maps& maps_;
    Shared& shared_;
    const TileWalk walk_;
    const int32_t* const pages_;
    const int half_;
    const int thread_;
    const int first_slot_;
    const uint32_t offset_;
};

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_PRODUCE_CUH
