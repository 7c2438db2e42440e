// SPDX-License-Identifier: Apache-2.0
//
// The C ABI of kdtree-native: the kernels of DDTree speculative decoding (diffusion draft tree,
// arXiv 2604.12989). libkdtree_cpu.so and libkdtree_cuda.so export exactly these symbols.
//
// Contract of every call
//   * One params struct by pointer. `struct_size` is sizeof() of the struct the caller was compiled with; fields
//     appended later read as zero when the caller is older, and must be zero when the library is older.
//   * Pointers are host memory for the CPU library and device memory for the CUDA library, row-major and contiguous.
//   * Nothing allocates, synchronises or keeps state: a CUDA call may be captured in a graph, and the same inputs give
//     the same bits. `stream` is a cudaStream_t (NULL: the default stream); the CPU library ignores it.
//   * What can be checked on the host is: KDT_INVALID_ARGUMENT, with a sentence in kdt_last_error(). What only the data
//     shows is a status word per request; the other requests of the batch come out right.
//   * A workspace is needed only where the *_workspace_size query says more than zero bytes, 16-byte aligned. Contents
//     are scratch: they need no initialisation and must not be shared by calls that run at the same time.
//
// Symbols: B batch; D draft_horizon; K topk; N = max_nodes, tree_budget + 1 (root included); H num_qo_heads.
#ifndef KDTREE_KDTREE_H
#define KDTREE_KDTREE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define KDT_API
#else
#define KDT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KDT_ABI_VERSION 1

// Return values of every call.
typedef enum kdt_status {
    KDT_OK = 0,
    KDT_INVALID_ARGUMENT = 1,  // a pointer, size or flag the host could check
    KDT_UNSUPPORTED = 2,       // legal, but not built into this library (or not on this GPU)
    KDT_CUDA_ERROR = 3,        // a launch or a runtime call failed
    KDT_NO_DEVICE = 4,         // no usable GPU or driver
    KDT_INTERNAL = 5
} kdt_status;

// Status word of one request: bits 0-7 inform, bits 8 and up say that the request was refused.
enum {
    KDT_REQ_SHORT_TREE = 1 << 0,   // the candidates ran out before tree_budget: num_nodes < N
    KDT_REQ_TRUNCATED = 1 << 1,    // a node of rank topk - 1 at depth d was selected while topk - 1 < tree_budget - d:
                                   // the best tree inside `topk` columns, perhaps not of the whole vocabulary
    KDT_REQ_SLOW_PATH = 1 << 2,    // exact, but not on the fast path
    KDT_REQ_NAN = 1 << 8,          // NaN among the inputs
    KDT_REQ_POSITIVE = 1 << 9,     // a log-prob above zero, or a logit of +inf
    KDT_REQ_BAD_TREE = 1 << 10,    // a parent outside [0, node): cyclic, self-parented or out of range; a bad path
    KDT_REQ_BAD_COUNT = 1 << 11,   // num_nodes outside [1, N]
    KDT_REQ_TOO_DEEP = 1 << 12,    // a path longer than draft_horizon
    KDT_REQ_BAD_LENGTH = 1 << 13,  // seq_lens negative, or seq_lens + nodes beyond the block table
    KDT_REQ_BAD_PAGE = 1 << 14     // a needed block_table entry outside [0, num_pages)
};
#define KDT_REQ_ERROR_MASK (~0xff)

#define KDT_MAX_TREE_BUDGET 1024
#define KDT_MAX_DRAFT_HORIZON 31
#define KDT_MAX_TOPK 1024
// Log-probs below this count as -inf: KDT_MAX_DRAFT_HORIZON of them stay inside the fixed-point range of 2^11.
#define KDT_LOG_PROB_FLOOR (-64.0f)
// Log-probs are summed as int64 in units of 2^-KDT_FIXED_POINT_BITS: exact and associative.
#define KDT_FIXED_POINT_BITS 40
#define KDT_KV_LORA_RANK 512
#define KDT_QK_ROPE_HEAD_DIM 64
#define KDT_QK_NOPE_HEAD_DIM 128
#define KDT_V_HEAD_DIM 128

typedef enum kdt_dtype { KDT_F32 = 0, KDT_BF16 = 1 } kdt_dtype;

