// SPDX-License-Identifier: Apache-2.0
#include "core/checks.h"

#include <cmath>
#include <limits>

namespace kdt {
namespace {

void check_range(const char* call, const char* name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
        fail_argument("%s: %s is %lld, wanted %lld .. %lld", call, name, static_cast<long long>(value),
                      static_cast<long long>(low), static_cast<long long>(high));
}

void check_at_least(const char* call, const char* name, int64_t value, int64_t low) {
    if (value < low)
        fail_argument("%s: %s is %lld, wanted %lld or more", call, name, static_cast<long long>(value),
                      static_cast<long long>(low));
}

// `what` is the array's dtype and shape, as the header has it.
void check_pointer(const char* call, const char* name, const void* pointer, size_t alignment, const char* what) {
    if (pointer == nullptr) fail_argument("%s: %s is NULL, wanted %s", call, name, what);
    check_alignment(call, name, pointer, alignment);
}

void check_optional(const char* call, const char* name, const void* pointer, size_t alignment) {
    if (pointer != nullptr) check_alignment(call, name, pointer, alignment);
}

// Two arrays of `bytes` each: one and the same, or without a byte in common.
void check_same_or_apart(const char* call, const char* name, const void* written, const char* other, const void* read,
                         size_t bytes) {
    const uintptr_t a = reinterpret_cast<uintptr_t>(written), b = reinterpret_cast<uintptr_t>(read);
    if (a != b && a < b + bytes && b < a + bytes)
        fail_argument("%s: %s overlaps %s in part, wanted the same array or one apart from it", call, name, other);
}

}  // namespace

void check_struct_size(const char* call, const void* params, uint32_t v1_size, uint32_t own_size) {
    if (params == nullptr) fail_argument("%s: params is NULL, wanted a pointer to kdt_%s_params", call, call);
    check_alignment(call, "params", params, alignof(void*));
    uint32_t given = 0;
    std::memcpy(&given, params, sizeof(given));
    if (given < v1_size || given > kMaxStructSize)
        fail_argument("%s: struct_size is %u, wanted sizeof(kdt_%s_params), which is %u here and at least %u", call,
                      given, call, own_size, v1_size);
    const unsigned char* const bytes = static_cast<const unsigned char*>(params);
    for (uint32_t i = own_size; i < given; ++i)
        if (bytes[i] != 0)
            fail_argument(
                "%s: struct_size is %u and byte %u is not zero, but this library knows %u bytes: a field newer than "
                "the library is in use",
                call, given, i, own_size);
}

void check_alignment(const char* call, const char* name, const void* pointer, size_t alignment) {
    if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0)
        fail_argument("%s: %s is at address %p, wanted one that is a multiple of %zu bytes", call, name, pointer,
                      alignment);
}

void check_workspace(const char* call, const void* workspace, size_t workspace_size, size_t needed) {
    if (needed == 0) return;
    if (workspace == nullptr) fail_argument("%s: workspace is NULL, wanted %zu bytes", call, needed);
    if (workspace_size < needed)
        fail_argument("%s: workspace_size is %zu, wanted %zu or more", call, workspace_size, needed);
    check_alignment(call, "workspace", workspace, kWorkspaceAlignment);
}

void check_bytes_out(const char* call, const size_t* bytes) {
    if (bytes == nullptr) fail_argument("%s_workspace_size: bytes is NULL, wanted a place for the answer", call);
}

int64_t checked_bytes(const char* call, const char* name, std::initializer_list<int64_t> sizes, int64_t element_size) {
    int64_t bytes = element_size;
    for (const int64_t size : sizes)
        if (__builtin_mul_overflow(bytes, size, &bytes))
            fail_argument("%s: %s would hold more than 2^63 bytes, wanted sizes whose product is addressable", call,
                          name);
    return bytes;
}

// ---- draft_topk

