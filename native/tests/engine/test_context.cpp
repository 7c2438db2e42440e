// SPDX-License-Identifier: Apache-2.0
//
// What the drafter knows of a text: its cached context behind some rounds is the one that a prefill of the same tokens
// makes. Nothing of the text itself would show a wrong row, only drafts that are right less often.
#include <algorithm>
#include <cmath>
#include <vector>

#include "check.h"
#include "engine/config.h"
#include "engine/engine_core.h"
#include "engine/model.h"
#include "ops_case.h"

namespace {

using kdt::engine::Engine;

constexpr int32_t kVocab = 97, kNewTokens = 60;

bool bitwise() {
    return kdt::engine::mla_mode() == KDT_MLA_ABSORB;
}

// Features are sums over latents in bf16 in either case, whose roundings fall otherwise for another number of rows.
float tolerance(kdt_dtype dtype) {
    return bitwise() ? 0.0f : dtype == KDT_F32 ? 0.02f : 0.08f;
}

kdt_engine_progress progress_of(Engine& engine, int32_t slot, std::vector<int32_t>* tokens) {
    kdt_engine_progress progress = {};
    tokens->assign(kNewTokens, -1);
    engine.progress(slot, true, &progress, tokens->data(), 0, kNewTokens);
    return progress;
}

// All layers' keys and values at positions below `count`, of the only slot.
std::vector<float> context_of(const Engine& engine, const ModelParams& params, int32_t count) {
    const kdt_drafter_config& d = params.drafter;
    const kdt::engine::Memory& cache = engine.drafter()->cache();
    const auto dtype = static_cast<kdt_dtype>(params.engine.dtype);
    const size_t size = kdt::engine::size_of(dtype);
    const size_t row = size_t{2} * static_cast<size_t>(d.num_kv_heads * d.head_dim);
    const size_t capacity = cache.bytes() / size / row / static_cast<size_t>(d.num_layers);
    std::vector<unsigned char> bytes(cache.bytes());
    ops::queue().download(bytes.data(), cache.data(), bytes.size());
    std::vector<float> values;
    for (size_t layer = 0; layer < static_cast<size_t>(d.num_layers); ++layer)
        for (size_t i = 0; i < static_cast<size_t>(count) * row; ++i) {
            const unsigned char* const at = bytes.data() + (layer * capacity * row + i) * size;
            float value = 0.0f;
            uint16_t half = 0;
            if (dtype == KDT_F32) {
                std::memcpy(&value, at, sizeof(value));
            } else {
                std::memcpy(&half, at, sizeof(half));
                value = from_bf16(half);
            }
            values.push_back(value);
        }
    return values;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    float largest = 0.0f;
    for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
    return largest;
}

void check_context(kdt_dtype dtype, kdt_engine_rounds rounds) {
    ModelParams params;
    params.engine.dtype = dtype;
    const std::vector<int32_t> prompt = random_prompt(21, 41, kVocab);
    kdt_engine_request request = request_of(prompt, kNewTokens);
    const std::vector<int32_t> golden = Model(params).generate(request, ar_rounds()).tokens;
    request.golden_tokens = golden.data();
    request.num_golden_tokens = kNewTokens;
    rounds.simulated_accept = 0.8f;  // long paths, whose rows have moved

    Engine decoded(kdt::engine::read_config(&params.engine));
    const int32_t slot = decoded.admit(request);
    std::vector<int32_t> tokens;
    kdt_engine_progress before = progress_of(decoded, slot, &tokens), now = before;
    rounds.rounds = 1;
    while (now.finished == 0) {
        before = now;
        decoded.run(rounds);
        now = progress_of(decoded, slot, &tokens);
    }
    CHECK(now.accepted > 2 * now.rounds);
    // A round begins with the context of what the round before it has committed; the last token is a root.
    const int32_t known = static_cast<int32_t>(prompt.size()) + before.num_tokens - 1;

    std::vector<int32_t> text = prompt;
    text.insert(text.end(), tokens.begin(), tokens.end());
    text.resize(static_cast<size_t>(known));
    Engine fresh(kdt::engine::read_config(&params.engine));
    fresh.admit(request_of(text, 1));
    const std::vector<float> ours = context_of(decoded, params, known);
    const std::vector<float> wanted = context_of(fresh, params, known);
    const float scale = largest_difference(wanted, std::vector<float>(wanted.size(), 0.0f));
    CHECK(scale > 0.1f);
    CHECK(largest_difference(ours, wanted) <= tolerance(dtype) * scale);
    // A row that stood one place further on would be another by far.
    CHECK(largest_difference(std::vector<float>(wanted.begin() + 128, wanted.begin() + 1280),
                             std::vector<float>(wanted.begin(), wanted.begin() + 1152)) > 0.2f * scale);
}

}  // namespace

TEST(the_drafter_s_context_behind_rounds_is_a_prefill_s) {
    for (const kdt_dtype dtype : {KDT_F32, KDT_BF16})
        for (const kdt_engine_rounds& rounds : {chain_rounds(), tree_rounds(30), tree_rounds(64, 4)})
            check_context(dtype, rounds);
}