// ---- draft_topk: the topk largest log-softmax values of each row, descending, equal values by lowest token id
// -inf is ordinary: a row of nothing else answers -inf and the lowest ids.
typedef struct kdt_draft_topk_params {
    uint32_t struct_size;
    const void* logits;       // [rows, vocab_size], logits_dtype
    float* topk_log_probs;    // [rows, topk] f32(logit - logsumexp(row)); a refused row is all NaN
    int32_t* topk_token_ids;  // [rows, topk]; a refused row is all -1
    int32_t* status;          // [rows] request status: KDT_REQ_NAN, KDT_REQ_POSITIVE (+inf); -inf is ordinary
    int32_t rows;             // >= 0
    int32_t vocab_size;       // >= 1
    int32_t topk;             // 1 .. min(vocab_size, KDT_MAX_TOPK)
    int32_t logits_dtype;     // kdt_dtype
    void* stream;
    void* workspace;
    size_t workspace_size;
} kdt_draft_topk_params;

// ---- tree_build: the tree_budget most probable prefixes, best first
// Node order: score descending, rank tuple ascending. Node 0 is the root. Pads (index >= num_nodes): token 0, parent
// -1, depth 0, position seq_lens[b], no links, empty mask row, score -inf. A refused request is a root-only tree.
typedef struct kdt_tree_build_params {
    uint32_t struct_size;
    const float* topk_log_probs;    // [B, D, K] descending along K; every entry is checked for NaN and > 0
    const int32_t* topk_token_ids;  // [B, D, K] distinct within a row
    const int32_t* root_token_ids;  // [B]
    const int32_t* seq_lens;        // [B] committed tokens; the root stands at this position
    int32_t* token_ids;             // [B, N]
    int32_t* parents;               // [B, N] root -1
    int32_t* depths;                // [B, N] root 0
    int32_t* positions;             // [B, N] seq_lens[b] + depth
    int32_t* first_child;           // [B, N] lowest-rank child or -1
    int32_t* next_sibling;          // [B, N] next higher-rank sibling or -1
    uint64_t* tree_mask;            // [B, N, ceil(N/64)] bit j of row i: i may attend j; ancestors and self
    float* scores;                  // [B, N] sum of log-probs from the root
    int32_t* num_nodes;             // [B] 1 + nodes selected
    int32_t* status;                // [B]
    int32_t* dfs_order;             // [B, N] node indices in pre-order, -1 for pads; may be NULL
    int32_t batch;                  // >= 0
    int32_t draft_horizon;          // 0 .. KDT_MAX_DRAFT_HORIZON
    int32_t topk;                   // 1 .. KDT_MAX_TOPK
    int32_t tree_budget;            // 0 .. KDT_MAX_TREE_BUDGET, root excluded; N = tree_budget + 1
    void* stream;
    void* workspace;
    size_t workspace_size;
    float* expected_lengths;  // [B, N] acceptance_length the drafter expects of the tree cut after node i: the sum
                              // of exp(score) over nodes 0 .. i; pads repeat the last; may be NULL
} kdt_tree_build_params;

// ---- tree_accept: the longest path from the root that agrees with the target
// A refused request answers accepted_path [0, -1, ...], acceptance_length 1, bonus_token target_tokens[b, 0]: the root
// row sees the prefix alone, so its token is right whatever the tree. KDT_REQ_BAD_COUNT with num_nodes <= 0 answers
// [-1, ...], 0 and -1. With source_slots, the logical slots that hold the accepted nodes' latents come out as well:
// entry k belongs in slot P + k (kv_compact moves it there). Then a P outside [0, INT32_MAX - N] refuses as
// KDT_REQ_BAD_LENGTH, behind KDT_REQ_BAD_COUNT and before the others, and its source_slots are all -1.
typedef struct kdt_tree_accept_params {
    uint32_t struct_size;
    const int32_t* token_ids;      // [B, N]
    const int32_t* parents;        // [B, N]
    const int32_t* num_nodes;      // [B]
    const int32_t* target_tokens;  // [B, N] the target's token after node i; entries of pads are ignored
    int32_t* accepted_path;        // [B, D+1] node indices from 0, strictly increasing, then -1
    int32_t* acceptance_length;    // [B] entries >= 0 of accepted_path = tokens emitted, bonus included
    int32_t* bonus_token;          // [B] target_tokens at the last accepted node
    int32_t* status;               // [B]
    int32_t batch;                 // >= 0
    int32_t max_nodes;             // N, 1 .. KDT_MAX_TREE_BUDGET + 1
    int32_t draft_horizon;         // D, 0 .. KDT_MAX_DRAFT_HORIZON
    void* stream;
    void* workspace;
    size_t workspace_size;
    const int32_t* seq_lens;  // [B] P; may be NULL when source_slots is
    int32_t* source_slots;    // [B, D+1] P + accepted_path where that is >= 0, else -1; may be NULL
} kdt_tree_accept_params;

