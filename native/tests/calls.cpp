// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <cstring>

#include "check.h"
#include "guarded_memory.h"

namespace {

// Bits, so that NaN equals NaN and 0 differs from -0.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class Params>
void call(GuardedMemory& memory, Params& params, kdt_status (*query)(const Params*, size_t*),
          kdt_status (*launch)(const Params*)) {
    size_t bytes = 0;
    if (query(&params, &bytes) != KDT_OK) check::fail(__FILE__, __LINE__, kdt_last_error());
    if (bytes > 0) params.workspace = memory.workspace(bytes);
    params.workspace_size = bytes;
    if (launch(&params) != KDT_OK) check::fail(__FILE__, __LINE__, kdt_last_error());
    memory.check();
}

size_t sized(int64_t a, int64_t b = 1, int64_t c = 1, int64_t d = 1) {
    return static_cast<size_t>(a * b * c * d);
}

}  // namespace

bool TreeBuildOutput::operator==(const TreeBuildOutput& other) const {
    if (status.size() != other.status.size()) return false;
    for (size_t b = 0; b < status.size(); ++b)
        if (((status[b] ^ other.status[b]) & ~KDT_REQ_SLOW_PATH) != 0) return false;
    return token_ids == other.token_ids && parents == other.parents && depths == other.depths &&
           positions == other.positions && first_child == other.first_child && next_sibling == other.next_sibling &&
           tree_mask == other.tree_mask && same_bits(scores, other.scores) && num_nodes == other.num_nodes &&
           dfs_order == other.dfs_order && same_bits(expected_lengths, other.expected_lengths);
}

bool TreeAcceptOutput::operator==(const TreeAcceptOutput& other) const {
    return accepted_path == other.accepted_path && acceptance_length == other.acceptance_length &&
           bonus_token == other.bonus_token && status == other.status && source_slots == other.source_slots;
}

bool VerifyAttnOutput::operator==(const VerifyAttnOutput& other) const {
    return out == other.out && same_bits(lse, other.lse) && status == other.status;
}

bool KvCompactOutput::operator==(const KvCompactOutput& other) const {
    return kv_cache == other.kv_cache && status == other.status;
}

bool MergeAttnStatesOutput::operator==(const MergeAttnStatesOutput& other) const {
    return out == other.out && same_bits(lse, other.lse);
}

bool DraftTopkOutput::operator==(const DraftTopkOutput& other) const {
    return same_bits(topk_log_probs, other.topk_log_probs) && topk_token_ids == other.topk_token_ids &&
           status == other.status;
}

TreeBuildOutput run(const TreeBuildInput& in) {
    const size_t batch = sized(in.batch);
    const size_t nodes = sized(in.batch, in.tree_budget + 1);
    const size_t mask_words = nodes * static_cast<size_t>(words_of(in.tree_budget + 1));
    GuardedMemory memory;
    kdt_tree_build_params p = {};
    p.struct_size = sizeof(p);
    p.topk_log_probs = memory.input(in.topk_log_probs);
    p.topk_token_ids = memory.input(in.topk_token_ids);
    p.root_token_ids = memory.input(in.root_token_ids);
    p.seq_lens = memory.input(in.seq_lens);
    p.token_ids = memory.output<int32_t>(nodes);
    p.parents = memory.output<int32_t>(nodes);
    p.depths = memory.output<int32_t>(nodes);
    p.positions = memory.output<int32_t>(nodes);
    p.first_child = memory.output<int32_t>(nodes);
    p.next_sibling = memory.output<int32_t>(nodes);
    p.tree_mask = memory.output<uint64_t>(mask_words);
    p.scores = memory.output<float>(nodes);
    p.num_nodes = memory.output<int32_t>(batch);
    p.status = memory.output<int32_t>(batch);
    p.dfs_order = in.dfs_order ? memory.output<int32_t>(nodes) : nullptr;
    p.expected_lengths = in.expected_lengths ? memory.output<float>(nodes) : nullptr;
    p.batch = in.batch;
    p.draft_horizon = in.draft_horizon;
    p.topk = in.topk;
    p.tree_budget = in.tree_budget;
    call(memory, p, kdt_tree_build_workspace_size, kdt_tree_build);
    return {memory.read(p.token_ids, nodes),
            memory.read(p.parents, nodes),
            memory.read(p.depths, nodes),
            memory.read(p.positions, nodes),
            memory.read(p.first_child, nodes),
            memory.read(p.next_sibling, nodes),
            memory.read(p.tree_mask, mask_words),
            memory.read(p.scores, nodes),
            memory.read(p.num_nodes, batch),
            memory.read(p.status, batch),
            memory.read(p.dfs_order, in.dfs_order ? nodes : 0),
            memory.read(p.expected_lengths, in.expected_lengths ? nodes : 0)};
}