void check_draft_topk_sizes(const kdt_draft_topk_params& p) {
    const char* const call = "draft_topk";
    check_at_least(call, "rows", p.rows, 0);
    check_at_least(call, "vocab_size", p.vocab_size, 1);
    check_range(call, "topk", p.topk, 1, KDT_MAX_TOPK);
    if (p.topk > p.vocab_size)
        fail_argument("%s: topk is %d, wanted at most vocab_size, which is %d", call, p.topk, p.vocab_size);
    if (p.logits_dtype != KDT_F32 && p.logits_dtype != KDT_BF16)
        fail_argument("%s: logits_dtype is %d, wanted KDT_F32 (%d) or KDT_BF16 (%d)", call, p.logits_dtype, KDT_F32,
                      KDT_BF16);
    checked_bytes(call, "logits", {p.rows, p.vocab_size}, sizeof(float));
}

void check_draft_topk(const kdt_draft_topk_params& p) {
    check_draft_topk_sizes(p);
    if (p.rows == 0) return;
    const char* const call = "draft_topk";
    const bool f32 = p.logits_dtype == KDT_F32;
    check_pointer(call, "logits", p.logits, f32 ? 4 : 2,
                  f32 ? "float32 [rows, vocab_size]" : "bfloat16 [rows, vocab_size]");
    check_pointer(call, "topk_log_probs", p.topk_log_probs, 4, "float32 [rows, topk]");
    check_pointer(call, "topk_token_ids", p.topk_token_ids, 4, "int32 [rows, topk]");
    check_pointer(call, "status", p.status, 4, "int32 [rows]");
}

// ---- tree_build

void check_tree_build_sizes(const kdt_tree_build_params& p) {
    const char* const call = "tree_build";
    check_at_least(call, "batch", p.batch, 0);
    check_range(call, "draft_horizon", p.draft_horizon, 0, KDT_MAX_DRAFT_HORIZON);
    check_range(call, "topk", p.topk, 1, KDT_MAX_TOPK);
    check_range(call, "tree_budget", p.tree_budget, 0, KDT_MAX_TREE_BUDGET);
}

void check_tree_build(const kdt_tree_build_params& p) {
    check_tree_build_sizes(p);
    if (p.batch == 0) return;
    const char* const call = "tree_build";
    const char* const per_node = "int32 [batch, tree_budget + 1]";
    if (p.draft_horizon > 0) {
        check_pointer(call, "topk_log_probs", p.topk_log_probs, 4, "float32 [batch, draft_horizon, topk]");
        check_pointer(call, "topk_token_ids", p.topk_token_ids, 4, "int32 [batch, draft_horizon, topk]");
    }
    check_pointer(call, "root_token_ids", p.root_token_ids, 4, "int32 [batch]");
    check_pointer(call, "seq_lens", p.seq_lens, 4, "int32 [batch]");
    check_pointer(call, "token_ids", p.token_ids, 4, per_node);
    check_pointer(call, "parents", p.parents, 4, per_node);
    check_pointer(call, "depths", p.depths, 4, per_node);
    check_pointer(call, "positions", p.positions, 4, per_node);
    check_pointer(call, "first_child", p.first_child, 4, per_node);
    check_pointer(call, "next_sibling", p.next_sibling, 4, per_node);
    check_pointer(call, "tree_mask", p.tree_mask, 8, "uint64 [batch, tree_budget + 1, words of tree_budget + 1 bits]");
    check_pointer(call, "scores", p.scores, 4, "float32 [batch, tree_budget + 1]");
    check_pointer(call, "num_nodes", p.num_nodes, 4, "int32 [batch]");
    check_pointer(call, "status", p.status, 4, "int32 [batch]");
    check_optional(call, "dfs_order", p.dfs_order, 4);
    check_optional(call, "expected_lengths", p.expected_lengths, 4);
}

// ---- tree_accept

void check_tree_accept_sizes(const kdt_tree_accept_params& p) {
    const char* const call = "tree_accept";
    check_at_least(call, "batch", p.batch, 0);
    check_range(call, "max_nodes", p.max_nodes, 1, KDT_MAX_TREE_BUDGET + 1);
    check_range(call, "draft_horizon", p.draft_horizon, 0, KDT_MAX_DRAFT_HORIZON);
}

