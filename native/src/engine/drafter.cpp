// SPDX-License-Identifier: Apache-2.0
#include "engine/drafter.h"

#include <utility>

#include "engine/mlp.h"

namespace kdt::engine {

Drafter::Drafter(Queue& queue, const Config& config, DrafterWeights weights, Workspaces& workspaces,
                 int32_t max_context_rows)
    : queue_(queue),
      config_(config),
      weights_(std::move(weights)),
      workspaces_(workspaces),
      rope_(queue, config.drafter_frequencies, config.context_capacity() + KDT_MAX_DRAFT_HORIZON,
            config.drafter.rope_scale),
      dtype_(config.dtype),
      hidden_size_(config.target.hidden_size),
      heads_(config.draft_heads()) {
    const kdt_drafter_config& d = config.drafter;
    const int64_t block_rows = int64_t{config.max_batch} * d.block_size;
    const auto act = [&](int64_t rows, int64_t width) {
        return Memory(static_cast<size_t>(rows * width) * size_of(dtype_));
    };
    cache_ = act(d.num_layers, config.max_batch * cache_slot_values());
    projected_ = act(max_context_rows, hidden_size_);
    context_ = act(max_context_rows, hidden_size_);
    context_kv_ = act(max_context_rows, config.draft_kv_width());
    residual_ = act(block_rows, hidden_size_);
    next_residual_ = act(block_rows, hidden_size_);
    hidden_ = act(block_rows, hidden_size_);
    delta_ = act(block_rows, hidden_size_);
    qkv_ = act(block_rows, int64_t{d.num_heads + 2 * d.num_kv_heads} * d.head_dim);
    attended_ = act(block_rows, int64_t{d.num_heads} * d.head_dim);
    gate_up_ = act(block_rows, 2 * int64_t{d.intermediate_size});
    product_ = act(block_rows, d.intermediate_size);
}

size_t Drafter::scratch_bytes() const {
    size_t sum = rope_.bytes();
    for (const Memory* memory : {&projected_, &context_, &context_kv_, &residual_, &next_residual_, &hidden_, &delta_,
                                 &qkv_, &attended_, &gate_up_, &product_})
        sum += memory->bytes();
    return sum;
}

int64_t Drafter::cache_slot_values() const {
    return int64_t{config_.context_capacity()} * 2 * config_.drafter.num_kv_heads * config_.drafter.head_dim;
}

void Drafter::reserve(int32_t batch, int32_t block) {
    workspaces_.reserve(Scratch::draft_attention,
                        draft_attention_workspace(dtype_, heads_, batch, block, config_.context_capacity()));
}

void Drafter::context(const void* features, const int32_t* starts, const int32_t* counts, int32_t first_slot,
                      int32_t batch, int32_t max_rows) {
    const kdt_drafter_config& d = config_.drafter;
    const int32_t rows = batch * max_rows;
    const auto width = static_cast<int32_t>(config_.feature_width());
    gemm(queue_, dtype_, features, width, weights_.fc.data(), projected_.data(), dtype_, rows, width, hidden_size_);
    const NormInput input = {projected_.data(),           nullptr,        nullptr,        nullptr, 0,
                             weights_.hidden_norm.data(), d.rms_norm_eps, context_.data()};
    norm_gemm(queue_, dtype_, input, weights_.context_kv.data(), context_kv_.data(), rows, hidden_size_,
              static_cast<int32_t>(config_.draft_kv_width()));
    char* const cache = cache_.as<char>() + first_slot * cache_slot_values() * static_cast<int64_t>(size_of(dtype_));
    draft_store(queue_, dtype_, heads_, context_kv_.data(), d.num_layers, weights_.k_norms.data(), d.rms_norm_eps,
                rope_.rope(), starts, counts, cache, config_.max_batch * cache_slot_values(),
                config_.context_capacity(), batch, max_rows);
}

const void* Drafter::block(const int32_t* roots, const int32_t* seq_lens, const void* embedding, int32_t batch,
                           int32_t block) {
    const kdt_drafter_config& d = config_.drafter;
    const int32_t rows = batch * block;
    const int32_t query_values = d.num_heads * d.head_dim;
    const int32_t qkv_values = query_values + 2 * d.num_kv_heads * d.head_dim;
    embed_block(queue_, dtype_, roots, d.mask_token_id, embedding, config_.target.vocab_size, hidden_size_,
                residual_.data(), batch, block);
    void* residual = residual_.data();
    void* next = next_residual_.data();
    const auto norm_input = [&](const Memory& norm, const void* delta) {
        return NormInput{residual, delta, next, nullptr, 0, norm.data(), d.rms_norm_eps, hidden_.data()};
    };
    for (int32_t i = 0; i < d.num_layers; ++i) {
        const DrafterLayer& layer = weights_.layers[static_cast<size_t>(i)];
        norm_gemm(queue_, dtype_, norm_input(layer.input_norm, i == 0 ? nullptr : delta_.data()), layer.qkv.data(),
                  qkv_.data(), rows, hidden_size_, qkv_values);
        if (i > 0) std::swap(residual, next);
        const char* const k_norm =
            weights_.k_norms.as<char>() + int64_t{i} * d.head_dim * static_cast<int64_t>(size_of(dtype_));
        const char* const cache = cache_.as<char>() + int64_t{i} * config_.max_batch * cache_slot_values() *
                                                          static_cast<int64_t>(size_of(dtype_));
        draft_attention(queue_, dtype_, heads_, qkv_.data(), layer.q_norm.data(), k_norm, d.rms_norm_eps, rope_.rope(),
                        seq_lens, cache, config_.context_capacity(), attended_.data(), batch, block,
                        workspaces_.at(Scratch::draft_attention));
        gemm(queue_, dtype_, attended_.data(), query_values, layer.o.data(), delta_.data(), dtype_, rows, query_values,
             hidden_size_);
        run_normed_mlp(queue_, dtype_, layer.mlp, norm_input(layer.post_norm, delta_.data()), rows, hidden_size_,
                       gate_up_.data(), product_.data(), delta_.data());
        std::swap(residual, next);
    }
    block_norm(queue_, dtype_, residual, delta_.data(), weights_.norm.data(), d.rms_norm_eps, hidden_.data(), batch,
               block, hidden_size_);
    return hidden_.data();
}

}  // namespace kdt::engine
