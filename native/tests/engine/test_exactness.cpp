// SPDX-License-Identifier: Apache-2.0
//
// Speculation never changes what the model says: every mode, shape, batch and sampling gives plain decoding's tokens.
// On the CPU equal means equal bits, of logits too; on CUDA these models' gaps are wide enough for equal tokens in f32.
#include <cstring>

#include "check.h"
#include "engine/model.h"
#include "engine/ops.h"

namespace {

constexpr int32_t kVocab = 97;

bool bitwise() {
    return kdt::engine::mla_mode() == KDT_MLA_ABSORB;
}

void check_modes(Model& model, kdt_engine_request request) {
    const Generated plain = model.generate(request, ar_rounds());
    CHECK_EQ(plain.progress.rounds, plain.progress.num_tokens - 1);
    for (const int32_t block : {2, 4, 8}) {
        CHECK_EQ(model.generate(request, chain_rounds(block)).tokens, plain.tokens);
        for (const int32_t budget : {1, 5, 8, 15, 64})
            CHECK_EQ(model.generate(request, tree_rounds(budget, block)).tokens, plain.tokens);
    }
    // Long accepted paths, which a random drafter does not find.
    request.golden_tokens = plain.tokens.data();
    request.num_golden_tokens = static_cast<int32_t>(plain.tokens.size());
    for (const float accept : {0.5f, 0.9f, 1.0f})
        for (const int32_t budget : {6, 33, 64}) {
            kdt_engine_rounds rounds = tree_rounds(budget);
            rounds.simulated_accept = accept;
            const Generated tree = model.generate(request, rounds);
            CHECK_EQ(tree.tokens, plain.tokens);
            CHECK(accept < 0.9f || tree.progress.accepted > 2 * tree.progress.rounds);
            rounds.mode = KDT_DECODE_CHAIN;
            CHECK_EQ(model.generate(request, rounds).tokens, plain.tokens);
        }
}

}  // namespace

TEST(greedy_tokens_are_the_same_in_every_mode) {
    Model model{ModelParams()};
    for (const int32_t length : {1, 7, 32, 33, 70}) {
        const std::vector<int32_t> prompt = random_prompt(static_cast<uint64_t>(length), length, kVocab);
        check_modes(model, request_of(prompt, 40));
    }
}

TEST(sampled_tokens_are_the_same_in_every_mode) {
    Model model{ModelParams()};
    const std::vector<int32_t> prompt = random_prompt(5, 9, kVocab);
    std::vector<std::vector<int32_t>> texts;
    for (const uint64_t seed : {uint64_t{1}, uint64_t{2}}) {
        kdt_engine_request request = request_of(prompt, 30);
        request.temperature = 0.9f;
        request.seed = seed;
        check_modes(model, request);
        texts.push_back(model.generate(request, ar_rounds()).tokens);
    }
    CHECK(texts[0] != texts[1]);
}

TEST(a_tree_s_logits_are_plain_decoding_s_to_the_bit) {
    if (!bitwise()) throw check::Skipped("only the CPU promises bits");
    for (const int32_t dtype : {KDT_F32, KDT_BF16}) {
        ModelParams params;
        params.engine.dtype = dtype;
        Model model(params);
        const std::vector<int32_t> prompt = random_prompt(11, 21, kVocab);
        kdt_engine_request request = request_of(prompt, 60);
        std::vector<std::vector<float>> plain;  // [i] behind i tokens
        const int32_t slot = model.admit(request);
        for (int32_t i = 0; i < 59; ++i) {
            model.run(ar_rounds(), 1);
            plain.push_back(model.logits(slot));
        }
        const std::vector<int32_t> golden = model.generated(slot).tokens;
        model.release(slot);

        request.golden_tokens = golden.data();
        request.num_golden_tokens = static_cast<int32_t>(golden.size());
        kdt_engine_rounds rounds = tree_rounds(40);
        rounds.simulated_accept = 0.8f;
        const int32_t again = model.admit(request);
        int32_t compared = 0;
        for (int32_t emitted = 1; emitted < 50; emitted = model.generated(again).progress.num_tokens) {
            model.run(rounds, 1);
            const std::vector<float> tree = model.logits(again);  // row 0 is the root's
            CHECK(std::memcmp(tree.data(), plain[static_cast<size_t>(emitted) - 1].data(), kVocab * sizeof(float)) ==
                  0);
            ++compared;
        }
        CHECK(compared > 5 && compared < 40);
        CHECK_EQ(model.generated(again).tokens.front(), golden.front());
    }
}

TEST(the_chunk_of_a_prefill_does_not_show) {
    const std::vector<int32_t> prompt = random_prompt(3, 75, kVocab);
    std::vector<int32_t> wanted;
    std::vector<float> wanted_logits;
    for (const int32_t chunk : {1, 16, 33, 64, 80}) {
        ModelParams params;
        params.engine.prefill_chunk = chunk;
        Model model(params);
        const int32_t slot = model.admit(request_of(prompt, 20));
        const std::vector<float> logits = model.logits(slot);
        model.run_until_finished(slot, tree_rounds(12));
        if (wanted.empty()) {
            wanted = model.generated(slot).tokens;
            wanted_logits = logits;
        }
        CHECK_EQ(model.generated(slot).tokens, wanted);
        CHECK(!bitwise() || std::memcmp(logits.data(), wanted_logits.data(), kVocab * sizeof(float)) == 0);
    }
}

TEST(mixtures_of_experts_and_other_shapes_decode_alike) {
    for (int variant = 0; variant < 4; ++variant) {
        ModelParams params;
        kdt_target_config& t = params.target;
        t.first_dense_layers = 1;
        t.n_routed_experts = 8;
        t.num_experts_per_tok = 3;
        t.n_shared_experts = variant == 1 ? 0 : 2;
        t.moe_intermediate_size = 40;
        t.n_group = 4;
        t.topk_group = 2;
        t.norm_topk_prob = 1;
        t.expert_scores = variant == 2 ? KDT_SCORES_SOFTMAX : KDT_SCORES_SIGMOID;
        t.routed_scaling_factor = 2.5f;
        if (variant == 1) t.q_lora_rank = 0;
        if (variant == 2) t.tie_word_embeddings = 1;
        if (variant == 3) params.engine.dtype = KDT_BF16;
        Model model(params);
        const std::vector<int32_t> prompt = random_prompt(40 + static_cast<uint64_t>(variant), 19, kVocab);
        const kdt_engine_request request = request_of(prompt, 30);
        const Generated plain = model.generate(request, ar_rounds());
        if (variant == 3 && !bitwise()) continue;  // bf16 with near ties
        CHECK_EQ(model.generate(request, tree_rounds(20)).tokens, plain.tokens);
        CHECK_EQ(model.generate(request, chain_rounds()).tokens, plain.tokens);
    }
}