void check_tree_accept(const kdt_tree_accept_params& p) {
    check_tree_accept_sizes(p);
    if (p.batch == 0) return;
    const char* const call = "tree_accept";
    check_pointer(call, "token_ids", p.token_ids, 4, "int32 [batch, max_nodes]");
    check_pointer(call, "parents", p.parents, 4, "int32 [batch, max_nodes]");
    check_pointer(call, "num_nodes", p.num_nodes, 4, "int32 [batch]");
    check_pointer(call, "target_tokens", p.target_tokens, 4, "int32 [batch, max_nodes]");
    check_pointer(call, "accepted_path", p.accepted_path, 4, "int32 [batch, draft_horizon + 1]");
    check_pointer(call, "acceptance_length", p.acceptance_length, 4, "int32 [batch]");
    check_pointer(call, "bonus_token", p.bonus_token, 4, "int32 [batch]");
    check_pointer(call, "status", p.status, 4, "int32 [batch]");
    if (p.source_slots != nullptr) check_pointer(call, "seq_lens", p.seq_lens, 4, "int32 [batch] beside source_slots");
    check_optional(call, "seq_lens", p.seq_lens, 4);
    check_optional(call, "source_slots", p.source_slots, 4);
}

// ---- verify_attn

void check_verify_attn_sizes(const kdt_verify_attn_params& p) {
    const char* const call = "verify_attn";
    check_at_least(call, "batch", p.batch, 0);
    check_range(call, "max_nodes", p.max_nodes, 1, KDT_MAX_TREE_BUDGET + 1);
    check_range(call, "num_qo_heads", p.num_qo_heads, 1, 128);
    if (p.kv_lora_rank != KDT_KV_LORA_RANK)
        fail_argument("%s: kv_lora_rank is %d, wanted %d", call, p.kv_lora_rank, KDT_KV_LORA_RANK);
    if (p.qk_rope_head_dim != KDT_QK_ROPE_HEAD_DIM)
        fail_argument("%s: qk_rope_head_dim is %d, wanted %d", call, p.qk_rope_head_dim, KDT_QK_ROPE_HEAD_DIM);
    check_at_least(call, "num_pages", p.num_pages, 1);
    check_at_least(call, "page_size", p.page_size, 1);
    check_at_least(call, "max_pages_per_seq", p.max_pages_per_seq, 1);
    if (!std::isfinite(p.softmax_scale) || !(p.softmax_scale > 0.0f))
        fail_argument("%s: softmax_scale is %g, wanted a finite number above zero", call,
                      static_cast<double>(p.softmax_scale));
    check_range(call, "tail_only", p.tail_only, 0, 1);
    check_range(call, "path", p.path, KDT_ATTN_BEST, KDT_ATTN_HOPPER);
    const int64_t token_values = KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM;
    checked_bytes(call, "kv_cache", {p.num_pages, p.page_size, token_values}, 2);
    checked_bytes(call, "block_table", {p.batch, p.max_pages_per_seq}, sizeof(int32_t));
    checked_bytes(call, "q_nope", {p.batch, p.max_nodes, p.num_qo_heads, KDT_KV_LORA_RANK}, 2);
}

void check_verify_attn(const kdt_verify_attn_params& p) {
    check_verify_attn_sizes(p);
    if (p.batch == 0) return;
    const char* const call = "verify_attn";
    check_pointer(call, "q_nope", p.q_nope, 2, "bfloat16 [batch, max_nodes, num_qo_heads, 512]");
    check_pointer(call, "q_pe", p.q_pe, 2, "bfloat16 [batch, max_nodes, num_qo_heads, 64]");
    check_pointer(call, "kv_cache", p.kv_cache, 2, "bfloat16 [num_pages, page_size, 576]");
    check_pointer(call, "block_table", p.block_table, 4, "int32 [batch, max_pages_per_seq]");
    check_pointer(call, "seq_lens", p.seq_lens, 4, "int32 [batch]");
    check_pointer(call, "tree_mask", p.tree_mask, 8, "uint64 [batch, max_nodes, words of max_nodes bits]");
    check_optional(call, "num_nodes", p.num_nodes, 4);
    check_pointer(call, "out", p.out, 2, "bfloat16 [batch, max_nodes, num_qo_heads, 512]");
    check_pointer(call, "lse", p.lse, 4, "float32 [batch, max_nodes, num_qo_heads]");
    check_optional(call, "status", p.status, 4);
}

