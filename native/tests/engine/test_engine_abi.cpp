// SPDX-License-Identifier: Apache-2.0
//
// What the engine's C ABI refuses, and what it reports.
#include <cmath>
#include <functional>

#include "check.h"
#include "engine/model.h"

namespace {

std::string refused(const std::function<void(ModelParams&)>& change, kdt_status wanted = KDT_INVALID_ARGUMENT) {
    ModelParams params;
    change(params);
    kdt_engine* engine = nullptr;
    const kdt_status status = kdt_engine_create(&params.engine, &engine);
    kdt_engine_destroy(engine);
    CHECK_EQ(static_cast<int>(status), static_cast<int>(wanted));
    CHECK(engine == nullptr);
    return kdt_last_error();
}

}  // namespace

TEST(configs_that_cannot_be_are_refused) {
    CHECK_CONTAINS(refused([](ModelParams& p) { p.engine.struct_size = 8; }), "struct_size is 8");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.engine.target = nullptr; }), "target is NULL");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.target.num_heads = 129; }), "num_heads is 129, wanted 1 .. 128");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.target.softmax_scale = NAN; }), "softmax_scale");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.target.inv_freq = nullptr; }), "inv_freq is NULL");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.target.first_dense_layers = 0; }), "n_routed_experts is 0");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.drafter.block_size = 33; }), "block_size is 33, wanted 2 .. 32");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.drafter.target_layer_ids[1] = 0; }), "must rise");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.drafter.target_layer_ids[1] = 2; }),
                   "target_layer_id is 2, wanted 0 .. 1");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.drafter.head_dim = 48; }), "multiple of 32");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.drafter.num_kv_heads = 3; }), "multiple of num_kv_heads");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.drafter.mask_token_id = 97; }), "mask_token_id is 97");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.engine.max_batch = 0; }), "max_batch is 0");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.engine.max_tree_budget = 1025; }), "max_tree_budget is 1025");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.engine.prefill_chunk = 0; }), "prefill_chunk is 0");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.engine.dtype = 2; }), "dtype is 2");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.engine.num_tensors = 3; }), "tensors is NULL");
    CHECK_CONTAINS(refused([](ModelParams& p) { p.engine.blas_library = "/nowhere/libblas.so"; }, KDT_UNSUPPORTED),
                   "/nowhere/libblas.so");
}

TEST(calls_that_make_no_sense_are_refused) {
    ModelParams params;
    params.engine.drafter = nullptr;
    Model model(params);
    int32_t slot = 0;
    const std::vector<int32_t> prompt = {1, 2, 3};
    const kdt_engine_request request = request_of(prompt, 4);
    const auto fails = [](kdt_status status, const char* part) {
        CHECK_EQ(static_cast<int>(status), static_cast<int>(KDT_INVALID_ARGUMENT));
        CHECK_CONTAINS(std::string(kdt_last_error()), part);
    };
    fails(kdt_engine_create(&params.engine, nullptr), "engine is NULL");
    fails(kdt_engine_admit(nullptr, &request, &slot), "engine is NULL");
    fails(kdt_engine_admit(model.get(), nullptr, &slot), "the struct is NULL");
    fails(kdt_engine_admit(model.get(), &request, nullptr), "slot is NULL");
    fails(kdt_engine_release(model.get(), 0), "slot 0 holds no request");
    fails(kdt_engine_release(model.get(), 1), "slot is 1, wanted 0 .. 0");
    kdt_engine_rounds rounds = tree_rounds(8);
    rounds.rounds = 1;
    fails(kdt_engine_run(model.get(), &rounds), "needs a drafter");
    rounds = ar_rounds();
    rounds.mode = 3;
    fails(kdt_engine_run(model.get(), &rounds), "mode is 3");
    rounds = ar_rounds();
    rounds.rounds = -1;
    fails(kdt_engine_run(model.get(), &rounds), "rounds is -1");
    kdt_engine_progress progress = {};
    progress.struct_size = sizeof(progress);
    fails(kdt_engine_progress_of(model.get(), 0, 0, &progress, nullptr, 0, 0), "holds no request");
    fails(kdt_engine_logits(model.get(), 0, nullptr, 0, &slot), "holds no request");
    char text[16];
    fails(kdt_engine_info(model.get(), text, sizeof(text)), "capacity is 16");
    kdt_engine_destroy(nullptr);

    Model drafting{ModelParams()};
    rounds = tree_rounds(65);
    fails(kdt_engine_run(drafting.get(), &rounds), "tree_budget is 65, wanted 1 .. 64");
    rounds = tree_rounds(8, 9);
    fails(kdt_engine_run(drafting.get(), &rounds), "block_size is 9, wanted 2 .. 8");
    rounds = tree_rounds(8);
    rounds.topk = 98;
    fails(kdt_engine_run(drafting.get(), &rounds), "topk is 98, wanted 1 .. 97");
    rounds.topk = 0;
    rounds.simulated_accept = 1.5f;
    fails(kdt_engine_run(drafting.get(), &rounds), "simulated_accept is 1.5");
}

