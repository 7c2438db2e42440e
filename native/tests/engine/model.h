// SPDX-License-Identifier: Apache-2.0
//
// Small engines of random weights, and decoding with them through the C ABI.
#ifndef KDTREE_TESTS_ENGINE_MODEL_H
#define KDTREE_TESTS_ENGINE_MODEL_H

#include <cstdint>
#include <string>
#include <vector>

#include "kdtree/engine.h"

// Throws check::Failure with kdt_last_error() unless the call was a success.
void require_ok(kdt_status status, const char* call);
#define REQUIRE_OK(call) require_ok(call, #call)

// Why no engine can be made on this machine; empty when one can.
std::string engine_unavailable();

// Everything kdt_engine_create() wants, with the memory behind its pointers. Change fields, then create().
struct ModelParams {
    ModelParams();
    ModelParams(const ModelParams&) = delete;
    ModelParams& operator=(const ModelParams&) = delete;

    kdt_target_config target = {};
    kdt_drafter_config drafter = {};
    kdt_engine_params engine = {};
    std::vector<float> target_frequencies;
    std::vector<float> drafter_frequencies;
};

struct Generated {
    std::vector<int32_t> tokens;
    kdt_engine_progress progress = {};
};

// Owns a kdt_engine.
class Model {
  public:
    explicit Model(const ModelParams& params) : Model(params.engine) {}
    explicit Model(const kdt_engine_params& params);
    ~Model();
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    kdt_engine* get() const { return engine_; }
    int32_t admit(const kdt_engine_request& request);
    // Rounds until the slot has finished, at most `limit`.
    void run_until_finished(int32_t slot, kdt_engine_rounds rounds, int32_t limit = 1000);
    void run(kdt_engine_rounds rounds, int32_t count);
    Generated generated(int32_t slot);
    void release(int32_t slot);
    std::vector<float> logits(int32_t slot);
    std::string info();

    // Admits, decodes to the end, releases.
    Generated generate(const kdt_engine_request& request, const kdt_engine_rounds& rounds);

  private:
    kdt_engine* engine_ = nullptr;
};

kdt_engine_request request_of(const std::vector<int32_t>& prompt, int32_t max_new_tokens);
kdt_engine_rounds ar_rounds();
kdt_engine_rounds chain_rounds(int32_t block_size = 0);
kdt_engine_rounds tree_rounds(int32_t tree_budget, int32_t block_size = 0);
// Reproducible tokens below vocab.
std::vector<int32_t> random_prompt(uint64_t seed, int32_t length, int32_t vocab);

#endif  // KDTREE_TESTS_ENGINE_MODEL_H