// ---- verify_attn: MLA-absorb attention of the tree's nodes over prefix and tree
// Node i attends slots [0, P) and P + j for each set bit j of its mask row, P = seq_lens[b]; its own latent stands at
// logical slot P + i. A row with no bits set is a pad: out 0, lse -inf, the prefix not seen. Bits and rows at or beyond
// num_nodes count for nothing. Slots nobody may see may hold anything, NaN included. A refused request is all pads,
// with the first of KDT_REQ_BAD_COUNT, KDT_REQ_BAD_LENGTH, KDT_REQ_BAD_PAGE that applies; the pages of all slots [0, P
// + num_nodes) must exist, where num_nodes is N when it is NULL.
// With tail_only the prefix is left out: a row attends the tree slots of its bits and nothing else, where they always
// stand (from logical slot P on), to be merged with the prefix's result by kdt_merge_attn_states. Only the pages of
// slots [P, P + num_nodes) must exist then, and no other entry of the block table is looked at; P is still checked.
// `path` names an implementation, for tests and comparisons: they differ in speed and in the last bits. One that the
// library or the GPU lacks, or that cannot serve the sizes, is KDT_UNSUPPORTED.
typedef enum kdt_attn_path {
    KDT_ATTN_BEST = 0,      // whichever should be fastest
    KDT_ATTN_PORTABLE = 1,  // what runs everywhere; the CPU library's only one
    KDT_ATTN_HOPPER = 2     // wgmma and TMA: compute capability 9.0
} kdt_attn_path;

typedef struct kdt_verify_attn_params {
    uint32_t struct_size;
    const void* q_nope;          // bf16 [B, N, H, 512], absorbed
    const void* q_pe;            // bf16 [B, N, H, 64], RoPE applied
    const void* kv_cache;        // bf16 [num_pages, page_size, 576]: latent 512, then k_pe 64
    const int32_t* block_table;  // [B, max_pages_per_seq] logical slot t is page block_table[b, t / page_size]
    const int32_t* seq_lens;     // [B] P, the tree excluded
    const uint64_t* tree_mask;   // [B, N, ceil(N/64)]
    const int32_t* num_nodes;    // [B]; may be NULL: then an empty mask row alone marks a pad
    void* out;                   // bf16 [B, N, H, 512]
    float* lse;                  // [B, N, H] natural log of the sum of exp(softmax_scale * score)
    int32_t* status;             // [B]; may be NULL
    int32_t batch;               // >= 0
    int32_t max_nodes;           // N, 1 .. KDT_MAX_TREE_BUDGET + 1
    int32_t num_qo_heads;        // H, 1 .. 128
    int32_t kv_lora_rank;        // KDT_KV_LORA_RANK
    int32_t qk_rope_head_dim;    // KDT_QK_ROPE_HEAD_DIM
    int32_t num_pages;           // >= 1
    int32_t page_size;           // >= 1
    int32_t max_pages_per_seq;   // >= 1
    float softmax_scale;         // finite, > 0
    void* stream;
    void* workspace;
    size_t workspace_size;
    int32_t tail_only;  // 0 or 1: 1 leaves the prefix out
    int32_t path;       // kdt_attn_path
} kdt_verify_attn_params;

