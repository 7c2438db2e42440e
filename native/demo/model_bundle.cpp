// SPDX-License-Identifier: Apache-2.0
#include "model_bundle.h"

#include <algorithm>

#include "core/error.h"

kdt_engine_request BundleCase::request() const {
    kdt_engine_request r = {};
    r.struct_size = sizeof(r);
    r.prompt = prompt.data();
    r.prompt_length = static_cast<int32_t>(prompt.size());
    r.max_new_tokens = max_new_tokens;
    r.stop_tokens = stop_tokens.data();
    r.num_stop_tokens = static_cast<int32_t>(stop_tokens.size());
    r.temperature = temperature;
    r.seed = seed;
    return r;
}

ModelBundle::ModelBundle(const std::string& path) : file_(path) {
    read_target();
    has_drafter_ = file_.find("drafter/num_layers") != nullptr;
    if (has_drafter_) read_drafter();
    read_tensors();
    read_cases();
}

int32_t ModelBundle::whole(const std::string& name) const {
    const kdt::KdtrArray& array = file_.at(name);
    if (array.size() != 1) kdt::fail_argument("%s has %zu values, wanted one", name.c_str(), array.size());
    return *array.as<int32_t>();
}

int32_t ModelBundle::whole_or(const std::string& name, int32_t missing) const {
    return file_.find(name) != nullptr ? whole(name) : missing;
}

float ModelBundle::real(const std::string& name) const {
    const kdt::KdtrArray& array = file_.at(name);
    if (array.size() != 1) kdt::fail_argument("%s has %zu values, wanted one", name.c_str(), array.size());
    return *array.as<float>();
}

std::vector<int32_t> ModelBundle::wholes(const std::string& name) const {
    const kdt::KdtrArray& array = file_.at(name);
    const int32_t* const values = array.as<int32_t>();
    return std::vector<int32_t>(values, values + array.size());
}

void ModelBundle::read_target() {
    kdt_target_config& t = target_;
    t.struct_size = sizeof(t);
    t.vocab_size = whole("target/vocab_size");
    t.hidden_size = whole("target/hidden_size");
    t.num_layers = whole("target/num_layers");
    t.num_heads = whole("target/num_heads");
    t.q_lora_rank = whole("target/q_lora_rank");
    t.intermediate_size = whole("target/intermediate_size");
    t.tie_word_embeddings = whole_or("target/tie_word_embeddings", 0);
    t.rms_norm_eps = real("target/rms_norm_eps");
    t.softmax_scale = real("target/softmax_scale");
    t.rope_scale = real("target/rope_scale");
    t.inv_freq = file_.at("target/inv_freq").as<float>();
    t.first_dense_layers = whole_or("target/first_dense_layers", t.num_layers);
    if (file_.at("target/inv_freq").size() != KDT_QK_ROPE_HEAD_DIM / 2)
        kdt::fail_argument("target/inv_freq has %zu values, wanted %d", file_.at("target/inv_freq").size(),
                           KDT_QK_ROPE_HEAD_DIM / 2);
    if (t.first_dense_layers == t.num_layers) return;
    t.n_routed_experts = whole("target/n_routed_experts");
    t.num_experts_per_tok = whole("target/num_experts_per_tok");
    t.n_shared_experts = whole("target/n_shared_experts");
    t.moe_intermediate_size = whole("target/moe_intermediate_size");
    t.n_group = whole("target/n_group");
    t.topk_group = whole("target/topk_group");
    t.norm_topk_prob = whole("target/norm_topk_prob");
    t.expert_scores = whole("target/expert_scores");
    t.routed_scaling_factor = real("target/routed_scaling_factor");
}

