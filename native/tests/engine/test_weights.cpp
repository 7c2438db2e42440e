// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints that fit, and each way of not fitting.
#include <algorithm>
#include <cmath>
#include <functional>

#include "check.h"
#include "engine/arrays.h"
#include "engine/model.h"
#include "engine/tensor_list.h"

namespace {

std::string refused(const ModelParams& params, const std::vector<kdt_tensor>& tensors) {
    kdt_engine_params p = params.engine;
    p.tensors = tensors.data();
    p.num_tensors = static_cast<int32_t>(tensors.size());
    kdt_engine* engine = nullptr;
    const kdt_status status = kdt_engine_create(&p, &engine);
    kdt_engine_destroy(engine);
    CHECK_EQ(static_cast<int>(status), static_cast<int>(KDT_INVALID_ARGUMENT));
    return kdt_last_error();
}

std::vector<int32_t> text_of(const ModelParams& params, const std::vector<kdt_tensor>& tensors) {
    kdt_engine_params p = params.engine;
    p.tensors = tensors.data();
    p.num_tensors = static_cast<int32_t>(tensors.size());
    Model model(p);
    const std::vector<int32_t> prompt = random_prompt(1, 20, 97);
    return model.generate(request_of(prompt, 20), tree_rounds(8)).tokens;
}

kdt_tensor& named(std::vector<kdt_tensor>& tensors, const std::string& name) {
    for (kdt_tensor& tensor : tensors)
        if (name == tensor.name) return tensor;
    throw check::Failure("no tensor " + name);
}

}  // namespace

TEST(weights_are_found_by_name_and_of_either_dtype) {
    ModelParams params;
    params.target.first_dense_layers = 1;
    params.target.n_routed_experts = 4;
    params.target.num_experts_per_tok = 2;
    params.target.n_shared_experts = 1;
    params.target.moe_intermediate_size = 24;
    params.target.n_group = 1;
    params.target.topk_group = 1;
    params.target.norm_topk_prob = 1;
    params.target.routed_scaling_factor = 1.0f;
    const TensorList list(params);
    std::vector<kdt_tensor> tensors = list.tensors();
    const std::vector<int32_t> text = text_of(params, tensors);
    std::reverse(tensors.begin(), tensors.end());
    CHECK_EQ(text_of(params, tensors), text);

    std::deque<std::vector<uint16_t>> narrow;
    for (kdt_tensor& tensor : tensors) {
        const auto* const values = static_cast<const float*>(tensor.data);
        narrow.emplace_back();
        for (int64_t i = 0; i < tensor.shape[0] * (tensor.rank == 2 ? tensor.shape[1] : 1); ++i)
            narrow.back().push_back(arrays::to_bf16(values[i]));
        tensor.data = narrow.back().data();
        tensor.dtype = KDT_BF16;
    }
    CHECK_EQ(text_of(params, tensors), text);

    // Another value somewhere is another model.
    kdt_tensor& head = named(tensors, "lm_head.weight");
    std::vector<float> shuffled;
    for (int64_t i = 0; i < head.shape[0] * head.shape[1]; ++i)
        shuffled.push_back(arrays::from_bf16(static_cast<const uint16_t*>(head.data)[i]) * (i % 3 == 0 ? -1.0f : 1.0f));
    head.data = shuffled.data();
    head.dtype = KDT_F32;
    CHECK(text_of(params, tensors) != text);
}

TEST(tensors_that_do_not_fit_are_named) {
    const ModelParams params;
    const TensorList list(params);
    const std::string query = "model.layers.1.self_attn.q_b_proj.weight";
    const auto change = [&](const std::function<void(std::vector<kdt_tensor>&)>& how) {
        std::vector<kdt_tensor> tensors = list.tensors();
        how(tensors);
        return refused(params, tensors);
    };
    for (const char* const name :
         {"model.norm.weight", "drafter.layers.1.self_attn.k_norm.weight", "drafter.fc.weight"})
        CHECK_EQ(change([&](auto& tensors) {
                     tensors.erase(std::find_if(tensors.begin(), tensors.end(),
                                                [&](const kdt_tensor& t) { return std::string(name) == t.name; }));
                 }),
                 "engine_create: tensor '" + std::string(name) + "' is missing");
    CHECK_CONTAINS(change([&](auto& tensors) { named(tensors, query).shape[0] = 96; }),
                   "tensor '" + query + "' is [96, 32], and the config wants [384, 32]");
    CHECK_CONTAINS(change([&](auto& tensors) { named(tensors, query).rank = 1; }),
                   "tensor '" + query + "' is [384], and the config wants [384, 32]");
    CHECK_CONTAINS(change([&](auto& tensors) { named(tensors, "model.norm.weight").rank = 2; }),
                   "'model.norm.weight' is [64, 1]");
    CHECK_CONTAINS(change([&](auto& tensors) { named(tensors, query).dtype = 5; }), "'" + query + "' has dtype 5");
    CHECK_CONTAINS(change([&](auto& tensors) { named(tensors, query).data = nullptr; }),
                   "the data of tensor '" + query + "' is NULL");
    CHECK_CONTAINS(change([&](auto& tensors) { tensors.push_back(tensors[3]); }), "is given twice");
    CHECK_CONTAINS(change([&](auto& tensors) { tensors[5].name = nullptr; }), "the name of tensor 5 is NULL");
    CHECK_CONTAINS(change([&](auto& tensors) {
                       tensors.push_back(named(tensors, query));
                       tensors.back().name = "model.layers.2.self_attn.q_b_proj.weight";
                   }),
                   "tensor 'model.layers.2.self_attn.q_b_proj.weight' is none of this config's");
}

TEST(a_drafter_of_nan_costs_speed_and_no_token) {
    const ModelParams params;
    const TensorList list(params);
    std::vector<kdt_tensor> tensors = list.tensors();
    kdt_tensor& norm = named(tensors, "drafter.norm.weight");
    const std::vector<float> nan(static_cast<size_t>(norm.shape[0]), std::nanf(""));
    norm.data = nan.data();
    kdt_engine_params p = params.engine;
    p.tensors = tensors.data();
    p.num_tensors = static_cast<int32_t>(tensors.size());
    Model model(p);
    const std::vector<int32_t> prompt = random_prompt(1, 20, 97);
    const kdt_engine_request request = request_of(prompt, 20);
    const Generated plain = model.generate(request, ar_rounds());
    for (const kdt_engine_rounds& rounds : {chain_rounds(), tree_rounds(8)}) {
        const Generated drafted = model.generate(request, rounds);
        CHECK_EQ(drafted.tokens, plain.tokens);
        CHECK_EQ(drafted.progress.rounds, 19);
        CHECK((drafted.progress.status & KDT_REQ_NAN) != 0);
    }
    CHECK_EQ(plain.progress.status, 0);
}