// ---- merge_attn_states: attention over two disjoint sets of slots, from the attention over each
// lse = log(e^lse_a + e^lse_b); out = e^(lse_a - lse) out_a + e^(lse_b - lse) out_b: how cascade attention puts its
// levels together (FlashInfer, arXiv 2501.01005). A side with lse -inf has seen nothing and counts for nothing, even
// where its out is NaN; with both, the answer is 0 and -inf. An lse of NaN or +inf makes its row NaN, lse included: an
// error upstream stays visible. Log-sum-exps are natural; multiply those of base 2 by ln 2 first.
// In place: out may be out_a or out_b, lse may be lse_a or lse_b; other overlaps are not allowed.
typedef struct kdt_merge_attn_states_params {
    uint32_t struct_size;
    const void* out_a;   // bf16 [rows, head_dim]
    const float* lse_a;  // [rows]
    const void* out_b;   // bf16 [rows, head_dim]
    const float* lse_b;  // [rows]
    void* out;           // bf16 [rows, head_dim]
    float* lse;          // [rows]
    int32_t rows;        // >= 0
    int32_t head_dim;    // a multiple of 8, 8 .. KDT_KV_LORA_RANK
    void* stream;
    void* workspace;
    size_t workspace_size;
} kdt_merge_attn_states_params;

// ---- kv_compact: the latents of the accepted nodes to the slots behind the prefix
// In every layer the row of logical slot P + accepted_path[k] moves to slot P + k, P = seq_lens[b], as if all rows of a
// request were read before one is written. Rows are bytes: NaN keeps its payload. A path that is all -1, or whose nodes
// are in place, moves nothing. A refused request moves nothing either; its status is the first that applies of
// KDT_REQ_BAD_TREE (the path is not 0, then rising, then -1), KDT_REQ_BAD_LENGTH and KDT_REQ_BAD_PAGE (of a slot that
// is moved or moved to). Pages that one request writes must not be read or written for another.
typedef struct kdt_kv_compact_params {
    uint32_t struct_size;
    void* kv_cache;                // [num_layers, num_pages, page_size] rows of row_bytes; 16-byte aligned
    const int32_t* block_table;    // [B, max_pages_per_seq], the same for all layers
    const int32_t* seq_lens;       // [B] P
    const int32_t* accepted_path;  // [B, D+1] as tree_accept gives it
    int32_t* status;               // [B]; may be NULL
    int32_t batch;                 // >= 0
    int32_t draft_horizon;         // D, 0 .. KDT_MAX_DRAFT_HORIZON
    int32_t num_layers;            // >= 0
    int32_t num_pages;             // >= 1
    int32_t page_size;             // >= 1
    int32_t max_pages_per_seq;     // >= 1
    int32_t row_bytes;             // of one token in one layer: a multiple of 16 (1152 for 576 bf16)
    void* stream;
    void* workspace;
    size_t workspace_size;
} kdt_kv_compact_params;
// ---- verify_mla: the same attention between its projections, from unabsorbed queries to the heads' own values
// With the latent c_t of a slot and head h: key[t, h] = (w_uk[h] c_t, k_pe[t]) of 128 + 64 values, value[t, h] = c_t
// w_uv[h] of 128. Rows, pads, what may hold garbage and what is refused are verify_attn's. Two modes give the same
// answer but for bf16 roundings between their steps, which differ:
//   * absorb: queries times w_uk, verify_attn over the latents, its output times w_uv; queries and outputs 512 wide are
//     rounded. 2176 FLOP a (query, slot, head).
//   * mha: keys and values of every head are made from the latents and rounded, then plain attention with heads of 192
//     and 128. 640 FLOP a (query, slot, head), but 262144 a (slot, head) before: cheaper from about 171 nodes on.
typedef enum kdt_mla_mode { KDT_MLA_AUTO = 0, KDT_MLA_ABSORB = 1, KDT_MLA_MHA = 2 } kdt_mla_mode;