TreeAcceptOutput run(const TreeAcceptInput& in) {
    const size_t batch = sized(in.batch);
    const size_t path = sized(in.batch, in.draft_horizon + 1);
    GuardedMemory memory;
    kdt_tree_accept_params p = {};
    p.struct_size = sizeof(p);
    p.token_ids = memory.input(in.token_ids);
    p.parents = memory.input(in.parents);
    p.num_nodes = memory.input(in.num_nodes);
    p.target_tokens = memory.input(in.target_tokens);
    p.accepted_path = memory.output<int32_t>(path);
    p.acceptance_length = memory.output<int32_t>(batch);
    p.bonus_token = memory.output<int32_t>(batch);
    p.status = memory.output<int32_t>(batch);
    const bool slots = !in.seq_lens.empty();
    p.seq_lens = slots ? memory.input(in.seq_lens) : nullptr;
    p.source_slots = slots ? memory.output<int32_t>(path) : nullptr;
    p.batch = in.batch;
    p.max_nodes = in.max_nodes;
    p.draft_horizon = in.draft_horizon;
    call(memory, p, kdt_tree_accept_workspace_size, kdt_tree_accept);
    return {memory.read(p.accepted_path, path), memory.read(p.acceptance_length, batch),
            memory.read(p.bonus_token, batch), memory.read(p.status, batch),
            memory.read(p.source_slots, slots ? path : 0)};
}

VerifyAttnOutput run(const VerifyAttnInput& in) {
    const size_t rows = sized(in.batch, in.max_nodes, in.num_qo_heads);
    GuardedMemory memory;
    kdt_verify_attn_params p = {};
    p.struct_size = sizeof(p);
    p.q_nope = memory.input(in.q_nope);
    p.q_pe = memory.input(in.q_pe);
    p.kv_cache = memory.input(in.kv_cache);
    p.block_table = memory.input(in.block_table);
    p.seq_lens = memory.input(in.seq_lens);
    p.tree_mask = memory.input(in.tree_mask);
    p.num_nodes = in.num_nodes.empty() ? nullptr : memory.input(in.num_nodes);
    uint16_t* const out = memory.output<uint16_t>(rows * KDT_KV_LORA_RANK);
    p.out = out;
    p.lse = memory.output<float>(rows);
    p.status = in.with_status ? memory.output<int32_t>(sized(in.batch)) : nullptr;
    p.batch = in.batch;
    p.max_nodes = in.max_nodes;
    p.num_qo_heads = in.num_qo_heads;
    p.kv_lora_rank = KDT_KV_LORA_RANK;
    p.qk_rope_head_dim = KDT_QK_ROPE_HEAD_DIM;
    p.num_pages = in.num_pages;
    p.page_size = in.page_size;
    p.max_pages_per_seq = in.max_pages_per_seq;
    p.softmax_scale = in.softmax_scale;
    p.tail_only = in.tail_only ? 1 : 0;
    p.path = in.path;
    call(memory, p, kdt_verify_attn_workspace_size, kdt_verify_attn);
    return {memory.read(out, rows * KDT_KV_LORA_RANK), memory.read(p.lse, rows),
            memory.read(p.status, in.with_status ? sized(in.batch) : 0)};
}

MergeAttnStatesOutput run(const MergeAttnStatesInput& in, InPlace in_place) {
    const size_t values = in.out_a.size(), rows = in.lse_a.size();
    GuardedMemory memory;
    kdt_merge_attn_states_params p = {};
    p.struct_size = sizeof(p);
    uint16_t* out = nullptr;
    if (in_place == InPlace::a) {
        p.out_a = out = memory.in_place(in.out_a);
        p.lse_a = p.lse = memory.in_place(in.lse_a);
    } else {
        p.out_a = memory.input(in.out_a);
        p.lse_a = memory.input(in.lse_a);
    }
    if (in_place == InPlace::b) {
        p.out_b = out = memory.in_place(in.out_b);
        p.lse_b = p.lse = memory.in_place(in.lse_b);
    } else {
        p.out_b = memory.input(in.out_b);
        p.lse_b = memory.input(in.lse_b);
    }
    if (in_place == InPlace::neither) {
        out = memory.output<uint16_t>(values);
        p.lse = memory.output<float>(rows);
    }
    p.out = out;
    p.rows = static_cast<int32_t>(rows);
    p.head_dim = in.head_dim;
    call(memory, p, kdt_merge_attn_states_workspace_size, kdt_merge_attn_states);
    return {memory.read(out, values), memory.read(p.lse, rows)};
}

