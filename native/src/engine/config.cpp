// SPDX-License-Identifier: Apache-2.0
#include "engine/config.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "engine/structs.h"

namespace kdt::engine {
namespace {

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
        fail_argument("engine_create: %s is %lld, wanted %lld .. %lld", name, static_cast<long long>(value),
                      static_cast<long long>(low), static_cast<long long>(high));
}

void check_positive(const char* name, float value) {
    if (!(value > 0.0f) || !std::isfinite(value))
        fail_argument("engine_create: %s is %g, wanted a finite number above 0", name, static_cast<double>(value));
}

constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxTokens = 1 << 24;

void check_experts(const kdt_target_config& t) {
    check_range("n_routed_experts", t.n_routed_experts, 1, 1024);
    check_range("num_experts_per_tok", t.num_experts_per_tok, 1, std::min(t.n_routed_experts, 64));
    check_range("n_shared_experts", t.n_shared_experts, 0, 64);
    check_range("moe_intermediate_size", t.moe_intermediate_size, 1, kMaxWidth);
    check_range("n_group", t.n_group, 1, std::min(t.n_routed_experts, 64));
    check_range("topk_group", t.topk_group, 1, t.n_group);
    check_range("norm_topk_prob", t.norm_topk_prob, 0, 1);
    check_range("expert_scores", t.expert_scores, 0, KDT_SCORES_SOFTMAX);
    check_positive("routed_scaling_factor", t.routed_scaling_factor);
    if (t.n_routed_experts % t.n_group != 0)
        fail_argument("engine_create: n_routed_experts is %d, wanted a multiple of n_group, which is %d",
                      t.n_routed_experts, t.n_group);
    const int64_t candidates = int64_t{t.topk_group} * (t.n_routed_experts / t.n_group);
    if (t.num_experts_per_tok > candidates)
        fail_argument("engine_create: num_experts_per_tok is %d, and topk_group groups have %lld experts",
                      t.num_experts_per_tok, static_cast<long long>(candidates));
}

void check_target(const kdt_target_config& t) {
    check_range("vocab_size", t.vocab_size, 1, 1 << 24);
    check_range("hidden_size", t.hidden_size, 1, kMaxWidth);
    check_range("num_layers", t.num_layers, 1, 1024);
    check_range("num_heads", t.num_heads, 1, 128);
    check_range("q_lora_rank", t.q_lora_rank, 0, kMaxWidth);
    check_range("first_dense_layers", t.first_dense_layers, 0, t.num_layers);
    if (t.first_dense_layers > 0) check_range("intermediate_size", t.intermediate_size, 1, kMaxWidth);
    check_range("tie_word_embeddings", t.tie_word_embeddings, 0, 1);
    check_positive("rms_norm_eps", t.rms_norm_eps);
    check_positive("softmax_scale", t.softmax_scale);
    check_positive("rope_scale", t.rope_scale);
    if (t.inv_freq == nullptr) fail_argument("engine_create: the target's inv_freq is NULL");
    if (t.first_dense_layers < t.num_layers) check_experts(t);
}

void check_drafter(const kdt_drafter_config& d, const kdt_target_config& t) {
    check_range("the drafter's num_layers", d.num_layers, 1, 128);
    check_range("the drafter's num_heads", d.num_heads, 1, 128);
    check_range("the drafter's num_kv_heads", d.num_kv_heads, 1, d.num_heads);
    check_range("the drafter's head_dim", d.head_dim, 32, 128);
    check_range("the drafter's intermediate_size", d.intermediate_size, 1, kMaxWidth);
    check_range("block_size", d.block_size, 2, KDT_MAX_DRAFT_HORIZON + 1);
    check_range("mask_token_id", d.mask_token_id, 0, t.vocab_size - 1);
    check_range("the drafter's num_features", d.num_features, 1, KDT_MAX_TARGET_FEATURES);
    check_positive("the drafter's rms_norm_eps", d.rms_norm_eps);
    check_positive("the drafter's rope_scale", d.rope_scale);
    if (d.inv_freq == nullptr) fail_argument("engine_create: the drafter's inv_freq is NULL");
    if (d.head_dim % 32 != 0) fail_argument("engine_create: head_dim is %d, wanted a multiple of 32", d.head_dim);
    if (d.num_heads % d.num_kv_heads != 0)
        fail_argument("engine_create: the drafter's num_heads is %d, wanted a multiple of num_kv_heads, which is %d",
                      d.num_heads, d.num_kv_heads);
    for (int32_t i = 0; i < d.num_features; ++i) {
        check_range("a target_layer_id", d.target_layer_ids[i], 0, t.num_layers - 1);
        if (i > 0 && d.target_layer_ids[i] <= d.target_layer_ids[i - 1])
            fail_argument("engine_create: target_layer_ids must rise, and %d stands behind %d", d.target_layer_ids[i],
                          d.target_layer_ids[i - 1]);
    }
}

}  // namespace