TEST(progress_counts_what_happened) {
    Model model{ModelParams()};
    const std::vector<int32_t> prompt = random_prompt(8, 10, 97);
    kdt_engine_request request = request_of(prompt, 50);
    const std::vector<int32_t> golden = model.generate(request, ar_rounds()).tokens;
    request.golden_tokens = golden.data();
    request.num_golden_tokens = 50;
    const int32_t slot = model.admit(request);
    CHECK_EQ(model.generated(slot).progress.num_tokens, 1);
    kdt_engine_rounds rounds = tree_rounds(30);
    rounds.simulated_accept = 0.9f;
    rounds.profile = 1;
    model.run(rounds, 4);
    const kdt_engine_progress p = model.generated(slot).progress;
    int32_t sum = 0, count = 0;
    for (int32_t i = 0; i < KDT_MAX_DRAFT_HORIZON + 2; ++i) {
        sum += i * p.histogram[i];
        count += p.histogram[i];
    }
    CHECK_EQ(p.rounds, 4);
    CHECK_EQ(count, 4);
    CHECK_EQ(p.accepted, int64_t{sum});
    CHECK_EQ(p.num_tokens, 1 + sum);
    CHECK_EQ(p.status & KDT_REQ_ERROR_MASK, 0);
    double seconds[KDT_NUM_STAGES];
    int64_t profiled = 0;
    REQUIRE_OK(kdt_engine_stage_seconds(model.get(), seconds, &profiled));
    CHECK_EQ(profiled, int64_t{4});
    for (const double value : seconds) CHECK(value > 0.0 && value < 60.0);
    CHECK(seconds[KDT_STAGE_VERIFY] > seconds[KDT_STAGE_TREE_ACCEPT]);
    REQUIRE_OK(kdt_engine_stage_seconds(model.get(), seconds, &profiled));
    CHECK_EQ(profiled, int64_t{0});
    kdt_round_clock clock = {};
    clock.struct_size = sizeof(clock);
    REQUIRE_OK(kdt_engine_round_clock(model.get(), &clock));
    CHECK_EQ(clock.stage_rounds, int64_t{4});
    CHECK(clock.draft_topk_seconds > 0.0 && clock.draft_topk_seconds < 60.0);
    CHECK_EQ(clock.rounds, int64_t{0});
    rounds.profile = 2;
    model.run(rounds, 3);
    REQUIRE_OK(kdt_engine_round_clock(model.get(), &clock));
    CHECK_EQ(clock.struct_size, static_cast<uint32_t>(sizeof(clock)));
    CHECK_EQ(clock.stage_rounds, int64_t{0});
    CHECK_EQ(clock.rounds, int64_t{3});
    CHECK_EQ(clock.gaps, int64_t{2});
    CHECK(clock.busy_seconds > 0.0 && clock.idle_seconds >= 0.0 && clock.idle_seconds < 60.0);
    clock.struct_size = 8;
    CHECK_EQ(kdt_engine_round_clock(model.get(), &clock), KDT_INVALID_ARGUMENT);

    // The text in pieces.
    std::vector<int32_t> piece(3, -1);
    kdt_engine_progress progress = {};
    progress.struct_size = sizeof(progress);
    REQUIRE_OK(kdt_engine_progress_of(model.get(), slot, 1, &progress, piece.data(), 2, 2));
    CHECK_EQ(piece, (std::vector<int32_t>{golden[2], golden[3], -1}));
    CHECK_CONTAINS(model.info(), "\"slots_in_use\": 1, ");
}

TEST(random_weights_depend_on_the_seed_alone) {
    const std::vector<int32_t> prompt = random_prompt(8, 10, 97);
    std::vector<std::vector<int32_t>> texts;
    for (const uint64_t seed : {1, 1, 2}) {
        ModelParams params;
        params.engine.random_seed = seed;
        Model model(params);
        texts.push_back(model.generate(request_of(prompt, 20), ar_rounds()).tokens);
    }
    CHECK_EQ(texts[0], texts[1]);
    CHECK(texts[0] != texts[2]);
}
