// SPDX-License-Identifier: Apache-2.0
//
// Names and shapes are those of Hugging Face's DeepseekV3ForCausalLM and of SGLang's DFlash draft model.
#include "engine/weights.h"

#include <string>

namespace kdt::engine {
namespace {

class Loader {
  public:
    Loader(Queue& queue, const Config& config, TensorSource& source)
        : queue_(queue), config_(config), source_(source), dtype_(config.dtype), hidden_(config.target.hidden_size) {}

    TargetWeights target() {
        const int64_t vocab = config_.target.vocab_size;
        TargetWeights w;
        w.embedding = act(vocab * hidden_);
        source_.matrix("model.embed_tokens.weight", vocab, hidden_, w.embedding.data(), dtype_, 1.0f);
        for (int32_t i = 0; i < config_.target.num_layers; ++i) w.layers.push_back(target_layer(i));
        w.norm = norm("model.norm.weight", hidden_);
        if (config_.target.tie_word_embeddings == 0) w.head = matrix("lm_head.weight", vocab, hidden_);
        return w;
    }

    DrafterWeights drafter() {
        const kdt_drafter_config& d = config_.drafter;
        DrafterWeights w;
        w.fc = matrix("drafter.fc.weight", hidden_, config_.feature_width());
        w.hidden_norm = norm("drafter.hidden_norm.weight", hidden_);
        w.context_kv = act(config_.draft_kv_width() * hidden_);
        w.k_norms = act(int64_t{d.num_layers} * d.head_dim);
        for (int32_t i = 0; i < d.num_layers; ++i) w.layers.push_back(drafter_layer(i, w));
        w.norm = norm("drafter.norm.weight", hidden_);
        return w;
    }

  private:
    Memory act(int64_t values) const { return Memory(static_cast<size_t>(values) * size_of(dtype_)); }

    // The place of row `row` of an act matrix with `columns`.
    void* row_of(const Memory& memory, int64_t row, int64_t columns) const {
        return memory.as<char>() + row * columns * static_cast<int64_t>(size_of(dtype_));
    }

    Memory norm(const std::string& name, int64_t count) {
        Memory memory = act(count);
        source_.vector(name, count, memory.data(), dtype_);
        return memory;
    }

    Memory matrix(const std::string& name, int64_t rows, int64_t columns) {
        Memory memory = act(rows * columns);
        source_.matrix(name, rows, columns, memory.data(), dtype_);
        return memory;
    }

    MlpWeights mlp(const std::string& prefix, int32_t intermediate) {
        MlpWeights w;
        w.intermediate = intermediate;
        w.gate_up = act(2 * int64_t{intermediate} * hidden_);
        source_.matrix(prefix + "gate_proj.weight", intermediate, hidden_, w.gate_up.data(), dtype_);
        source_.matrix(prefix + "up_proj.weight", intermediate, hidden_, row_of(w.gate_up, intermediate, hidden_),
                       dtype_);
        w.down = matrix(prefix + "down_proj.weight", hidden_, intermediate);
        return w;
    }

    TargetLayer target_layer(int32_t index) {
        const kdt_target_config& t = config_.target;
        const std::string prefix = "model.layers." + std::to_string(index) + ".";
        const std::string attention = prefix + "self_attn.";
        const int64_t queries = int64_t{t.num_heads} * kQueryHead;
        TargetLayer w;
        w.input_norm = norm(prefix + "input_layernorm.weight", hidden_);
        const int64_t q_rows = t.q_lora_rank > 0 ? t.q_lora_rank : queries;
        w.first = act((q_rows + kLatent) * hidden_);
        source_.matrix(attention + (t.q_lora_rank > 0 ? "q_a_proj.weight" : "q_proj.weight"), q_rows, hidden_,
                       w.first.data(), dtype_);
        source_.matrix(attention + "kv_a_proj_with_mqa.weight", kLatent, hidden_, row_of(w.first, q_rows, hidden_),
                       dtype_);
        if (t.q_lora_rank > 0) {
            w.q_norm = norm(attention + "q_a_layernorm.weight", t.q_lora_rank);
            w.q_b = matrix(attention + "q_b_proj.weight", queries, t.q_lora_rank);
        }
        w.kv_norm = norm(attention + "kv_a_layernorm.weight", KDT_KV_LORA_RANK);
        load_kv_b(attention + "kv_b_proj.weight", w);
        w.o = matrix(attention + "o_proj.weight", hidden_, int64_t{t.num_heads} * kValueHead);
        w.post_norm = norm(prefix + "post_attention_layernorm.weight", hidden_);
        if (config_.is_moe(index))
            w.moe = moe(prefix + "mlp.");
        else
            w.mlp = mlp(prefix + "mlp.", t.intermediate_size);
        return w;
    }