VerifyAttnOutput run(const VerifyMlaInput& in) {
    const size_t rows = sized(in.batch, in.max_nodes, in.num_qo_heads);
    GuardedMemory memory;
    kdt_verify_mla_params p = {};
    p.struct_size = sizeof(p);
    p.q_nope = memory.input(in.q_nope);
    p.q_pe = memory.input(in.q_pe);
    p.w_uk = memory.input(in.w_uk);
    p.w_uv = memory.input(in.w_uv);
    p.kv_cache = memory.input(in.kv_cache);
    p.block_table = memory.input(in.block_table);
    p.seq_lens = memory.input(in.seq_lens);
    p.tree_mask = memory.input(in.tree_mask);
    p.num_nodes = in.num_nodes.empty() ? nullptr : memory.input(in.num_nodes);
    uint16_t* const out = memory.output<uint16_t>(rows * KDT_V_HEAD_DIM);
    p.out = out;
    p.lse = memory.output<float>(rows);
    p.status = in.with_status ? memory.output<int32_t>(sized(in.batch)) : nullptr;
    p.batch = in.batch;
    p.max_nodes = in.max_nodes;
    p.num_qo_heads = in.num_qo_heads;
    p.qk_nope_head_dim = KDT_QK_NOPE_HEAD_DIM;
    p.qk_rope_head_dim = KDT_QK_ROPE_HEAD_DIM;
    p.kv_lora_rank = KDT_KV_LORA_RANK;
    p.v_head_dim = KDT_V_HEAD_DIM;
    p.num_pages = in.num_pages;
    p.page_size = in.page_size;
    p.max_pages_per_seq = in.max_pages_per_seq;
    p.mode = in.mode;
    p.softmax_scale = in.softmax_scale;
    call(memory, p, kdt_verify_mla_workspace_size, kdt_verify_mla);
    return {memory.read(out, rows * KDT_V_HEAD_DIM), memory.read(p.lse, rows),
            memory.read(p.status, in.with_status ? sized(in.batch) : 0)};
}

DraftTopkOutput run(const DraftTopkInput& in) {
    const size_t answers = sized(in.rows, in.topk);
    GuardedMemory memory;
    kdt_draft_topk_params p = {};
    p.struct_size = sizeof(p);
    const bool f32 = !in.logits_f32.empty();
    p.logits = f32 ? static_cast<const void*>(memory.input(in.logits_f32)) : memory.input(in.logits_bf16);
    p.topk_log_probs = memory.output<float>(answers);
    p.topk_token_ids = memory.output<int32_t>(answers);
    p.status = memory.output<int32_t>(sized(in.rows));
    p.rows = in.rows;
    p.vocab_size = in.vocab_size;
    p.topk = in.topk;
    p.logits_dtype = f32 ? KDT_F32 : KDT_BF16;
    call(memory, p, kdt_draft_topk_workspace_size, kdt_draft_topk);
    return {memory.read(p.topk_log_probs, answers), memory.read(p.topk_token_ids, answers),
            memory.read(p.status, sized(in.rows))};
}

KvCompactOutput run(const KvCompactInput& in) {
    GuardedMemory memory;
    kdt_kv_compact_params p = {};
    p.struct_size = sizeof(p);
    unsigned char* const cache = memory.in_place(in.kv_cache);
    p.kv_cache = cache;
    p.block_table = memory.input(in.block_table);
    p.seq_lens = memory.input(in.seq_lens);
    p.accepted_path = memory.input(in.accepted_path);
    p.status = in.with_status ? memory.output<int32_t>(sized(in.batch)) : nullptr;
    p.batch = in.batch;
    p.draft_horizon = in.draft_horizon;
    p.num_layers = in.num_layers;
    p.num_pages = in.num_pages;
    p.page_size = in.page_size;
    p.max_pages_per_seq = in.max_pages_per_seq;
    p.row_bytes = in.row_bytes;
    call(memory, p, kdt_kv_compact_workspace_size, kdt_kv_compact);
    return {memory.read(cache, in.kv_cache.size()), memory.read(p.status, in.with_status ? sized(in.batch) : 0)};
}
