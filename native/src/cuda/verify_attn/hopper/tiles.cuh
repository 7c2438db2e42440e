// SPDX-License-Identifier: Apache-2.0
//
// Which slot tiles a block visits, and which of a tile's slots anybody sees.
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_TILES_CUH
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_TILES_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/verify_attn/hopper/layout.cuh"

namespace kdt::cuda::verify_attn::hopper {

__device__ __forceinline__ void add_bits(unsigned long long& word, uint64_t bits) {
    uint32_t* const halves = reinterpret_cast<uint32_t*>(&word);
    atomicOr(halves, static_cast<uint32_t>(bits));
    atomicOr(halves + 1, static_cast<uint32_t>(bits >> 32));
}

// Fills shared.seen and live_nodes from the mask rows of the tile's nodes; called by all threads, with a barrier before
// (the words are zero) and after.
__device__ __forceinline__ void survey_masks(const Args& args, Shared& shared) {
    const Work& work = shared.work;
    const int all_nodes = shared.request.nodes;
    const int first_node = node_of(args, work.first_row);
    const int nodes = min(node_of(args, work.first_row + work.rows - 1) + 1, all_nodes) - first_node;
    // A warp a node, a lane a word.
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const uint64_t* const words = args.tree_mask + (int64_t{work.b} * args.max_nodes + first_node) * args.words + lane;
    uint64_t seen = 0;
    uint64_t live = 0;
#pragma unroll 1
    for (int node = static_cast<int>(threadIdx.x) / kWarpSize; node < nodes; node += kThreads / kWarpSize) {
        const uint64_t bits = lane < args.words ? words[node * args.words] & node_bits(all_nodes, lane) : 0;
        seen |= bits;
        if (__ballot_sync(kAllLanes, bits != 0) != 0) live |= uint64_t{1} << node;
    }
    if (live == 0) return;
    if (lane < args.words) add_bits(shared.seen[lane], seen);
    if (lane == 0) add_bits(shared.live_nodes, live);
}

// Fills shared.windows and shared.visits from what survey_masks found; called by one warp.
__device__ __forceinline__ void plan_visits(const Args& args, Shared& shared) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const Window window(shared, shared.range.first_masked + lane);
    const bool any = shared.live_nodes != 0;
    const auto word = [&](int k) {
        if (k < 0) return args.tail_only == 0 && any ? ~uint64_t{0} : 0;
        return k < args.words ? uint64_t{shared.seen[k]} : 0;
    };
    const uint64_t seen = lane < kMaxMaskedTiles ? window.slots(word(window.at), word(window.at + 1)) : 0;
    if (lane < kMaxMaskedTiles) shared.windows[lane] = seen;
    const uint32_t visits = __ballot_sync(kAllLanes, seen != 0);
    if (lane == 0) {
        shared.visits = visits;
        // Where nobody sees anything, not even the prefix is visited.
        shared.walk_end = any ? shared.range.end : shared.range.begin;
    }
}

// The tiles of a block in their order, those that no row sees left out.
class TileWalk {
  public:
    __device__ explicit TileWalk(const Shared& shared)
        : begin_(shared.range.begin),
          end_(shared.walk_end),
          first_masked_(shared.range.first_masked),
          visits_(shared.visits) {}

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
    const uint32_t visits_;
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
