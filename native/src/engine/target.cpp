// SPDX-License-Identifier: Apache-2.0
#include "engine/target.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "engine/mlp.h"

namespace kdt::engine {
namespace {

// Bytes of `rows` rows of `width` values.
size_t bytes_of(int64_t rows, int64_t width, size_t size) {
    return static_cast<size_t>(rows * width) * size;
}

int32_t widest_mlp(const Config& config) {
    const kdt_target_config& t = config.target;
    const int32_t dense = t.first_dense_layers > 0 ? t.intermediate_size : 0;
    return std::max(dense, t.first_dense_layers < t.num_layers ? t.n_shared_experts * t.moe_intermediate_size : 0);
}

}  // namespace

Target::Target(Queue& queue, const Config& config, TargetWeights weights, Workspaces& workspaces, int32_t max_rows)
    : queue_(queue),
      config_(config),
      weights_(std::move(weights)),
      workspaces_(workspaces),
      rope_(queue, config.target_frequencies, config.context_capacity() + KDT_MAX_DRAFT_HORIZON,
            config.target.rope_scale),
      dtype_(config.dtype),
      hidden_size_(config.target.hidden_size),
      query_width_(config.target.q_lora_rank > 0 ? config.target.q_lora_rank : config.target.num_heads * kQueryHead),
      cache_(bytes_of(int64_t{config.target.num_layers} * config.num_pages * config.page_size, kLatent, 2)) {
    const kdt_target_config& t = config.target;
    const size_t act = size_of(dtype_);
    const auto rows_of = [&](int64_t width, size_t size) { return Memory(bytes_of(max_rows, width, size)); };
    residual_ = rows_of(hidden_size_, act);
    next_residual_ = rows_of(hidden_size_, act);
    hidden_ = rows_of(hidden_size_, act);
    delta_ = rows_of(hidden_size_, act);
    first_ = rows_of(query_width_ + kLatent, act);
    if (t.q_lora_rank > 0) {
        q_normed_ = rows_of(t.q_lora_rank, act);
        q_ = rows_of(int64_t{t.num_heads} * kQueryHead, act);
    }
    q_nope_ = rows_of(int64_t{t.num_heads} * KDT_QK_NOPE_HEAD_DIM, 2);
    q_pe_ = rows_of(int64_t{t.num_heads} * KDT_QK_ROPE_HEAD_DIM, 2);
    attended_ = rows_of(int64_t{t.num_heads} * kValueHead, 2);
    if (dtype_ != KDT_BF16) attended_act_ = rows_of(int64_t{t.num_heads} * kValueHead, act);
    lse_ = rows_of(t.num_heads, sizeof(float));
    gate_up_ = rows_of(2 * int64_t{widest_mlp(config)}, act);
    product_ = rows_of(widest_mlp(config), act);
    if (t.first_dense_layers < t.num_layers) {
        router_logits_ = rows_of(t.n_routed_experts, sizeof(float));
        experts_ = rows_of(t.num_experts_per_tok, sizeof(int32_t));
        expert_weights_ = rows_of(t.num_experts_per_tok, sizeof(float));
    }
}

size_t Target::scratch_bytes() const {
    size_t sum = rope_.bytes();
    for (const Memory* memory :
         {&residual_, &next_residual_, &hidden_, &delta_, &first_, &q_normed_, &q_, &q_nope_, &q_pe_, &attended_,
          &attended_act_, &lse_, &gate_up_, &product_, &router_logits_, &experts_, &expert_weights_})
        sum += memory->bytes();
    return sum;
}

void Target::reserve(int32_t batch, int32_t max_nodes) {
    Trees sizes = {};
    sizes.batch = batch;
    sizes.max_nodes = max_nodes;
    workspaces_.reserve_for(Scratch::verify_mla, attention(sizes, weights_.layers.front(), 0),
                            kdt_verify_mla_workspace_size);
    if (config_.target.first_dense_layers < config_.target.num_layers)
        workspaces_.reserve(Scratch::experts,
                            experts_workspace(dtype_, config_.router(), hidden_size_,
                                              config_.target.moe_intermediate_size, batch * max_nodes));
}

kdt_verify_mla_params Target::attention(const Trees& trees, const TargetLayer& layer, int32_t index) const {
    kdt_verify_mla_params p = {};
    p.struct_size = sizeof(p);
    p.q_nope = q_nope_.data();
    p.q_pe = q_pe_.data();
    p.w_uk = layer.w_uk.data();
    p.w_uv = layer.w_uv.data();
    p.kv_cache = kv_cache() + bytes_of(int64_t{index} * config_.num_pages * config_.page_size, kLatent, 2);
    p.block_table = trees.block_table;
    p.seq_lens = trees.seq_lens;
    p.tree_mask = trees.tree_mask;
    p.num_nodes = trees.num_nodes;
    p.out = attended_.data();
    p.lse = lse_.as<float>();
    p.status = trees.status;
    p.batch = trees.batch;
    p.max_nodes = trees.max_nodes;
    p.num_qo_heads = config_.target.num_heads;
    p.qk_nope_head_dim = KDT_QK_NOPE_HEAD_DIM;
    p.qk_rope_head_dim = KDT_QK_ROPE_HEAD_DIM;
    p.kv_lora_rank = KDT_KV_LORA_RANK;
    p.v_head_dim = KDT_V_HEAD_DIM;
    p.num_pages = config_.num_pages;
    p.page_size = config_.page_size;
    p.max_pages_per_seq = config_.max_pages_per_seq();
    p.mode = mla_mode();
    p.softmax_scale = config_.target.softmax_scale;
    p.stream = queue_.stream();
    return p;
}

// delta = o_proj(attention(first)), and the rows' latents to the cache.
void Target::attend(const Trees& trees, const TargetLayer& layer, int32_t index) {
    const kdt_target_config& t = config_.target;
    const int32_t rows = trees.batch * trees.max_nodes;
    const kdt_verify_mla_params p = attention(trees, layer, index);
    MlaInputs inputs = {};
    inputs.first = first_.data();
    inputs.q_lora_rank = t.q_lora_rank;
    inputs.q_norm = layer.q_norm.data();
    inputs.q_b = layer.q_b.data();
    inputs.kv_norm = layer.kv_norm.data();
    inputs.eps = t.rms_norm_eps;
    inputs.positions = trees.positions;
    inputs.rope = rope_.rope();
    inputs.seq_lens = trees.seq_lens;
    inputs.num_nodes = trees.num_nodes;
    inputs.pages = {p.block_table, p.max_pages_per_seq, p.page_size, p.num_pages};
    inputs.layer_cache = const_cast<void*>(p.kv_cache);
    inputs.num_heads = t.num_heads;
    inputs.batch = trees.batch;
    inputs.max_nodes = trees.max_nodes;
    inputs.q_normed = q_normed_.data();
    inputs.q = q_.data();
    inputs.q_nope = q_nope_.data();
    inputs.q_pe = q_pe_.data();
    mla_inputs(queue_, dtype_, inputs);
    workspaces_.call(Scratch::verify_mla, p, kdt_verify_mla);
    const int32_t values = t.num_heads * kValueHead;
    const void* attended = attended_.data();
    if (dtype_ != KDT_BF16) {
        convert(queue_, attended, KDT_BF16, attended_act_.data(), dtype_, int64_t{rows} * values);
        attended = attended_act_.data();
    }
    gemm(queue_, dtype_, attended, values, layer.o.data(), delta_.data(), dtype_, rows, values, hidden_size_);
}

// delta = the experts' sum over hidden.
void Target::mixture(const MoeWeights& moe, int32_t rows) {
    const kdt_target_config& t = config_.target;
    gemm(queue_, dtype_, hidden_.data(), hidden_size_, moe.router.data(), router_logits_.data(), KDT_F32, rows,
         hidden_size_, t.n_routed_experts);
    route(queue_, config_.router(), router_logits_.as<float>(), moe.bias.as<float>(), experts_.as<int32_t>(),
          expert_weights_.as<float>(), rows);
    if (moe.shared.intermediate > 0)
        run_mlp(queue_, dtype_, moe.shared, hidden_.data(), rows, hidden_size_, gate_up_.data(), product_.data(),
                delta_.data());
    else
        queue_.zero(delta_.data(), bytes_of(rows, hidden_size_, size_of(dtype_)));
    experts_add(queue_, dtype_, config_.router(), hidden_.data(), experts_.as<int32_t>(), expert_weights_.as<float>(),
                moe.gate_up.data(), moe.down.data(), delta_.data(), rows, hidden_size_, t.moe_intermediate_size,
                workspaces_.at(Scratch::experts));
}

NormInput Target::norm_input(const Memory& norm, const void* delta) {
    return {residual_.data(), delta, next_residual_.data(), nullptr, 0, norm.data(), config_.target.rms_norm_eps,
            hidden_.data()};
}

// The sum of the last norm is the residual from here on.
void Target::turn_residual() {
    std::swap(residual_, next_residual_);
}

// delta = the layer's MLP over the residual and delta.
void Target::feed_forward(const TargetLayer& layer, int32_t rows) {
    if (layer.mlp.intermediate > 0) {
        run_normed_mlp(queue_, dtype_, layer.mlp, norm_input(layer.post_norm, delta_.data()), rows, hidden_size_,
                       gate_up_.data(), product_.data(), delta_.data());
        turn_residual();
        return;
    }
    add_rmsnorm(queue_, dtype_, residual_.data(), delta_.data(), nullptr, 0, layer.post_norm.data(),
                config_.target.rms_norm_eps, hidden_.data(), rows, hidden_size_);
    mixture(layer.moe, rows);
}

void Target::forward(const Trees& trees, void* features) {
    const kdt_target_config& t = config_.target;
    const int32_t rows = trees.batch * trees.max_nodes;
    const int64_t width = config_.feature_width();
    embed(queue_, dtype_, trees.token_ids, embedding(), t.vocab_size, hidden_size_, residual_.data(), rows);
    int32_t next_feature = 0;
    void* feature = nullptr;  // where the residual behind the last layer is wanted
    for (int32_t i = 0; i < t.num_layers; ++i) {
        const TargetLayer& layer = weights_.layers[static_cast<size_t>(i)];
        NormInput input = norm_input(layer.input_norm, i == 0 ? nullptr : delta_.data());
        input.feature = feature;
        input.feature_stride = width;
        norm_gemm(queue_, dtype_, input, layer.first.data(), first_.data(), rows, hidden_size_, query_width_ + kLatent);
        if (i > 0) turn_residual();
        attend(trees, layer, i);
        feed_forward(layer, rows);
        feature = nullptr;
        if (features != nullptr && next_feature < config_.drafter.num_features &&
            config_.drafter.target_layer_ids[next_feature] == i)
            feature = static_cast<char*>(features) + bytes_of(next_feature++, hidden_size_, size_of(dtype_));
    }
    add_rmsnorm(queue_, dtype_, residual_.data(), delta_.data(), feature, width, weights_.norm.data(), t.rms_norm_eps,
                hidden_.data(), rows, hidden_size_);
}

void Target::head(int32_t first_row, int32_t rows, float* logits) {
    head_of(hidden_.as<char>() + bytes_of(first_row, hidden_size_, size_of(dtype_)), rows, logits);
}

void Target::head_of(const void* hidden, int32_t rows, float* logits) {
    gemm(queue_, dtype_, hidden, hidden_size_, weights_.lm_head(), logits, KDT_F32, rows, hidden_size_,
         config_.target.vocab_size);
}

}  // namespace kdt::engine
