// SPDX-License-Identifier: Apache-2.0
//
// Named tensors for a ModelParams, of random values: what a checkpoint would hold.
#ifndef KDTREE_TESTS_ENGINE_TENSOR_LIST_H
#define KDTREE_TESTS_ENGINE_TENSOR_LIST_H

#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "engine/arrays.h"
#include "engine/model.h"

class TensorList {
  public:
    explicit TensorList(const ModelParams& params) {
        const kdt_target_config& t = params.target;
        const int64_t hidden = t.hidden_size, queries = t.num_heads * 192;
        add("model.embed_tokens.weight", t.vocab_size, hidden, 1.0f);
        add("model.norm.weight", hidden);
        if (t.tie_word_embeddings == 0) add("lm_head.weight", t.vocab_size, hidden);
        for (int i = 0; i < t.num_layers; ++i) {
            const std::string layer = "model.layers." + std::to_string(i) + ".", attention = layer + "self_attn.";
            add(layer + "input_layernorm.weight", hidden);
            add(layer + "post_attention_layernorm.weight", hidden);
            if (t.q_lora_rank > 0) {
                add(attention + "q_a_proj.weight", t.q_lora_rank, hidden);
                add(attention + "q_a_layernorm.weight", t.q_lora_rank);
                add(attention + "q_b_proj.weight", queries, t.q_lora_rank);
            } else {
                add(attention + "q_proj.weight", queries, hidden);
            }
            add(attention + "kv_a_proj_with_mqa.weight", 576, hidden);
            add(attention + "kv_a_layernorm.weight", 512);
            add(attention + "kv_b_proj.weight", t.num_heads * 256, 512);
            add(attention + "o_proj.weight", hidden, t.num_heads * 128);
            if (i < t.first_dense_layers)
                add_mlp(layer + "mlp.", t.intermediate_size, hidden);
            else
                add_mixture(layer + "mlp.", t);
        }
        if (params.engine.drafter != nullptr) add_drafter(params.drafter, hidden);
    }

    std::vector<kdt_tensor> tensors() const {
        std::vector<kdt_tensor> list;
        for (const Entry& entry : entries_) {
            kdt_tensor tensor = entry.tensor;
            tensor.name = entry.name.c_str();
            tensor.data = entry.values.data();
            list.push_back(tensor);
        }
        return list;
    }

  private:
    struct Entry {
        std::string name;
        std::vector<float> values;
        kdt_tensor tensor;
    };

    void add(const std::string& name, int64_t rows, int64_t columns, float deviation = 0.0f) {
        const float scale = deviation > 0.0f ? deviation : 1.0f / std::sqrt(static_cast<float>(columns));
        entries_.push_back(
            {name, arrays::random_values(entries_.size(), static_cast<size_t>(rows * columns), scale), {}});
        entries_.back().tensor.dtype = KDT_F32;
        entries_.back().tensor.rank = 2;
        entries_.back().tensor.shape[0] = rows;
        entries_.back().tensor.shape[1] = columns;
    }

    void add(const std::string& name, int64_t count) {
        add(name, count, 1, 0.1f);
        entries_.back().tensor.rank = 1;
        for (float& value : entries_.back().values) value = arrays::from_bf16(arrays::to_bf16(value + 1.0f));
    }

    void add_mlp(const std::string& prefix, int64_t width, int64_t hidden) {
        add(prefix + "gate_proj.weight", width, hidden);
        add(prefix + "up_proj.weight", width, hidden);
        add(prefix + "down_proj.weight", hidden, width);
    }

    void add_mixture(const std::string& prefix, const kdt_target_config& t) {
        add(prefix + "gate.weight", t.n_routed_experts, t.hidden_size);
        add(prefix + "gate.e_score_correction_bias", t.n_routed_experts);
        for (int e = 0; e < t.n_routed_experts; ++e)
            add_mlp(prefix + "experts." + std::to_string(e) + ".", t.moe_intermediate_size, t.hidden_size);
        if (t.n_shared_experts > 0)
            add_mlp(prefix + "shared_experts.", t.n_shared_experts * t.moe_intermediate_size, t.hidden_size);
    }

    void add_drafter(const kdt_drafter_config& d, int64_t hidden) {
        add("drafter.fc.weight", hidden, d.num_features * hidden);
        add("drafter.hidden_norm.weight", hidden);
        add("drafter.norm.weight", hidden);
        for (int i = 0; i < d.num_layers; ++i) {
            const std::string layer = "drafter.layers." + std::to_string(i) + ".", attention = layer + "self_attn.";
            add(layer + "input_layernorm.weight", hidden);
            add(layer + "post_attention_layernorm.weight", hidden);
            add(attention + "q_proj.weight", d.num_heads * d.head_dim, hidden);
            add(attention + "k_proj.weight", d.num_kv_heads * d.head_dim, hidden);
            add(attention + "v_proj.weight", d.num_kv_heads * d.head_dim, hidden);
            add(attention + "o_proj.weight", hidden, d.num_heads * d.head_dim);
            add(attention + "q_norm.weight", d.head_dim);
            add(attention + "k_norm.weight", d.head_dim);
            add_mlp(layer + "mlp.", d.intermediate_size, hidden);
        }
    }

    std::deque<Entry> entries_;
};

#endif  // KDTREE_TESTS_ENGINE_TENSOR_LIST_H