    // kv_b_proj [H, 128 + 128, 512] is w_uk [H, 128, 512] and the transpose of w_uv, [H, 512, 128].
    void load_kv_b(const std::string& name, TargetLayer& w) {
        constexpr int64_t kRank = KDT_KV_LORA_RANK, kNope = KDT_QK_NOPE_HEAD_DIM;
        const int64_t heads = config_.target.num_heads;
        const size_t half = static_cast<size_t>(heads * kNope * kRank);
        static_assert(kNope == kValueHead, "both halves have as many rows");
        w.w_uk = Memory(half * sizeof(uint16_t));
        w.w_uv = Memory(half * sizeof(uint16_t));
        if (source_.random()) {
            const float deviation = 0.04419417f;  // 1 / sqrt(512)
            source_.fill(name + " keys", heads * kNope * kRank, w.w_uk.data(), KDT_BF16, deviation);
            source_.fill(name + " values", heads * kNope * kRank, w.w_uv.data(), KDT_BF16, deviation);
            return;
        }
        const std::vector<uint16_t> both = source_.host_bf16(name, heads * (kNope + kValueHead), kRank);
        std::vector<uint16_t> keys(half), values(half);
        for (int64_t h = 0; h < heads; ++h) {
            const uint16_t* const from = both.data() + h * (kNope + kValueHead) * kRank;
            std::copy(from, from + kNope * kRank, keys.begin() + h * kNope * kRank);
            for (int64_t v = 0; v < kValueHead; ++v)
                for (int64_t k = 0; k < kRank; ++k)
                    values[static_cast<size_t>((h * kRank + k) * kValueHead + v)] = from[(kNope + v) * kRank + k];
        }
        queue_.upload(w.w_uk.data(), keys.data(), half * sizeof(uint16_t));
        queue_.upload(w.w_uv.data(), values.data(), half * sizeof(uint16_t));
    }

    MoeWeights moe(const std::string& prefix) {
        const kdt_target_config& t = config_.target;
        const int64_t experts = t.n_routed_experts, width = t.moe_intermediate_size;
        MoeWeights w;
        w.router = matrix(prefix + "gate.weight", experts, hidden_);
        if (t.expert_scores == KDT_SCORES_SIGMOID) {
            w.bias = Memory(static_cast<size_t>(experts) * sizeof(float));
            source_.vector(prefix + "gate.e_score_correction_bias", experts, w.bias.data(), KDT_F32, 0.0f);
        }
        w.gate_up = act(experts * 2 * width * hidden_);
        w.down = act(experts * hidden_ * width);
        for (int64_t e = 0; e < experts; ++e) {
            const std::string expert = prefix + "experts." + std::to_string(e) + ".";
            source_.matrix(expert + "gate_proj.weight", width, hidden_, row_of(w.gate_up, 2 * e * width, hidden_),
                           dtype_);
            source_.matrix(expert + "up_proj.weight", width, hidden_, row_of(w.gate_up, (2 * e + 1) * width, hidden_),
                           dtype_);
            source_.matrix(expert + "down_proj.weight", hidden_, width, row_of(w.down, e * hidden_, width), dtype_);
        }
        if (t.n_shared_experts > 0)
            w.shared = mlp(prefix + "shared_experts.", t.n_shared_experts * t.moe_intermediate_size);
        return w;
    }

    DrafterLayer drafter_layer(int32_t index, DrafterWeights& all) {
        const kdt_drafter_config& d = config_.drafter;
        const std::string prefix = "drafter.layers." + std::to_string(index) + ".";
        const std::string attention = prefix + "self_attn.";
        const int64_t q_rows = int64_t{d.num_heads} * d.head_dim, kv_rows = int64_t{d.num_kv_heads} * d.head_dim;
        DrafterLayer w;
        w.input_norm = norm(prefix + "input_layernorm.weight", hidden_);
        w.qkv = act((q_rows + 2 * kv_rows) * hidden_);
        source_.matrix(attention + "q_proj.weight", q_rows, hidden_, w.qkv.data(), dtype_);
        source_.matrix(attention + "k_proj.weight", kv_rows, hidden_, row_of(w.qkv, q_rows, hidden_), dtype_);
        source_.matrix(attention + "v_proj.weight", kv_rows, hidden_, row_of(w.qkv, q_rows + kv_rows, hidden_), dtype_);
        queue_.copy(row_of(all.context_kv, index * 2 * kv_rows, hidden_), row_of(w.qkv, q_rows, hidden_),
                    static_cast<size_t>(2 * kv_rows * hidden_) * size_of(dtype_));
        w.q_norm = norm(attention + "q_norm.weight", d.head_dim);
        source_.vector(attention + "k_norm.weight", d.head_dim, row_of(all.k_norms, index, d.head_dim), dtype_);
        w.o = matrix(attention + "o_proj.weight", hidden_, q_rows);
        w.post_norm = norm(prefix + "post_attention_layernorm.weight", hidden_);
        w.mlp = mlp(prefix + "mlp.", d.intermediate_size);
        return w;
    }

    Queue& queue_;
    const Config& config_;
    TensorSource& source_;
    const Dtype dtype_;
    const int64_t hidden_;
};

}  // namespace

TargetWeights load_target(Queue& queue, const Config& config, TensorSource& source) {
    return Loader(queue, config, source).target();
}

DrafterWeights load_drafter(Queue& queue, const Config& config, TensorSource& source) {
    return Loader(queue, config, source).drafter();
}

}  // namespace kdt::engine
