// SPDX-License-Identifier: Apache-2.0
#include "engine/model.h"

#include <algorithm>
#include <cmath>

#include "check.h"
#include "engine/keyed_random.h"
#include "engine/ops.h"
#include "engine/options.h"

void require_ok(kdt_status status, const char* call) {
    if (status != KDT_OK)
        throw check::Failure(std::string(call) + " answered " + std::to_string(status) + ": " + kdt_last_error());
}

std::string engine_unavailable() {
    try {
        kdt::engine::Queue queue(options().blas_or_null());
        kdt::engine::Memory memory(16);
        return "";
    } catch (const std::exception& error) {
        return error.what();
    }
}

ModelParams::ModelParams() {
    target.struct_size = sizeof(target);
    target.vocab_size = 97;
    target.hidden_size = 64;
    target.num_layers = 2;
    target.num_heads = 2;
    target.q_lora_rank = 32;
    target.intermediate_size = 96;
    target.rms_norm_eps = 1e-6f;
    target.softmax_scale = 0.0721687836f;
    target.rope_scale = 1.0f;
    target.first_dense_layers = 2;
    for (int i = 0; i < 32; ++i) target_frequencies.push_back(static_cast<float>(std::pow(10000.0, -i / 32.0)));
    target.inv_freq = target_frequencies.data();

    drafter.struct_size = sizeof(drafter);
    drafter.num_layers = 2;
    drafter.num_heads = 4;
    drafter.num_kv_heads = 2;
    drafter.head_dim = 32;
    drafter.intermediate_size = 80;
    drafter.block_size = 8;
    drafter.mask_token_id = 2;
    drafter.num_features = 2;
    drafter.target_layer_ids[0] = 0;
    drafter.target_layer_ids[1] = 1;
    drafter.rms_norm_eps = 1e-6f;
    drafter.rope_scale = 1.0f;
    for (int i = 0; i < 16; ++i) drafter_frequencies.push_back(static_cast<float>(std::pow(10000.0, -i / 16.0)));
    drafter.inv_freq = drafter_frequencies.data();

    engine.struct_size = sizeof(engine);
    engine.target = &target;
    engine.drafter = &drafter;
    engine.dtype = KDT_F32;
    engine.max_batch = 1;
    engine.max_seq_len = 160;
    engine.max_tree_budget = 64;
    engine.page_size = 16;
    engine.num_pages = 64;
    engine.prefill_chunk = 32;
    engine.blas_library = options().blas_or_null();
    engine.random_seed = 7;
}

Model::Model(const kdt_engine_params& params) {
    REQUIRE_OK(kdt_engine_create(&params, &engine_));
}

Model::~Model() {
    kdt_engine_destroy(engine_);
}

int32_t Model::admit(const kdt_engine_request& request) {
    int32_t slot = -1;
    REQUIRE_OK(kdt_engine_admit(engine_, &request, &slot));
    return slot;
}

void Model::run(kdt_engine_rounds rounds, int32_t count) {
    rounds.rounds = count;
    REQUIRE_OK(kdt_engine_run(engine_, &rounds));
}

void Model::run_until_finished(int32_t slot, kdt_engine_rounds rounds, int32_t limit) {
    for (int32_t i = 0; i < limit; ++i) {
        if (generated(slot).progress.finished != 0) return;
        run(rounds, 1);
    }
    throw check::Failure("the request had not finished after " + std::to_string(limit) + " rounds");
}

Generated Model::generated(int32_t slot) {
    Generated result;
    result.progress.struct_size = sizeof(result.progress);
    REQUIRE_OK(kdt_engine_progress_of(engine_, slot, 1, &result.progress, nullptr, 0, 0));
    result.tokens.resize(static_cast<size_t>(result.progress.num_tokens));
    REQUIRE_OK(kdt_engine_progress_of(engine_, slot, 1, &result.progress, result.tokens.data(), 0,
                                      result.progress.num_tokens));
    return result;
}

void Model::release(int32_t slot) {
    REQUIRE_OK(kdt_engine_release(engine_, slot));
}

std::vector<float> Model::logits(int32_t slot) {
    int32_t rows = 0;
    REQUIRE_OK(kdt_engine_logits(engine_, slot, nullptr, 0, &rows));
    std::vector<float> values(1 << 20);
    REQUIRE_OK(kdt_engine_logits(engine_, slot, values.data(), static_cast<int64_t>(values.size()), &rows));
    return values;
}

std::string Model::info() {
    char text[1024];
    REQUIRE_OK(kdt_engine_info(engine_, text, sizeof(text)));
    return text;
}

Generated Model::generate(const kdt_engine_request& request, const kdt_engine_rounds& rounds) {
    const int32_t slot = admit(request);
    run_until_finished(slot, rounds);
    Generated result = generated(slot);
    release(slot);
    return result;
}

kdt_engine_request request_of(const std::vector<int32_t>& prompt, int32_t max_new_tokens) {
    kdt_engine_request request = {};
    request.struct_size = sizeof(request);
    request.prompt = prompt.data();
    request.prompt_length = static_cast<int32_t>(prompt.size());
    request.max_new_tokens = max_new_tokens;
    return request;
}

kdt_engine_rounds ar_rounds() {
    kdt_engine_rounds rounds = {};
    rounds.struct_size = sizeof(rounds);
    rounds.mode = KDT_DECODE_AR;
    return rounds;
}

kdt_engine_rounds chain_rounds(int32_t block_size) {
    kdt_engine_rounds rounds = ar_rounds();
    rounds.mode = KDT_DECODE_CHAIN;
    rounds.block_size = block_size;
    return rounds;
}

kdt_engine_rounds tree_rounds(int32_t tree_budget, int32_t block_size) {
    kdt_engine_rounds rounds = chain_rounds(block_size);
    rounds.mode = KDT_DECODE_DDTREE;
    rounds.tree_budget = tree_budget;
    return rounds;
}

std::vector<int32_t> random_prompt(uint64_t seed, int32_t length, int32_t vocab) {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < length; ++i)
        prompt.push_back(static_cast<int32_t>(kdt::engine::word(seed, static_cast<uint64_t>(i)) % vocab));
    return prompt;
}