void ModelBundle::read_drafter() {
    kdt_drafter_config& d = drafter_;
    d.struct_size = sizeof(d);
    d.num_layers = whole("drafter/num_layers");
    d.num_heads = whole("drafter/num_heads");
    d.num_kv_heads = whole("drafter/num_kv_heads");
    d.head_dim = whole("drafter/head_dim");
    d.intermediate_size = whole("drafter/intermediate_size");
    d.block_size = whole("drafter/block_size");
    d.mask_token_id = whole("drafter/mask_token_id");
    const std::vector<int32_t> layers = wholes("drafter/target_layer_ids");
    if (layers.size() > KDT_MAX_TARGET_FEATURES)
        kdt::fail_argument("drafter/target_layer_ids has %zu values, wanted at most %d", layers.size(),
                           KDT_MAX_TARGET_FEATURES);
    d.num_features = static_cast<int32_t>(layers.size());
    std::copy(layers.begin(), layers.end(), d.target_layer_ids);
    d.rms_norm_eps = real("drafter/rms_norm_eps");
    d.rope_scale = real("drafter/rope_scale");
    d.inv_freq = file_.at("drafter/inv_freq").as<float>();
    if (file_.at("drafter/inv_freq").size() != static_cast<size_t>(d.head_dim) / 2)
        kdt::fail_argument("drafter/inv_freq has %zu values, wanted %d", file_.at("drafter/inv_freq").size(),
                           d.head_dim / 2);
}

void ModelBundle::read_tensors() {
    for (int i = 0;; ++i) {
        const std::string at = "tensor/" + std::to_string(i);
        const kdt::KdtrArray* const array = file_.find(at);
        if (array == nullptr) break;
        const kdt::KdtrArray& name = file_.at(at + "/name");
        names_.emplace_back(reinterpret_cast<const char*>(name.as<uint8_t>()), name.size());
        kdt_tensor tensor = {};
        tensor.data = array->data;
        tensor.dtype = array->dtype == kdt::KdtrDtype::f32    ? static_cast<int32_t>(KDT_F32)
                       : array->dtype == kdt::KdtrDtype::bf16 ? static_cast<int32_t>(KDT_BF16)
                                                              : -1;
        tensor.rank = static_cast<int32_t>(array->shape.size());
        for (size_t k = 0; k < std::min<size_t>(array->shape.size(), 2); ++k)
            tensor.shape[k] = static_cast<int64_t>(array->shape[k]);
        tensors_.push_back(tensor);
    }
    for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].name = names_[i].c_str();
}

void ModelBundle::read_cases() {
    for (int i = 0;; ++i) {
        const std::string at = "case/" + std::to_string(i) + "/";
        if (file_.find(at + "prompt") == nullptr) break;
        BundleCase one;
        one.prompt = wholes(at + "prompt");
        if (file_.find(at + "tokens") != nullptr) one.tokens = wholes(at + "tokens");
        if (file_.find(at + "stop_tokens") != nullptr) one.stop_tokens = wholes(at + "stop_tokens");
        one.max_new_tokens = whole_or(at + "max_new_tokens", static_cast<int32_t>(one.tokens.size()));
        if (file_.find(at + "temperature") != nullptr) one.temperature = real(at + "temperature");
        if (file_.find(at + "seed") != nullptr) one.seed = *file_.at(at + "seed").as<uint64_t>();
        cases_.push_back(one);
    }
}

kdt_engine_params ModelBundle::params() const {
    kdt_engine_params p = {};
    p.struct_size = sizeof(p);
    p.target = &target_;
    p.drafter = has_drafter_ ? &drafter_ : nullptr;
    p.tensors = tensors_.data();
    p.num_tensors = static_cast<int32_t>(tensors_.size());
    p.dtype = KDT_F32;
    p.max_batch = 1;
    p.max_seq_len = 2;
    for (const BundleCase& one : cases_)
        p.max_seq_len = std::max(p.max_seq_len, static_cast<int32_t>(one.prompt.size()) + one.max_new_tokens);
    p.max_tree_budget = 64;
    p.page_size = 64;
    p.num_pages = (p.max_seq_len + p.max_tree_budget + 64) / 64 + 1;
    p.prefill_chunk = 64;
    return p;
}