// ---- merge_attn_states

void check_merge_attn_states_sizes(const kdt_merge_attn_states_params& p) {
    const char* const call = "merge_attn_states";
    check_at_least(call, "rows", p.rows, 0);
    check_range(call, "head_dim", p.head_dim, 8, KDT_KV_LORA_RANK);
    if (p.head_dim % 8 != 0) fail_argument("%s: head_dim is %d, wanted a multiple of 8", call, p.head_dim);
}

void check_merge_attn_states(const kdt_merge_attn_states_params& p) {
    check_merge_attn_states_sizes(p);
    if (p.rows == 0) return;
    const char* const call = "merge_attn_states";
    const char* const per_value = "bfloat16 [rows, head_dim]";
    const char* const per_row = "float32 [rows]";
    check_pointer(call, "out_a", p.out_a, 2, per_value);
    check_pointer(call, "lse_a", p.lse_a, 4, per_row);
    check_pointer(call, "out_b", p.out_b, 2, per_value);
    check_pointer(call, "lse_b", p.lse_b, 4, per_row);
    check_pointer(call, "out", p.out, 2, per_value);
    check_pointer(call, "lse", p.lse, 4, per_row);
    const size_t rows = static_cast<size_t>(p.rows);
    const size_t bytes = rows * static_cast<size_t>(p.head_dim) * 2;
    check_same_or_apart(call, "out", p.out, "out_a", p.out_a, bytes);
    check_same_or_apart(call, "out", p.out, "out_b", p.out_b, bytes);
    check_same_or_apart(call, "lse", p.lse, "lse_a", p.lse_a, rows * sizeof(float));
    check_same_or_apart(call, "lse", p.lse, "lse_b", p.lse_b, rows * sizeof(float));
}

// ---- kv_compact

void check_kv_compact_sizes(const kdt_kv_compact_params& p) {
    const char* const call = "kv_compact";
    check_at_least(call, "batch", p.batch, 0);
    check_range(call, "draft_horizon", p.draft_horizon, 0, KDT_MAX_DRAFT_HORIZON);
    check_at_least(call, "num_layers", p.num_layers, 0);
    check_at_least(call, "num_pages", p.num_pages, 1);
    check_at_least(call, "page_size", p.page_size, 1);
    check_at_least(call, "max_pages_per_seq", p.max_pages_per_seq, 1);
    if (p.row_bytes < 16 || p.row_bytes % 16 != 0)
        fail_argument("%s: row_bytes is %d, wanted a multiple of 16 above zero", call, p.row_bytes);
    checked_bytes(call, "kv_cache", {p.num_layers, p.num_pages, p.page_size}, p.row_bytes);
    checked_bytes(call, "block_table", {p.batch, p.max_pages_per_seq}, sizeof(int32_t));
}

void check_kv_compact(const kdt_kv_compact_params& p) {
    check_kv_compact_sizes(p);
    if (p.batch == 0) return;
    const char* const call = "kv_compact";
    if (p.num_layers > 0)
        check_pointer(call, "kv_cache", p.kv_cache, 16, "[num_layers, num_pages, page_size] rows of row_bytes");
    check_pointer(call, "block_table", p.block_table, 4, "int32 [batch, max_pages_per_seq]");
    check_pointer(call, "seq_lens", p.seq_lens, 4, "int32 [batch]");
    check_pointer(call, "accepted_path", p.accepted_path, 4, "int32 [batch, draft_horizon + 1]");
    check_optional(call, "status", p.status, 4);
}

