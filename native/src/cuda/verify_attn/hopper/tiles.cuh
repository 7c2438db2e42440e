// SPDX-License-Identifier: Apache-2.0
//
// Which slot tiles a block visits, and which of a tile's slots anybody sees.
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_TILES_CUH
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_TILES_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/prefetch.cuh"
#include "cuda/verify_attn/hopper/layout.cuh"

namespace kdt::cuda::verify_attn::hopper {

// Brings the block table's entries for the first tiles near, which whoever loads latents will ask for next.
__device__ __forceinline__ void prefetch_pages(const Args& args, const Work& work, const SlotRange& range, int lane) {
    const uint32_t first = static_cast<uint32_t>(range.begin) * kSlots / static_cast<uint32_t>(args.page_size);
    const uint32_t entry = first + static_cast<uint32_t>(lane) * 32;  // 128 bytes a lane
    if (lane < 5 && range.begin < range.end && entry < static_cast<uint32_t>(args.max_pages_per_seq))
        ptx::prefetch_l1(args.block_table + int64_t{work.b} * args.max_pages_per_seq + entry);
}

__device__ __forceinline__ void add_bits(unsigned long long& word, uint64_t bits) {
    uint32_t* const halves = reinterpret_cast<uint32_t*>(&word);
    atomicOr(halves, static_cast<uint32_t>(bits));
    atomicOr(halves + 1, static_cast<uint32_t>(bits >> 32));
}

// Finds out what there is to do: shared.work, request and range, and from the mask rows of the tile's nodes seen and
// live_nodes. Called by all warps but the first, with a barrier before (the words are zero) and after. Lengths and mask
// are asked for at once: at the start of a block there is nothing else to do than to wait for memory.
__device__ __forceinline__ void survey(const Args& args, const Work& work, Shared& shared) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize - 1;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int first_node = node_of(args, work.first_row);
    const int tile_nodes = node_of(args, work.first_row + work.rows - 1) + 1 - first_node;
    // A warp a node, a lane a word.
    const uint64_t* const words = args.tree_mask + (int64_t{work.b} * args.max_nodes + first_node) * args.words + lane;
    const auto load = [&](int node) {
        return node < tile_nodes && lane < args.words ? words[node * args.words] : uint64_t{0};
    };
    uint64_t bits = load(warp);
    const Request request = examine(args, work.b);
    if (warp == 0) {
        const SlotRange range = find_range(args, request, work);
        if (lane == 0) {
            shared.work = work;
            shared.request = request;
            shared.range = range;
        }
        prefetch_pages(args, work, range, lane);
    }
    uint64_t seen = 0;
    uint64_t live = 0;
#pragma unroll 1
    for (int node = warp; node < min(tile_nodes, request.nodes - first_node);) {
        bits &= node_bits(request.nodes, lane);
        seen |= bits;
        if (__ballot_sync(kAllLanes, bits != 0) != 0) live |= uint64_t{1} << node;
        node += kThreads / kWarpSize - 1;
        bits = load(node);
    }
    if (live == 0) return;
    if (lane < args.words) add_bits(shared.seen[lane], seen);
    if (lane == 0) add_bits(shared.live_nodes, live);
}

// The slots of a masked tile that a row of the block sees. Known after survey().
__device__ __forceinline__ uint64_t seen_slots(const Args& args, const Shared& shared, int tile) {
    const Window window(shared, tile);
    const auto word = [&](int k) {
        if (k < 0) return args.tail_only == 0 && shared.live_nodes != 0 ? ~uint64_t{0} : 0;
        return k < args.words ? uint64_t{shared.seen[k]} : 0;
    };
    return window.slots(word(window.at), word(window.at + 1));
}

// The tiles of a block in their order, those that no row sees left out; where nobody sees anything, not even the prefix
// is visited. To be made by whole warps.
class TileWalk {
  public:
    __device__ __forceinline__ TileWalk(const Args& args, const Shared& shared)
        : begin_(shared.range.begin),
          end_(shared.live_nodes != 0 ? shared.range.end : shared.range.begin),
          first_masked_(shared.range.first_masked) {
        const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
        const bool visited = lane < kMaxMaskedTiles && seen_slots(args, shared, first_masked_ + lane) != 0;
        visits_ = __ballot_sync(kAllLanes, visited);
    }

    __device__ int end() const { return end_; }
    __device__ int first() const { return from(begin_); }
    __device__ int next(int tile) const { return from(tile + 1); }
    __device__ bool is_masked(int tile) const { return tile >= first_masked_; }

  private:
    __device__ int from(int tile) const {
        if (tile >= first_masked_ && tile < end_) {
            const uint32_t left = visits_ >> (tile - first_masked_);
            tile = left == 0 ? end_ : tile + __ffs(static_cast<int>(left)) - 1;
        }
        return tile < end_ ? tile : end_;
    }

    const int begin_;
    const int end_;
    const int first_masked_;
    uint32_t visits_;  // bit k: a row sees something of masked tile k
};

// Whether this thread's share of the pages that hold slots of the block's split exists. `thread` of `threads`.
__device__ __forceinline__ bool pages_exist(const Args& args, const Shared& shared, int thread, int threads) {
    const Request& request = shared.request;
    const SlotRange& range = shared.range;
    if (range.begin >= range.end) return true;
    const uint32_t all = static_cast<uint32_t>(request.prefix) + static_cast<uint32_t>(request.nodes);
    uint32_t first = static_cast<uint32_t>(range.begin) * kSlots;
    if (args.tail_only != 0 && first < static_cast<uint32_t>(request.prefix))
        first = static_cast<uint32_t>(request.prefix);
    const uint32_t behind = static_cast<uint32_t>(range.end) * kSlots;
    const uint32_t page_size = static_cast<uint32_t>(args.page_size);
    const uint32_t last_page = ((behind < all ? behind : all) - 1) / page_size;
    const int32_t* const pages = args.block_table + int64_t{shared.work.b} * args.max_pages_per_seq;
    bool exist = true;
#pragma unroll 4
    for (uint32_t page = first / page_size + thread; page <= last_page; page += threads) {
        const int32_t number = pages[page];
        exist &= number >= 0 && number < args.num_pages;
    }
    return exist;
}

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_TILES_CUH
