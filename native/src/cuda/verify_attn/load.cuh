// SPDX-License-Identifier: Apache-2.0
//
// Queries and latents on their way into shared memory. A row there is 1152 bytes, nine times all banks, so its 16-byte
// chunks are permuted by the row's low bits: the eight rows that ldmatrix reads at once then lie in different banks.
#ifndef KDTREE_CUDA_VERIFY_ATTN_LOAD_CUH
#define KDTREE_CUDA_VERIFY_ATTN_LOAD_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/verify_attn/layout.cuh"

namespace kdt::cuda::verify_attn {

// Byte offset of chunk `chunk` of row `row` among queries or latents.
__device__ __forceinline__ uint32_t latent_offset(int row, int chunk) {
    return static_cast<uint32_t>(row * kLatentBytes + ((chunk ^ (row & 7)) << 4));
}

// How a warp copies rows of 72 chunks: kLanes neighbouring lanes share a row, lane j of them takes chunks j, j +
// kLanes,
// ... The permutation of chunks then comes to two offsets a lane, and all else to constants.
template <int kRowsPerWarp>
struct RowCopy {
    static constexpr int kLanes = kWarpSize / kRowsPerWarp;
    static constexpr int kSteps = kLatentChunks / kLanes;
    static_assert((kLanes == 4 || kLanes == 8) && kLatentChunks % kLanes == 0, "whole rows, in equal steps");

    int row;          // of the tile
    int first_chunk;  // j
    uint32_t even;    // byte offsets of the chunk in its row, within groups of 8 chunks
    uint32_t odd;

    __device__ RowCopy() {
        const int lane = threadIdx.x % kWarpSize;
        row = static_cast<int>(threadIdx.x) / kWarpSize * kRowsPerWarp + lane / kLanes;
        first_chunk = lane % kLanes;
        even = static_cast<uint32_t>(row * kLatentBytes + ((first_chunk ^ (row & 7)) << 4));
        odd = even ^ (kLanes == 4 ? 64 : 0);
    }

    // Step i takes chunk first_chunk + i * kLanes of `source`, the start of the row's first_chunk.
    __device__ void start(int i, const __nv_bfloat16* source, uint32_t tile, bool valid) const {
        const uint32_t group = static_cast<uint32_t>(i * kLanes / 8 * 128);
        ptx::cp_async_16(tile + group + (i * kLanes % 8 == 0 ? even : odd), source, valid);
    }
};

// A tile of queries, q_nope and q_pe side by side; rows behind the last become zeros.
template <class T>
__device__ __forceinline__ void load_queries(const Args& args, int b, int first_row, uint32_t shared) {
    constexpr int kRowsPerPass = T::kRows < 32 ? T::kRows : 64;
    using Copy = RowCopy<(kRowsPerPass == 64 ? 8 : 4)>;
    const Copy copy;
    // With 16 rows, four warps of four are enough.
    if (copy.row >= T::kRows) return;
    const bool valid = first_row + copy.row < args.num_rows;
    const int64_t row = int64_t{b} * args.num_rows + (valid ? first_row + copy.row : 0);
    const __nv_bfloat16* const nope = args.q_nope + row * kRank + copy.first_chunk * 8;
    const __nv_bfloat16* const pe = args.q_pe + row * kRope + copy.first_chunk * 8;
    constexpr int kNopeSteps = kRank / 8 / Copy::kLanes;
#pragma unroll
    for (int i = 0; i < Copy::kSteps; ++i) {
        const __nv_bfloat16* const source =
            i < kNopeSteps ? nope + i * Copy::kLanes * 8 : pe + (i - kNopeSteps) * Copy::kLanes * 8;
        copy.start(i, source, shared, valid);
    }
}

// Loads tiles of latents. Each warp fetches kSlots / 8 slots, each by lanes of its own that know where it is.
template <class T>
class LatentLoader {
  public:
    __device__ LatentLoader(const Args& args, int b, const Request& request, const SlotTiles<T>& tiles,
                            const uint64_t* seen)
        : args_(args),
          request_(request),
          tiles_(tiles),
          seen_(seen),
          pages_(args.block_table + int64_t{b} * args.max_pages_per_seq) {}

    // The next tile from `tile` on that any row of the block sees, or the end of the split.
    __device__ int next_seen(int tile) const {
        while (tile < tiles_.end && tiles_.in_tree(tile) && seen_bits(tile) == 0) ++tile;
        return min(tile, tiles_.end);
    }

    // Where this lane's slot of `tile` starts in kv_cache, or -1 for a slot that nobody sees: it may hold anything, so
    // it is loaded as zeros (a weight of 0 would not do: 0 * NaN is NaN). So is one on a page that does not exist.
    __device__ int64_t locate(int tile) const {
        if (tile >= tiles_.end) return -1;
        // A prefix of 2^31 - 1 and its tree still fit 32 bits without sign, whose division is the cheaper one.
        const uint32_t slot = static_cast<uint32_t>(tiles_.first_slot(tile, request_)) + copy_.row;
        if (tiles_.in_tree(tile) ? (seen_bits(tile) >> copy_.row & 1) == 0
                                 : slot >= static_cast<uint32_t>(request_.prefix))
            return -1;
        const uint32_t page_size = args_.page_size;
        const uint32_t page_at = slot / page_size;
        const int page = pages_[page_at];
        if (page < 0 || page >= args_.num_pages) return -1;
        return (int64_t{page} * page_size + (slot - page_at * page_size)) * kHeadDim;
    }

    // Starts the copy of a tile whose slots are at `where`.
    __device__ __forceinline__ void start(int64_t where, uint32_t stage) const {
        const __nv_bfloat16* const source = args_.kv_cache + max(where, int64_t{0}) + copy_.first_chunk * 8;
#pragma unroll
        for (int i = 0; i < Copy::kSteps; ++i) copy_.start(i, source + i * Copy::kLanes * 8, stage, where >= 0);
    }

    // Whether all pages of this split exist, needed by a visible slot or not.
    __device__ bool pages_exist() const {
        if (tiles_.begin >= tiles_.end) return true;
        const uint32_t first = static_cast<uint32_t>(tiles_.first_slot(tiles_.begin, request_));
        const uint32_t behind = static_cast<uint32_t>(tiles_.first_slot(tiles_.end - 1, request_)) + T::kSlots;
        const uint32_t all = static_cast<uint32_t>(request_.prefix) + static_cast<uint32_t>(request_.nodes);
        const uint32_t page_size = args_.page_size;
        const uint32_t last_page = ((behind < all ? behind : all) - 1) / page_size;
        bool exist = true;
#pragma unroll 1
        for (uint32_t page = first / page_size + threadIdx.x; page <= last_page; page += kThreads)
            exist &= pages_[page] >= 0 && pages_[page] < args_.num_pages;
        return exist;
    }

  private:
    using Copy = RowCopy<T::kSlots / kWarps>;

    __device__ uint64_t seen_bits(int tile) const {
        const int node = tiles_.first_node(tile);
        return mask_bits<T>(seen_[node / 64], node);
    }

    const Args& args_;
    const Request& request_;
    const SlotTiles<T>& tiles_;
    const uint64_t* const seen_;
    const int32_t* const pages_;
    const Copy copy_;
};

}  // namespace kdt::cuda::verify_attn

#endif  // KDTREE_CUDA_VERIFY_ATTN_LOAD_CUH