typedef struct kdt_verify_mla_params {
    uint32_t struct_size;
    const void* q_nope;          // bf16 [B, N, H, 128], not absorbed
    const void* q_pe;            // bf16 [B, N, H, 64], RoPE applied
    const void* w_uk;            // bf16 [H, 128, 512]
    const void* w_uv;            // bf16 [H, 512, 128]
    const void* kv_cache;        // bf16 [num_pages, page_size, 576]: latent 512, then k_pe 64
    const int32_t* block_table;  // [B, max_pages_per_seq] logical slot t is page block_table[b, t / page_size]
    const int32_t* seq_lens;     // [B] P, the tree excluded
    const uint64_t* tree_mask;   // [B, N, ceil(N/64)]
    const int32_t* num_nodes;    // [B]; may be NULL: then an empty mask row alone marks a pad
    void* out;                   // bf16 [B, N, H, 128]
    float* lse;                  // [B, N, H] natural log of the sum of exp(softmax_scale * score)
    int32_t* status;             // [B]; may be NULL
    int32_t batch;               // >= 0
    int32_t max_nodes;           // N, 1 .. KDT_MAX_TREE_BUDGET + 1
    int32_t num_qo_heads;        // H, 1 .. 128
    int32_t qk_nope_head_dim;    // KDT_QK_NOPE_HEAD_DIM
    int32_t qk_rope_head_dim;    // KDT_QK_ROPE_HEAD_DIM
    int32_t kv_lora_rank;        // KDT_KV_LORA_RANK
    int32_t v_head_dim;          // KDT_V_HEAD_DIM
    int32_t num_pages;           // >= 1
    int32_t page_size;           // >= 1
    int32_t max_pages_per_seq;   // >= 1; together with page_size the bound on slots that sizes work and workspace
    int32_t mode;                // kdt_mla_mode; auto takes the mode that kdt_verify_mla_cost() names
    float softmax_scale;         // finite, > 0
    void* stream;
    void* workspace;
    size_t workspace_size;
} kdt_verify_mla_params;

// What the two modes cost by this library's model, a function of the sizes alone: every request is taken to have as
// many slots as its block table. Bytes are those of all steps, seconds a model's and only good for comparing modes.
typedef struct kdt_verify_mla_costs {
    uint32_t struct_size;  // sizeof() of the caller's struct: no more is written
    int32_t mode;          // KDT_MLA_ABSORB or KDT_MLA_MHA: the params' own, or for KDT_MLA_AUTO the cheaper one
    double absorb_flops;
    double absorb_bytes;
    double absorb_seconds;
    double mha_flops;
    double mha_bytes;
    double mha_seconds;
} kdt_verify_mla_costs;

// The queries read sizes only, never pointers, and store the bytes the call needs in *bytes.
KDT_API kdt_status kdt_draft_topk_workspace_size(const kdt_draft_topk_params* params, size_t* bytes);
KDT_API kdt_status kdt_tree_build_workspace_size(const kdt_tree_build_params* params, size_t* bytes);
KDT_API kdt_status kdt_tree_accept_workspace_size(const kdt_tree_accept_params* params, size_t* bytes);
KDT_API kdt_status kdt_verify_attn_workspace_size(const kdt_verify_attn_params* params, size_t* bytes);
KDT_API kdt_status kdt_merge_attn_states_workspace_size(const kdt_merge_attn_states_params* params, size_t* bytes);
KDT_API kdt_status kdt_kv_compact_workspace_size(const kdt_kv_compact_params* params, size_t* bytes);
KDT_API kdt_status kdt_verify_mla_workspace_size(const kdt_verify_mla_params* params, size_t* bytes);
KDT_API kdt_status kdt_verify_mla_cost(const kdt_verify_mla_params* params, kdt_verify_mla_costs* costs);

KDT_API kdt_status kdt_draft_topk(const kdt_draft_topk_params* params);
KDT_API kdt_status kdt_tree_build(const kdt_tree_build_params* params);
KDT_API kdt_status kdt_tree_accept(const kdt_tree_accept_params* params);
KDT_API kdt_status kdt_verify_attn(const kdt_verify_attn_params* params);
KDT_API kdt_status kdt_merge_attn_states(const kdt_merge_attn_states_params* params);
KDT_API kdt_status kdt_kv_compact(const kdt_kv_compact_params* params);
KDT_API kdt_status kdt_verify_mla(const kdt_verify_mla_params* params);

KDT_API uint32_t kdt_abi_version(void);

// One JSON object: {"backend", "compiler", "archs", "git_commit", "flags", "cuda_version"}. Static storage.
KDT_API const char* kdt_build_info(void);

// The sentence of the last call of this thread that did not return KDT_OK; "" when none. Valid until the next failure.
KDT_API const char* kdt_last_error(void);

#ifdef __cplusplus
}
#endif

#endif  // KDTREE_KDTREE_H
