// SPDX-License-Identifier: Apache-2.0
//
// How verify_attn's Hopper kernel divides its work, and what its blocks keep where.
//
// A block serves one tile of 64 rows, a row being a (node, head) pair in the order of q_nope, over one *split* of the
// request's slots, in tiles of 64 slots that start at multiples of 64: a tile lies in one page if pages are multiples
// of 64, and prefix and tree may share a tile. The blocks of a cluster are splits of the same row tile, which add up
// their results; a row tile's splits may be spread over several clusters, its *groups*.
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_LAYOUT_CUH
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_LAYOUT_CUH

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/meeting.cuh"
#include "cuda/ptx/cluster.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda::verify_attn::hopper {

constexpr int kRank = KDT_KV_LORA_RANK;
constexpr int kHeadDim = KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM;
constexpr int kRows = 64;
constexpr int kSlots = 64;
// A tile of queries or latents is nine boxes of 64 x 64 values, in rows of 128 bytes whose chunks of 16 are swizzled.
constexpr int kBoxes = kHeadDim / 64;
constexpr int kBoxRowBytes = 128;
constexpr int kBoxBytes = kSlots * kBoxRowBytes;
constexpr int kTileBytes = kBoxes * kBoxBytes;
constexpr int kHalfBoxes = 4;  // of a half of a stage, which one of the groups reads as values
constexpr int kStages = 2;
constexpr int kMaxPagesPerTile = 4;  // that the copy engine brings; smaller pages are gathered slot by slot
constexpr int kMaxWords = (KDT_MAX_TREE_BUDGET + 64) / 64;
constexpr int kMaxMaskedTiles = kMaxWords + 1;  // that hold slots of the tree, which may start inside one
constexpr int kMaxClusterSplits = 8;
constexpr int kMaxGroups = 16;

// One warpgroup loads, two compute: the left one owns columns 0 .. 255 of the output and the scores of even tiles, the
// right one the other columns and the odd tiles.
constexpr int kWarpgroup = 128;
constexpr int kThreads = 3 * kWarpgroup;
constexpr int kConsumers = 2 * kWarpgroup;
constexpr int kWarpsPerGroup = kWarpgroup / 32;

// Ids of barriers among some of a block's threads; 0 is __syncthreads().
enum BarrierId { kLeftWeights = 1, kRightWeights, kLeftGroup, kRightGroup, kAllConsumers, kMainLoopDone };

// What a block is to do.
struct Work {
    int b;
    int tile;   // row tile
    int split;  // within the cluster
    int group;
    int first_row;
    int rows;  // that exist
};

// What a request asks for, or why it is refused. Bad pages show later.
struct Request {
    int status;
    int prefix;
    int nodes;
};

// A share of the slot tiles of a request.
struct SlotRange {
    int begin;
    int end;
    int first_masked;  // tiles from here on hold slots of the tree
};

// Everything in a block's shared memory. Weights of a tile (64 x 64 bf16) replace its last box, the keys' rope part,
// which nobody needs once the tile's scores are known.
struct Shared {
    unsigned char queries[kTileBytes];
    unsigned char stages[kStages][kTileBytes];
    uint64_t full[kStages][2];   // mbarriers: a half of a stage has landed,
    uint64_t empty[kStages][2];  // and is free again: what the left or the right group reads last
    uint64_t queries_full;
    float reference[kStages][kRows];  // what the exponents of the stage's weights are relative to
    float sums[2][kRows];
    float lse[kRows];       // base 2, of this split
    float units[2][kRows];  // what the halves of a split's staged rows are in units of
    float total_lse[kRows];
    unsigned long long seen[kMaxWords];  // columns of the tree that any row of this tile sees
    unsigned long long live_nodes;       // bit k: the tile's k-th node sees anything
    Work work;
    Request request;
    SlotRange range;
    int refused;
    int claim;
};
constexpr int kSharedBytes = static_cast<int>(sizeof(Shared));
static_assert(kSharedBytes <= 227 * 1024, "what a block can have");