// ---- verify_mla

void check_verify_mla_sizes(const kdt_verify_mla_params& p) {
    const char* const call = "verify_mla";
    const auto check_only = [call](const char* name, int32_t value, int32_t only) {
        if (value != only) fail_argument("%s: %s is %d, wanted %d", call, name, value, only);
    };
    check_at_least(call, "batch", p.batch, 0);
    check_range(call, "max_nodes", p.max_nodes, 1, KDT_MAX_TREE_BUDGET + 1);
    check_range(call, "num_qo_heads", p.num_qo_heads, 1, 128);
    check_only("qk_nope_head_dim", p.qk_nope_head_dim, KDT_QK_NOPE_HEAD_DIM);
    check_only("qk_rope_head_dim", p.qk_rope_head_dim, KDT_QK_ROPE_HEAD_DIM);
    check_only("kv_lora_rank", p.kv_lora_rank, KDT_KV_LORA_RANK);
    check_only("v_head_dim", p.v_head_dim, KDT_V_HEAD_DIM);
    check_at_least(call, "num_pages", p.num_pages, 1);
    check_at_least(call, "page_size", p.page_size, 1);
    check_at_least(call, "max_pages_per_seq", p.max_pages_per_seq, 1);
    if (p.mode != KDT_MLA_AUTO && p.mode != KDT_MLA_ABSORB && p.mode != KDT_MLA_MHA)
        fail_argument("%s: mode is %d, wanted KDT_MLA_AUTO (%d), KDT_MLA_ABSORB (%d) or KDT_MLA_MHA (%d)", call, p.mode,
                      KDT_MLA_AUTO, KDT_MLA_ABSORB, KDT_MLA_MHA);
    if (!std::isfinite(p.softmax_scale) || !(p.softmax_scale > 0.0f))
        fail_argument("%s: softmax_scale is %g, wanted a finite number above zero", call,
                      static_cast<double>(p.softmax_scale));
    const int64_t token_values = KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM;
    checked_bytes(call, "kv_cache", {p.num_pages, p.page_size, token_values}, 2);
    checked_bytes(call, "block_table", {p.batch, p.max_pages_per_seq}, sizeof(int32_t));
    checked_bytes(call, "q_nope", {p.batch, p.max_nodes, p.num_qo_heads, KDT_KV_LORA_RANK}, 2);
}

void check_verify_mla(const kdt_verify_mla_params& p) {
    check_verify_mla_sizes(p);
    if (p.batch == 0) return;
    const char* const call = "verify_mla";
    check_pointer(call, "q_nope", p.q_nope, 2, "bfloat16 [batch, max_nodes, num_qo_heads, 128]");
    check_pointer(call, "q_pe", p.q_pe, 2, "bfloat16 [batch, max_nodes, num_qo_heads, 64]");
    check_pointer(call, "w_uk", p.w_uk, 2, "bfloat16 [num_qo_heads, 128, 512]");
    check_pointer(call, "w_uv", p.w_uv, 2, "bfloat16 [num_qo_heads, 512, 128]");
    check_pointer(call, "kv_cache", p.kv_cache, 2, "bfloat16 [num_pages, page_size, 576]");
    check_pointer(call, "block_table", p.block_table, 4, "int32 [batch, max_pages_per_seq]");
    check_pointer(call, "seq_lens", p.seq_lens, 4, "int32 [batch]");
    check_pointer(call, "tree_mask", p.tree_mask, 8, "uint64 [batch, max_nodes, words of max_nodes bits]");
    check_optional(call, "num_nodes", p.num_nodes, 4);
    check_pointer(call, "out", p.out, 2, "bfloat16 [batch, max_nodes, num_qo_heads, 128]");
    check_pointer(call, "lse", p.lse, 4, "float32 [batch, max_nodes, num_qo_heads]");
    check_optional(call, "status", p.status, 4);
}

}  // namespace kdt
