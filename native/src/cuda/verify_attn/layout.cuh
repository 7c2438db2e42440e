// SPDX-License-Identifier: Apache-2.0
//
// How verify_attn divides its work and what its blocks keep where.
//
// A *row* is a (node, head) pair, in the order of q_nope. A block serves one tile of kRows rows of one request over one
// *split* of its slots, in tiles of kSlots: first the prefix, then the tree, whose tiles start at node 0 so that a
// row's mask is (part of) one word.
#ifndef KDTREE_CUDA_VERIFY_ATTN_LAYOUT_CUH
#define KDTREE_CUDA_VERIFY_ATTN_LAYOUT_CUH

#include <cuda_bf16.h>

#include <cstdint>

#include "kdtree/kdtree.h"

namespace kdt::cuda::verify_attn {

constexpr int kRank = KDT_KV_LORA_RANK;
constexpr int kRope = KDT_QK_ROPE_HEAD_DIM;
constexpr int kHeadDim = kRank + kRope;
constexpr int kLatentBytes = kHeadDim * 2;
constexpr int kLatentChunks = kLatentBytes / 16;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxWords = (KDT_MAX_TREE_BUDGET + 64) / 64;
constexpr int kMaxSplits = 128;
// A split with less than this many slots costs more to reduce than it saves.
constexpr int kMinSplitSlots = 128;
constexpr int kReductionCost = 40;  // of the second kernel, in the unit of Tile's costs
static_assert(kRank == kWarps * 64, "each warp owns 64 columns of the output");

// Shared memory a block can have on compute capability arch / 10.
__host__ __device__ constexpr int arch_shared_bytes(int arch) {
    const bool small = arch == 86 || arch == 89 || arch / 10 == 12;
    return (small ? 99 : arch < 90 ? 163 : 227) * 1024;
}

// The tile shapes that are compiled. Warps form a kWarpsM x kWarpsN grid over a score tile; with 16 rows that is half
// of them, and the others only load and multiply values.
template <int kRows_, int kSlots_>
struct Tile {
    static constexpr int kRows = kRows_;
    static constexpr int kSlots = kSlots_;
    static constexpr int kStages = 2;
    static constexpr int kWarpsM = kRows / 16;
    static constexpr int kWarpsN = kRows == 16 ? 4 : 2;
    static constexpr int kScoreTiles = kSlots / 8 / kWarpsN;  // 16 x 8 tiles a warp
    static constexpr int kBlocksPerMultiprocessor = kRows == 16 ? 2 : 1;
    // What a slot tile and a block besides take on an H200, in tenths of a microsecond: only their proportions count.
    static constexpr int kTileCost = kRows == 16 ? 20 : kSlots * 45 / 64;
    static constexpr int kBlockCost = kRows == 16 ? 48 : 80;
    static_assert(kWarpsM * kWarpsN <= kWarps && kSlots % (8 * kWarpsN) == 0, "score tiles divide among the warps");

    struct Small {
        float maximum[kWarpsN][kRows];  // of a score tile's part, then the sums of the weights at the end
        float rescale[kRows];
        float row_max[kRows];
        uint64_t seen[kMaxWords];  // columns of the tree that any row of the tile sees
        uint64_t live_nodes;       // bit k: the tile's k-th node sees anything
    };
    static constexpr int kQueryBytes = kRows * kLatentBytes;
    static constexpr int kStageBytes = kSlots * kLatentBytes;
    static constexpr int kWeightBytes = kRows * kSlots * 2;
    static constexpr int kSharedBytes =
        kQueryBytes + kStages * kStageBytes + kWeightBytes + static_cast<int>(sizeof(Small));
};

// The workspace when slots are split: a partial result a (request, tile, split), the unit.
struct Partials {
    float* out;       // [units, kRows, 512], of weight 1
    float* lse;       // [units, kRows] base 2; -inf where a split saw nothing (out is then not written)
    int32_t* status;  // [units]
};

struct Args {
    const __nv_bfloat16* q_nope;
    const __nv_bfloat16* q_pe;
    const __nv_bfloat16* kv_cache;
    const int32_t* block_table;
    const int32_t* seq_lens;
    const uint64_t* tree_mask;
    const int32_t* num_nodes;
    __nv_bfloat16* out;
    float* lse;
    int32_t* status;
    int batch;
    int max_nodes;
    int words;
    int num_qo_heads;
    int num_rows;  // of a request: max_nodes * num_qo_heads
    int num_pages;
    int page_size;
    int max_pages_per_seq;
    float scale_log2;  // softmax_scale * log2(e): exponentials are of base 2
    bool tail_only;    // the prefix is left out
    int tiles;         // row tiles of a request
    int splits;
    Partials partials;
};

// What a request asks for, or why it is refused. Bad pages show later.
struct Request {
    int status;
    int prefix;
    int nodes;
};

__device__ __forceinline__ Request examine(const Args& args, int b) {
    const int prefix = args.seq_lens[b];
    const int nodes = args.num_nodes != nullptr ? args.num_nodes[b] : args.max_nodes;
    if (nodes < 1 || nodes > args.max_nodes) return {KDT_REQ_BAD_COUNT, 0, 0};
    if (prefix < 0 || int64_t{prefix} + nodes > int64_t{args.max_pages_per_seq} * args.page_size)
        return {KDT_REQ_BAD_LENGTH, 0, 0};
    return {0, prefix, nodes};
}

// The bits of mask word `word` that stand for nodes of the request.
__device__ __forceinline__ uint64_t node_bits(int nodes, int word) {
    const int left = nodes - word * 64;
    return left >= 64 ? ~uint64_t{0} : left <= 0 ? 0 : (uint64_t{1} << left) - 1;
}

// The slot tiles of a request and the share of one split.
template <class T>
struct SlotTiles {
    int prefix_tiles;  // none when the prefix is left out
    int begin;
    int end;

    __device__ SlotTiles(const Args& args, const Request& request, int split) {
        const int splits = args.splits;
        prefix_tiles = args.tail_only ? 0 : static_cast<int>((int64_t{request.prefix} + T::kSlots - 1) / T::kSlots);
        const int total = prefix_tiles + (request.nodes + T::kSlots - 1) / T::kSlots;
        // Even shares of what there is: the host chose `splits` from the bound on lengths, which may be far above.
        const int share = max((total + splits - 1) / splits, kMinSplitSlots / T::kSlots);
        begin = static_cast<int>(min(int64_t{total}, int64_t{split} * share));
        end = min(total, begin + share);
    }

    __device__ bool in_tree(int tile) const { return tile >= prefix_tiles; }
    __device__ int first_node(int tile) const { return (tile - prefix_tiles) * T::kSlots; }

    // First logical slot of a tile, also where the request ends.
    __device__ int64_t first_slot(int tile, const Request& request) const {
        return in_tree(tile) ? int64_t{request.prefix} + first_node(tile) : int64_t{tile} * T::kSlots;
    }
};

// kSlots bits of a mask row, from column `node` on.
template <class T>
__device__ __forceinline__ uint64_t mask_bits(uint64_t word, int node) {
    if (T::kSlots == 64) return word;
    return (word >> (node & 63)) & ((uint64_t{1} << (T::kSlots & 63)) - 1);
}

}  // namespace kdt::cuda::verify_attn

#endif  // KDTREE_CUDA_VERIFY_ATTN_LAYOUT_CUH
