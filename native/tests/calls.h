// SPDX-License-Identifier: Apache-2.0
//
// The library's calls over plain vectors. Each run_* sizes a guarded, poisoned set of buffers, asks for the workspace,
// calls, insists on KDT_OK and untouched guards, and brings the outputs back.
#ifndef KDTREE_TESTS_CALLS_H
#define KDTREE_TESTS_CALLS_H

#include <cstdint>
#include <vector>

#include "kdtree/kdtree.h"

struct TreeBuildInput {
    int32_t batch, draft_horizon, topk, tree_budget;
    std::vector<float> topk_log_probs;
    std::vector<int32_t> topk_token_ids, root_token_ids, seq_lens;
    bool dfs_order = true;
    bool expected_lengths = true;
};

struct TreeBuildOutput {
    std::vector<int32_t> token_ids, parents, depths, positions, first_child, next_sibling;
    std::vector<uint64_t> tree_mask;
    std::vector<float> scores;
    std::vector<int32_t> num_nodes, status, dfs_order;
    std::vector<float> expected_lengths;

    // Bit for bit; the informational slow-path flag is the backend's own business.
    bool operator==(const TreeBuildOutput& other) const;
};

struct TreeAcceptInput {
    int32_t batch, max_nodes, draft_horizon;
    std::vector<int32_t> token_ids, parents, num_nodes, target_tokens;
    std::vector<int32_t> seq_lens = {};  // empty: no source_slots are asked for
};

struct TreeAcceptOutput {
    std::vector<int32_t> accepted_path, acceptance_length, bonus_token, status, source_slots;

    bool operator==(const TreeAcceptOutput& other) const;
};

struct VerifyAttnInput {
    int32_t batch, max_nodes, num_qo_heads, num_pages, page_size, max_pages_per_seq;
    float softmax_scale;
    std::vector<uint16_t> q_nope, q_pe, kv_cache;
    std::vector<int32_t> block_table, seq_lens;
    std::vector<uint64_t> tree_mask;
    std::vector<int32_t> num_nodes;  // empty: NULL
    bool with_status = true;         // false: NULL
    bool tail_only = false;
    int32_t path = KDT_ATTN_BEST;
};

// Of verify_mla as well.
struct VerifyAttnOutput {
    std::vector<uint16_t> out;
    std::vector<float> lse;
    std::vector<int32_t> status;

    bool operator==(const VerifyAttnOutput& other) const;
};

struct MergeAttnStatesInput {
    int32_t head_dim;
    std::vector<uint16_t> out_a, out_b;
    std::vector<float> lse_a, lse_b;
};

struct MergeAttnStatesOutput {
    std::vector<uint16_t> out;
    std::vector<float> lse;

    bool operator==(const MergeAttnStatesOutput& other) const;
};

// Which of its inputs a merge writes over.
enum class InPlace { neither, a, b };

struct VerifyMlaInput {
    int32_t batch, max_nodes, num_qo_heads, num_pages, page_size, max_pages_per_seq, mode;
    float softmax_scale;
    std::vector<uint16_t> q_nope, q_pe, w_uk, w_uv, kv_cache;
    std::vector<int32_t> block_table, seq_lens;
    std::vector<uint64_t> tree_mask;
    std::vector<int32_t> num_nodes;  // empty: NULL
    bool with_status = true;         // false: NULL
};

struct DraftTopkInput {
    int32_t rows, vocab_size, topk;
    std::vector<float> logits_f32;
    std::vector<uint16_t> logits_bf16;  // used when logits_f32 is empty
};

struct DraftTopkOutput {
    std::vector<float> topk_log_probs;
    std::vector<int32_t> topk_token_ids, status;

    bool operator==(const DraftTopkOutput& other) const;
};

struct KvCompactInput {
    int32_t batch, draft_horizon, num_layers, num_pages, page_size, max_pages_per_seq, row_bytes;
    std::vector<unsigned char> kv_cache;
    std::vector<int32_t> block_table, seq_lens, accepted_path;
    bool with_status = true;  // false: NULL
};

struct KvCompactOutput {
    std::vector<unsigned char> kv_cache;
    std::vector<int32_t> status;

    bool operator==(const KvCompactOutput& other) const;
};

TreeBuildOutput run(const TreeBuildInput& input);
TreeAcceptOutput run(const TreeAcceptInput& input);
VerifyAttnOutput run(const VerifyAttnInput& input);
MergeAttnStatesOutput run(const MergeAttnStatesInput& input, InPlace in_place = InPlace::neither);
VerifyAttnOutput run(const VerifyMlaInput& input);
DraftTopkOutput run(const DraftTopkInput& input);
KvCompactOutput run(const KvCompactInput& input);

// 64-bit words of a mask row.
inline int32_t words_of(int32_t max_nodes) {
    return (max_nodes + 63) / 64;
}

#endif  // KDTREE_TESTS_CALLS_H