// What parts of a row weigh in the sum of splits; it replaces the queries once nobody reads them any more.
struct Shares {
    float of_splits[2][kMaxClusterSplits][kRows];  // times the units of the halves of the split's staged rows
    float of_groups[kMaxGroups][kRows];
};
static_assert(sizeof(Shares) <= kTileBytes, "it lies where the queries were");

// Partial results of groups of splits, when one cluster does not hold all splits. A unit is a row tile of a request.
struct Partials {
    float* out;         // [units, groups, kRows, 512], of weight 1
    float* lse;         // [units, groups, cluster_splits, kRows] base 2: a copy for the columns of each block
    int32_t* status;    // [units, groups, cluster_splits]
    Meeting* meetings;  // [units, cluster_splits]
};

struct Args {
    const __nv_bfloat16* kv_cache;
    const int32_t* block_table;
    const int32_t* seq_lens;
    const uint64_t* tree_mask;
    const int32_t* num_nodes;
    __nv_bfloat16* out;
    float* lse;
    int32_t* status;
    int max_nodes;
    int words;
    int num_qo_heads;
    int num_rows;  // of a request: max_nodes * num_qo_heads
    int num_pages;
    int page_size;
    uint32_t page_reciprocal;  // 2^(32 + page_shift) / page_size, rounded up
    int page_shift;            // page_size lies above 2^page_shift, up to twice that
    int max_pages_per_seq;
    float scale_log2;  // softmax_scale * log2(e): exponentials are of base 2
    int tail_only;
    int tiles;                  // row tiles of a request
    int cluster_splits;         // splits of a row tile in one cluster: its blocks
    uint32_t heads_reciprocal;  // 2^31 / num_qo_heads, rounded up
    int groups;                 // clusters a row tile's splits are spread over
    Partials partials;
};

// The grid is clusters side by side over the row tiles, groups, requests: neighbours read the same latents.
__device__ __forceinline__ Work find_work(const Args& args) {
    Work work;
    work.split = static_cast<int>(ptx::cluster_rank());
    work.tile = static_cast<int>(ptx::cluster_index());
    work.group = static_cast<int>(blockIdx.y);
    work.b = static_cast<int>(blockIdx.z);
    work.first_row = work.tile * kRows;
    const int left = args.num_rows - work.first_row;
    work.rows = left < kRows ? left : kRows;
    return work;
}

// The node of a row: row / num_qo_heads, exact for rows below 2^24 and up to 128 heads.
__device__ __forceinline__ int node_of(const Args& args, int row) {
    return static_cast<int>(uint64_t{static_cast<uint32_t>(row)} * args.heads_reciprocal >> 31);
}

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

__device__ __forceinline__ SlotRange find_range(const Args& args, const Request& request, const Work& work) {
    const uint32_t slots = static_cast<uint32_t>(request.prefix) + static_cast<uint32_t>(request.nodes);
    const int tiles = static_cast<int>((slots + kSlots - 1) / kSlots);
    SlotRange range;
    range.first_masked = request.prefix / kSlots;
    const int first = args.tail_only != 0 ? range.first_masked : 0;
    const int splits = args.cluster_splits * args.groups;
    const int split = work.group * args.cluster_splits + work.split;
    const int each = (tiles - first) / splits;
    const int more = (tiles - first) - each * splits;  // the first splits have one more
    range.begin = first + each * split + (split < more ? split : more);
    range.end = range.begin + each + (split < more ? 1 : 0);
    return range;
}

// Where the 64 slots of a masked tile lie among mask words: bits from `shift` on of word `at` and those before `shift`
// of the next. A tile may start in the prefix, whose slots are those of word -1, visible to all or to nobody.
struct Window {
    int at;
    int shift;

    __device__ Window(const Shared& shared, int tile) {
        const int before = shared.request.prefix % kSlots;
        at = tile - shared.range.first_masked - (before != 0 ? 1 : 0);
        shift = (kSlots - before) % kSlots;
    }
    __device__ uint64_t slots(uint64_t low, uint64_t high) const {
        return shift == 0 ? low : low >> shift | high << (64 - shift);
    }
};

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_LAYOUT_CUH
