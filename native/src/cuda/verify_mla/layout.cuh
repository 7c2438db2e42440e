// SPDX-License-Identifier: Apache-2.0
//
// How verify_mla divides its work.
//
// A *unit* is a head of a request. In mha mode the units are taken a chunk at a time: keys and values of a chunk are
// made in the workspace, then attended to, and the next chunk overwrites them. So the workspace is bounded whatever
// batch and heads are, and what one kernel writes there the next one mostly finds in L2.
#ifndef KDTREE_CUDA_VERIFY_MLA_LAYOUT_CUH
#define KDTREE_CUDA_VERIFY_MLA_LAYOUT_CUH

#include <cuda_bf16.h>

#include <cstdint>

#include "kdtree/kdtree.h"

// Warpgroup products exist in code for sm_90a alone; KDT_NO_WGMMA builds what other architectures run, to test it
// there.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(KDT_NO_WGMMA)
#define KDT_WGMMA 1
#endif

namespace kdt::cuda::verify_mla {

constexpr int kRank = KDT_KV_LORA_RANK;
constexpr int kRope = KDT_QK_ROPE_HEAD_DIM;
constexpr int kNope = KDT_QK_NOPE_HEAD_DIM;
constexpr int kValue = KDT_V_HEAD_DIM;
constexpr int kKey = kNope + kRope;
constexpr int kLatent = kRank + kRope;
constexpr int kThreads = 256;  // of all kernels
constexpr int kWarps = kThreads / 32;
constexpr int kSlots = 64;  // a slot tile: one word of a mask row
constexpr int kRows = 128;  // a row tile: nodes of one unit
// Blocks of a multiprocessor that are compiled for. Where mma.sync runs, either shared memory or the registers that its
// operands take leave room for one block of attention.
#ifdef KDT_WGMMA
constexpr int kAttendBlocks = 2;
#else
constexpr int kAttendBlocks = 1;
#endif
constexpr int kMostBlocks = 2;
constexpr int kMaxWords = (KDT_MAX_TREE_BUDGET + 64) / 64;
constexpr int kMaxSplits = 32;  // a lane of the reduction looks at one

// What a request asks for, or why it is refused; a refused one has neither prefix nor nodes.
struct Request {
    int32_t status;
    int32_t prefix;
    int32_t nodes;
    int32_t unused;
};

struct Args {
    const __nv_bfloat16* q_nope;
    const __nv_bfloat16* q_pe;
    const __nv_bfloat16* w_uk;
    const __nv_bfloat16* w_uv;
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
    int num_pages;
    int page_size;
    int max_pages_per_seq;
    float scale_log2;  // softmax_scale * log2(e): exponentials are of base 2

    // absorb mode, in the workspace
    __nv_bfloat16* absorbed;    // [B, N, H, 512]
    __nv_bfloat16* latent_out;  // [B, N, H, 512]

    // mha mode: the sizes of the plan, then what is in the workspace
    int64_t slots;          // room of a unit
    int first_unit;         // of this chunk
    int units;              // of this chunk
    int tiles;              // row tiles of a unit
    int splits;             // blocks that share the slots of a row tile
    Request* requests;      // [B]
    __nv_bfloat16* keys;    // [units, slots, 192], the head's own 128, then k_pe
    __nv_bfloat16* values;  // [units, slots, 128]
    float* partial_out;     // [units, tiles, splits, kRows, 128], of weight 1
    float* partial_lse;     // [units, tiles, splits, kRows] base 2; -inf where a split saw nothing (out not written)

    __device__ int batch_of(int unit) const { return (first_unit + unit) / num_qo_heads; }
    __device__ int head_of(int unit) const { return (first_unit + unit) % num_qo_heads; }
};

// Byte offset of a 16-byte chunk in an operand of kPanelRows rows: panels of 128-byte rows, eight chunks each, one
// after the other. Chunks are permuted by the row's low bits, so that the eight rows which ldmatrix reads at once lie
// in different banks.
template <int kPanelRows>
__device__ __forceinline__ uint32_t panel_offset(int row, int chunk) {
    return static_cast<uint32_t>((chunk / 8 * kPanelRows + row) * 128 + ((chunk ^ row) & 7) * 16);
}

// The bits of mask word `word` that stand for nodes of a request of `nodes`.
__device__ __forceinline__ uint64_t node_bits(int nodes, int word) {
    const int left = nodes - word * 64;
    return left >= 64 ? ~uint64_t{0} : left <= 0 ? 0 : (uint64_t{1} << left) - 1;
}

}  // namespace kdt::cuda::verify_mla

#endif  // KDTREE_CUDA_VERIFY_MLA_LAYOUT_CUH