int32_t Config::max_nodes() const {
    return std::max(max_tree_budget + 1, has_drafter ? drafter.block_size : 1);
}

int32_t Config::max_pages_per_seq() const {
    return (max_seq_len + max_nodes() + page_size - 1) / page_size;
}

Router Config::router() const {
    return {target.n_routed_experts,     target.num_experts_per_tok, target.n_group,
            target.topk_group,           target.norm_topk_prob,      target.expert_scores,
            target.routed_scaling_factor};
}

Config read_config(const kdt_engine_params* params) {
    const kdt_engine_params p = read_struct(params);
    Config c = {};
    if (p.target == nullptr) fail_argument("engine_create: target is NULL");
    c.target = read_struct(p.target);
    check_target(c.target);
    c.target_frequencies.assign(c.target.inv_freq, c.target.inv_freq + KDT_QK_ROPE_HEAD_DIM / 2);
    c.has_drafter = p.drafter != nullptr;
    if (c.has_drafter) {
        c.drafter = read_struct(p.drafter);
        check_drafter(c.drafter, c.target);
        c.drafter_frequencies.assign(c.drafter.inv_freq, c.drafter.inv_freq + c.drafter.head_dim / 2);
    }
    c.target.inv_freq = nullptr;  // the caller's memory
    c.drafter.inv_freq = nullptr;

    check_range("dtype", p.dtype, KDT_F32, KDT_BF16);
    c.dtype = static_cast<Dtype>(p.dtype);
    check_range("max_batch", p.max_batch, 1, 4096);
    check_range("max_seq_len", p.max_seq_len, 2, kMaxTokens);
    check_range("max_tree_budget", p.max_tree_budget, 1, KDT_MAX_TREE_BUDGET);
    check_range("page_size", p.page_size, 1, kMaxTokens);
    check_range("num_pages", p.num_pages, 1, kMaxTokens);
    check_range("prefill_chunk", p.prefill_chunk, 1, KDT_MAX_TREE_BUDGET + 1);
    c.max_batch = p.max_batch;
    c.max_seq_len = p.max_seq_len;
    c.max_tree_budget = p.max_tree_budget;
    c.page_size = p.page_size;
    c.num_pages = p.num_pages;
    c.prefill_chunk = p.prefill_chunk;
    c.has_blas_library = p.blas_library != nullptr;
    if (c.has_blas_library) c.blas_library = p.blas_library;

    check_range("num_tensors", p.num_tensors, 0, 1 << 24);
    if (p.tensors == nullptr && p.num_tensors != 0)
        fail_argument("engine_create: tensors is NULL, and num_tensors is %d", p.num_tensors);
    c.tensors = p.tensors;
    c.num_tensors = p.num_tensors;
    c.random_seed = p.random_seed;
    return c;
}

}  // namespace kdt::engine
