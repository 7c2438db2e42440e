// SPDX-License-Identifier: Apache-2.0
//
// Every check that the host makes: one wrong argument at a time, the status, and the sentence that names it. The calls
// return before they touch memory, so plain host addresses serve for both backends.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "check.h"
#include "kdtree/kdtree.h"

namespace {

alignas(256) char g_memory[256];

template <class T>
T* somewhere() {
    return reinterpret_cast<T*>(g_memory);
}

template <class T>
T* odd() {
    return reinterpret_cast<T*>(g_memory + 1);
}

kdt_draft_topk_params draft_topk() {
    kdt_draft_topk_params p = {};
    p.struct_size = sizeof(p);
    p.logits = somewhere<void>();
    p.topk_log_probs = somewhere<float>();
    p.topk_token_ids = p.status = somewhere<int32_t>();
    p.rows = 2;
    p.vocab_size = 100;
    p.topk = 8;
    p.logits_dtype = KDT_F32;
    return p;
}

kdt_tree_build_params tree_build() {
    kdt_tree_build_params p = {};
    p.struct_size = sizeof(p);
    p.topk_log_probs = p.scores = somewhere<float>();
    p.topk_token_ids = p.root_token_ids = p.seq_lens = somewhere<int32_t>();
    p.token_ids = p.parents = p.depths = p.positions = p.first_child = p.next_sibling = somewhere<int32_t>();
    p.num_nodes = p.status = p.dfs_order = somewhere<int32_t>();
    p.tree_mask = somewhere<uint64_t>();
    p.batch = 2;
    p.draft_horizon = 3;
    p.topk = 4;
    p.tree_budget = 7;
    return p;
}

kdt_tree_accept_params tree_accept() {
    kdt_tree_accept_params p = {};
    p.struct_size = sizeof(p);
    p.token_ids = p.parents = p.num_nodes = p.target_tokens = somewhere<int32_t>();
    p.accepted_path = p.acceptance_length = p.bonus_token = p.status = somewhere<int32_t>();
    p.batch = 2;
    p.max_nodes = 8;
    p.draft_horizon = 3;
    return p;
}

kdt_verify_attn_params verify_attn() {
    kdt_verify_attn_params p = {};
    p.struct_size = sizeof(p);
    p.q_nope = p.q_pe = p.kv_cache = p.out = somewhere<void>();
    p.block_table = p.seq_lens = p.num_nodes = p.status = somewhere<int32_t>();
    p.tree_mask = somewhere<uint64_t>();
    p.lse = somewhere<float>();
    p.batch = 2;
    p.max_nodes = 8;
    p.num_qo_heads = 16;
    p.kv_lora_rank = KDT_KV_LORA_RANK;
    p.qk_rope_head_dim = KDT_QK_ROPE_HEAD_DIM;
    p.num_pages = p.page_size = p.max_pages_per_seq = 4;
    p.softmax_scale = 0.1f;
    return p;
}

kdt_kv_compact_params kv_compact() {
    kdt_kv_compact_params p = {};
    p.struct_size = sizeof(p);
    p.kv_cache = somewhere<void>();
    p.block_table = p.seq_lens = p.accepted_path = p.status = somewhere<int32_t>();
    p.batch = p.num_layers = 2;
    p.draft_horizon = 3;
    p.num_pages = p.page_size = p.max_pages_per_seq = 4;
    p.row_bytes = 1152;
    return p;
}

kdt_merge_attn_states_params merge_attn_states() {
    kdt_merge_attn_states_params p = {};
    p.struct_size = sizeof(p);
    p.out_a = p.out_b = p.out = somewhere<void>();
    p.lse_a = p.lse_b = p.lse = somewhere<float>();
    p.rows = 2;
    p.head_dim = 16;
    return p;
}

kdt_verify_mla_params verify_mla() {
    kdt_verify_mla_params p = {};
    p.struct_size = sizeof(p);
    p.q_nope = p.q_pe = p.w_uk = p.w_uv = p.kv_cache = p.out = somewhere<void>();
    p.block_table = p.seq_lens = p.num_nodes = p.status = somewhere<int32_t>();
    p.tree_mask = somewhere<uint64_t>();
    p.lse = somewhere<float>();
    p.batch = 2;
    p.max_nodes = 8;
    p.num_qo_heads = 16;
    p.qk_nope_head_dim = KDT_QK_NOPE_HEAD_DIM;
    p.qk_rope_head_dim = KDT_QK_ROPE_HEAD_DIM;
    p.kv_lora_rank = KDT_KV_LORA_RANK;
    p.v_head_dim = KDT_V_HEAD_DIM;
    p.num_pages = p.page_size = p.max_pages_per_seq = 4;
    p.softmax_scale = 0.1f;
    return p;
}

template <class Params>
void refused(kdt_status (*call)(const Params*), const Params& params, const std::string& sentence) {
    CHECK_EQ(call(&params), KDT_INVALID_ARGUMENT);
    CHECK_CONTAINS(kdt_last_error(), sentence);
}

constexpr int32_t kHuge = std::numeric_limits<int32_t>::max();

// One wrong field: both the call and the query refuse a size, only the call a pointer.
#define REFUSED(op, field, value, sentence)                         \
    do {                                                            \
        auto p = op();                                              \
        p.field = value;                                            \
        refused(kdt_##op, p, std::string(#op) + ": " + (sentence)); \
    } while (false)
#define SIZE_REFUSED(op, field, value, sentence)                               \
    do {                                                                       \
        REFUSED(op, field, value, sentence);                                   \
        auto p = op();                                                         \
        p.field = value;                                                       \
        size_t bytes = 0;                                                      \
        CHECK_EQ(kdt_##op##_workspace_size(&p, &bytes), KDT_INVALID_ARGUMENT); \
        CHECK_CONTAINS(kdt_last_error(), sentence);                            \
    } while (false)
#define POINTER_REFUSED(op, field, type)                                          \
    do {                                                                          \
        REFUSED(op, field, nullptr, std::string(#field) + " is NULL, wanted ");   \
        REFUSED(op, field, odd<type>(), std::string(#field) + " is at address "); \
    } while (false)
#define OPTIONAL_REFUSED(op, field, type) REFUSED(op, field, odd<type>(), std::string(#field) + " is at address ")

}  // namespace

HOST_TEST(host_checks_draft_topk) {
    SIZE_REFUSED(draft_topk, rows, -1, "rows is -1, wanted 0 or more");
    SIZE_REFUSED(draft_topk, vocab_size, 0, "vocab_size is 0, wanted 1 or more");
    SIZE_REFUSED(draft_topk, topk, 0, "topk is 0, wanted 1 .. 1024");
    SIZE_REFUSED(draft_topk, topk, 1025, "topk is 1025, wanted 1 .. 1024");
    SIZE_REFUSED(draft_topk, topk, 101, "topk is 101, wanted at most vocab_size, which is 100");
    SIZE_REFUSED(draft_topk, logits_dtype, 2, "logits_dtype is 2, wanted KDT_F32 (0) or KDT_BF16 (1)");
    kdt_draft_topk_params huge = draft_topk();
    huge.rows = huge.vocab_size = kHuge;
    refused(kdt_draft_topk, huge, "logits would hold more than");
    POINTER_REFUSED(draft_topk, logits, void);
    POINTER_REFUSED(draft_topk, topk_log_probs, float);
    POINTER_REFUSED(draft_topk, topk_token_ids, int32_t);
    POINTER_REFUSED(draft_topk, status, int32_t);
}

HOST_TEST(host_checks_tree_build) {
    SIZE_REFUSED(tree_build, batch, -1, "batch is -1, wanted 0 or more");
    SIZE_REFUSED(tree_build, draft_horizon, -1, "draft_horizon is -1, wanted 0 .. 31");
    SIZE_REFUSED(tree_build, draft_horizon, 32, "draft_horizon is 32, wanted 0 .. 31");
    SIZE_REFUSED(tree_build, topk, 0, "topk is 0, wanted 1 .. 1024");
    SIZE_REFUSED(tree_build, topk, 1025, "topk is 1025, wanted 1 .. 1024");
    SIZE_REFUSED(tree_build, tree_budget, -1, "tree_budget is -1, wanted 0 .. 1024");
    SIZE_REFUSED(tree_build, tree_budget, 1025, "tree_budget is 1025, wanted 0 .. 1024");
    POINTER_REFUSED(tree_build, topk_log_probs, float);
    POINTER_REFUSED(tree_build, topk_token_ids, int32_t);
    POINTER_REFUSED(tree_build, root_token_ids, int32_t);
    POINTER_REFUSED(tree_build, seq_lens, int32_t);
    POINTER_REFUSED(tree_build, token_ids, int32_t);
    POINTER_REFUSED(tree_build, parents, int32_t);
    POINTER_REFUSED(tree_build, depths, int32_t);
    POINTER_REFUSED(tree_build, positions, int32_t);
    POINTER_REFUSED(tree_build, first_child, int32_t);
    POINTER_REFUSED(tree_build, next_sibling, int32_t);
    POINTER_REFUSED(tree_build, tree_mask, uint64_t);
    POINTER_REFUSED(tree_build, scores, float);
    POINTER_REFUSED(tree_build, num_nodes, int32_t);
    POINTER_REFUSED(tree_build, status, int32_t);
    OPTIONAL_REFUSED(tree_build, dfs_order, int32_t);
    OPTIONAL_REFUSED(tree_build, expected_lengths, float);
}

HOST_TEST(host_checks_tree_accept) {
    SIZE_REFUSED(tree_accept, batch, -2, "batch is -2, wanted 0 or more");
    SIZE_REFUSED(tree_accept, max_nodes, 0, "max_nodes is 0, wanted 1 .. 1025");
    SIZE_REFUSED(tree_accept, max_nodes, 1026, "max_nodes is 1026, wanted 1 .. 1025");
    SIZE_REFUSED(tree_accept, draft_horizon, -1, "draft_horizon is -1, wanted 0 .. 31");
    SIZE_REFUSED(tree_accept, draft_horizon, 32, "draft_horizon is 32, wanted 0 .. 31");
    POINTER_REFUSED(tree_accept, token_ids, int32_t);
    POINTER_REFUSED(tree_accept, parents, int32_t);
    POINTER_REFUSED(tree_accept, num_nodes, int32_t);
    POINTER_REFUSED(tree_accept, target_tokens, int32_t);
    POINTER_REFUSED(tree_accept, accepted_path, int32_t);
    POINTER_REFUSED(tree_accept, acceptance_length, int32_t);
    POINTER_REFUSED(tree_accept, bonus_token, int32_t);
    POINTER_REFUSED(tree_accept, status, int32_t);
    OPTIONAL_REFUSED(tree_accept, seq_lens, int32_t);
    kdt_tree_accept_params slots = tree_accept();
    slots.source_slots = somewhere<int32_t>();
    refused(kdt_tree_accept, slots, "seq_lens is NULL, wanted int32 [batch] beside source_slots");
    slots.seq_lens = somewhere<int32_t>();
    slots.source_slots = odd<int32_t>();
    refused(kdt_tree_accept, slots, "source_slots is at address ");
}

HOST_TEST(host_checks_verify_attn) {
    SIZE_REFUSED(verify_attn, batch, -1, "batch is -1, wanted 0 or more");
    SIZE_REFUSED(verify_attn, max_nodes, 0, "max_nodes is 0, wanted 1 .. 1025");
    SIZE_REFUSED(verify_attn, max_nodes, 1026, "max_nodes is 1026, wanted 1 .. 1025");
    SIZE_REFUSED(verify_attn, num_qo_heads, 0, "num_qo_heads is 0, wanted 1 .. 128");
    SIZE_REFUSED(verify_attn, num_qo_heads, 129, "num_qo_heads is 129, wanted 1 .. 128");
    SIZE_REFUSED(verify_attn, kv_lora_rank, 256, "kv_lora_rank is 256, wanted 512");
    SIZE_REFUSED(verify_attn, qk_rope_head_dim, 0, "qk_rope_head_dim is 0, wanted 64");
    SIZE_REFUSED(verify_attn, num_pages, 0, "num_pages is 0, wanted 1 or more");
    SIZE_REFUSED(verify_attn, page_size, -3, "page_size is -3, wanted 1 or more");
    SIZE_REFUSED(verify_attn, max_pages_per_seq, 0, "max_pages_per_seq is 0, wanted 1 or more");
    for (const float scale : {0.0f, -1.0f, std::nanf(""), std::numeric_limits<float>::infinity()})
        SIZE_REFUSED(verify_attn, softmax_scale, scale, "softmax_scale is ");
    kdt_verify_attn_params huge = verify_attn();
    huge.num_pages = huge.page_size = kHuge;
    refused(kdt_verify_attn, huge, "kv_cache would hold more than");
    huge = verify_attn();
    huge.batch = huge.max_pages_per_seq = kHuge;
    refused(kdt_verify_attn, huge, "block_table would hold more than");
    POINTER_REFUSED(verify_attn, q_nope, void);
    POINTER_REFUSED(verify_attn, q_pe, void);
    POINTER_REFUSED(verify_attn, kv_cache, void);
    POINTER_REFUSED(verify_attn, block_table, int32_t);
    POINTER_REFUSED(verify_attn, seq_lens, int32_t);
    POINTER_REFUSED(verify_attn, tree_mask, uint64_t);
    POINTER_REFUSED(verify_attn, out, void);
    POINTER_REFUSED(verify_attn, lse, float);
    SIZE_REFUSED(verify_attn, tail_only, -1, "tail_only is -1, wanted 0 .. 1");
    SIZE_REFUSED(verify_attn, tail_only, 2, "tail_only is 2, wanted 0 .. 1");
    SIZE_REFUSED(verify_attn, path, -1, "path is -1, wanted 0 .. 2");
    SIZE_REFUSED(verify_attn, path, 3, "path is 3, wanted 0 .. 2");
    OPTIONAL_REFUSED(verify_attn, num_nodes, int32_t);
    OPTIONAL_REFUSED(verify_attn, status, int32_t);
}

HOST_TEST(host_checks_kv_compact) {
    SIZE_REFUSED(kv_compact, batch, -1, "batch is -1, wanted 0 or more");
    SIZE_REFUSED(kv_compact, draft_horizon, -1, "draft_horizon is -1, wanted 0 .. 31");
    SIZE_REFUSED(kv_compact, draft_horizon, 32, "draft_horizon is 32, wanted 0 .. 31");
    SIZE_REFUSED(kv_compact, num_layers, -1, "num_layers is -1, wanted 0 or more");
    SIZE_REFUSED(kv_compact, num_pages, 0, "num_pages is 0, wanted 1 or more");
    SIZE_REFUSED(kv_compact, page_size, 0, "page_size is 0, wanted 1 or more");
    SIZE_REFUSED(kv_compact, max_pages_per_seq, -2, "max_pages_per_seq is -2, wanted 1 or more");
    for (const int32_t bytes : {0, -16, 8, 1150}) SIZE_REFUSED(kv_compact, row_bytes, bytes, "row_bytes is ");
    kdt_kv_compact_params huge = kv_compact();
    huge.num_pages = huge.page_size = kHuge;
    refused(kdt_kv_compact, huge, "kv_cache would hold more than");
    huge = kv_compact();
    huge.batch = huge.max_pages_per_seq = kHuge;
    refused(kdt_kv_compact, huge, "block_table would hold more than");
    POINTER_REFUSED(kv_compact, kv_cache, void);
    POINTER_REFUSED(kv_compact, block_table, int32_t);
    POINTER_REFUSED(kv_compact, seq_lens, int32_t);
    POINTER_REFUSED(kv_compact, accepted_path, int32_t);
    OPTIONAL_REFUSED(kv_compact, status, int32_t);
    kdt_kv_compact_params half = kv_compact();
    half.kv_cache = g_memory + 8;
    refused(kdt_kv_compact, half, "wanted one that is a multiple of 16 bytes");
}

HOST_TEST(host_checks_merge_attn_states) {
    SIZE_REFUSED(merge_attn_states, rows, -1, "rows is -1, wanted 0 or more");
    SIZE_REFUSED(merge_attn_states, head_dim, 0, "head_dim is 0, wanted 8 .. 512");
    SIZE_REFUSED(merge_attn_states, head_dim, 520, "head_dim is 520, wanted 8 .. 512");
    SIZE_REFUSED(merge_attn_states, head_dim, 12, "head_dim is 12, wanted a multiple of 8");
    POINTER_REFUSED(merge_attn_states, out_a, void);
    POINTER_REFUSED(merge_attn_states, lse_a, float);
    POINTER_REFUSED(merge_attn_states, out_b, void);
    POINTER_REFUSED(merge_attn_states, lse_b, float);
    POINTER_REFUSED(merge_attn_states, out, void);
    POINTER_REFUSED(merge_attn_states, lse, float);
    // In place means the very same array: one that starts a row later is not.
    REFUSED(merge_attn_states, out_a, g_memory + 32, "out overlaps out_a in part, wanted the same array");
    REFUSED(merge_attn_states, out_b, g_memory + 32, "out overlaps out_b in part, wanted the same array");
    REFUSED(merge_attn_states, lse_a, somewhere<float>() + 1, "lse overlaps lse_a in part, wanted the same array");
    REFUSED(merge_attn_states, lse_b, somewhere<float>() + 1, "lse overlaps lse_b in part, wanted the same array");
}

HOST_TEST(host_checks_verify_mla) {
    SIZE_REFUSED(verify_mla, batch, -1, "batch is -1, wanted 0 or more");
    SIZE_REFUSED(verify_mla, max_nodes, 0, "max_nodes is 0, wanted 1 .. 1025");
    SIZE_REFUSED(verify_mla, max_nodes, 1026, "max_nodes is 1026, wanted 1 .. 1025");
    SIZE_REFUSED(verify_mla, num_qo_heads, 0, "num_qo_heads is 0, wanted 1 .. 128");
    SIZE_REFUSED(verify_mla, num_qo_heads, 129, "num_qo_heads is 129, wanted 1 .. 128");
    SIZE_REFUSED(verify_mla, qk_nope_head_dim, 512, "qk_nope_head_dim is 512, wanted 128");
    SIZE_REFUSED(verify_mla, qk_rope_head_dim, 0, "qk_rope_head_dim is 0, wanted 64");
    SIZE_REFUSED(verify_mla, kv_lora_rank, 256, "kv_lora_rank is 256, wanted 512");
    SIZE_REFUSED(verify_mla, v_head_dim, 512, "v_head_dim is 512, wanted 128");
    SIZE_REFUSED(verify_mla, num_pages, 0, "num_pages is 0, wanted 1 or more");
    SIZE_REFUSED(verify_mla, page_size, -3, "page_size is -3, wanted 1 or more");
    SIZE_REFUSED(verify_mla, max_pages_per_seq, 0, "max_pages_per_seq is 0, wanted 1 or more");
    for (const int32_t mode : {-1, 3})
        SIZE_REFUSED(
            verify_mla, mode, mode,
            "mode is " + std::to_string(mode) + ", wanted KDT_MLA_AUTO (0), KDT_MLA_ABSORB (1) or KDT_MLA_MHA (2)");
    for (const float scale : {0.0f, -1.0f, std::nanf(""), std::numeric_limits<float>::infinity()})
        SIZE_REFUSED(verify_mla, softmax_scale, scale, "softmax_scale is ");
    kdt_verify_mla_params huge = verify_mla();
    huge.num_pages = huge.page_size = kHuge;
    refused(kdt_verify_mla, huge, "kv_cache would hold more than");
    huge = verify_mla();
    huge.batch = huge.max_pages_per_seq = kHuge;
    refused(kdt_verify_mla, huge, "block_table would hold more than");
    POINTER_REFUSED(verify_mla, q_nope, void);
    POINTER_REFUSED(verify_mla, q_pe, void);
    POINTER_REFUSED(verify_mla, w_uk, void);
    POINTER_REFUSED(verify_mla, w_uv, void);
    POINTER_REFUSED(verify_mla, kv_cache, void);
    POINTER_REFUSED(verify_mla, block_table, int32_t);
    POINTER_REFUSED(verify_mla, seq_lens, int32_t);
    POINTER_REFUSED(verify_mla, tree_mask, uint64_t);
    POINTER_REFUSED(verify_mla, out, void);
    POINTER_REFUSED(verify_mla, lse, float);
    OPTIONAL_REFUSED(verify_mla, num_nodes, int32_t);
    OPTIONAL_REFUSED(verify_mla, status, int32_t);

    kdt_verify_mla_params wrong = verify_mla();
    wrong.max_nodes = 0;
    kdt_verify_mla_costs costs = {};
    costs.struct_size = sizeof(costs);
    CHECK_EQ(kdt_verify_mla_cost(&wrong, &costs), KDT_INVALID_ARGUMENT);
    CHECK_CONTAINS(kdt_last_error(), "verify_mla: max_nodes is 0");
    const kdt_verify_mla_params right = verify_mla();
    CHECK_EQ(kdt_verify_mla_cost(&right, nullptr), KDT_INVALID_ARGUMENT);
    costs.struct_size = 8;
    CHECK_EQ(kdt_verify_mla_cost(&right, &costs), KDT_INVALID_ARGUMENT);
    CHECK_CONTAINS(kdt_last_error(), "verify_mla_cost: struct_size is 8");
}

// Queries look at no pointer, and a call refuses a workspace that is absent, short or misaligned.
template <class Params>
static void check_workspace(Params p, kdt_status (*query)(const Params*, size_t*), kdt_status (*call)(const Params*)) {
    size_t needed = 0;
    CHECK_EQ(query(&p, &needed), KDT_OK);
    if (needed == 0) return;
    p.workspace_size = needed;
    refused(call, p, "workspace is NULL, wanted " + std::to_string(needed) + " bytes");
    p.workspace = somewhere<void>();
    p.workspace_size = needed - 1;
    refused(call, p, "workspace_size is " + std::to_string(needed - 1) + ", wanted " + std::to_string(needed));
    p.workspace = odd<void>();
    p.workspace_size = needed;
    refused(call, p, "workspace is at address ");
}

TEST(host_checks_workspace) {
    kdt_draft_topk_params topk = draft_topk();
    check_workspace(topk, kdt_draft_topk_workspace_size, kdt_draft_topk);
    kdt_tree_build_params build = tree_build();
    check_workspace(build, kdt_tree_build_workspace_size, kdt_tree_build);
    kdt_tree_accept_params accept = tree_accept();
    check_workspace(accept, kdt_tree_accept_workspace_size, kdt_tree_accept);
    kdt_kv_compact_params compact = kv_compact();
    check_workspace(compact, kdt_kv_compact_workspace_size, kdt_kv_compact);
    kdt_verify_attn_params attn = verify_attn();
    check_workspace(attn, kdt_verify_attn_workspace_size, kdt_verify_attn);
    for (const int32_t mode : {KDT_MLA_ABSORB, KDT_MLA_MHA}) {
        kdt_verify_mla_params mla = verify_mla();
        mla.mode = mode;
        check_workspace(mla, kdt_verify_mla_workspace_size, kdt_verify_mla);
    }
    attn.q_nope = nullptr;
    size_t with = 0, without = 0;
    CHECK_EQ(kdt_verify_attn_workspace_size(&attn, &without), KDT_OK);
    attn = verify_attn();
    CHECK_EQ(kdt_verify_attn_workspace_size(&attn, &with), KDT_OK);
    CHECK_EQ(with, without);
}
