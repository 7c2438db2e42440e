// SPDX-License-Identifier: Apache-2.0
//
// Draws: argmax, and keyed sampling bit for bit against the host's own arithmetic.
#include "engine/keyed_random.h"
#include "ops_case.h"

using namespace ops;

namespace {

struct DrawCase {
    int32_t rows, vocab, rows_per_request;
    std::vector<float> logits, temperatures;
    std::vector<int32_t> positions;
    std::vector<uint64_t> seeds;
};

std::vector<int32_t> drawn(const DrawCase& in) {
    const Buffer logits = up(in.logits), positions = up(in.positions), temperatures = up(in.temperatures);
    const Buffer seeds = up(in.seeds), tokens(static_cast<size_t>(in.rows) * 4);
    draw(queue(), logits.as<float>(), in.vocab, positions.as<int32_t>(), temperatures.as<float>(), seeds.as<uint64_t>(),
         in.rows_per_request, tokens.as<int32_t>(), in.rows);
    return tokens.values<int32_t>();
}

std::vector<int32_t> defined(const DrawCase& in) {
    std::vector<int32_t> tokens;
    for (int32_t r = 0; r < in.rows; ++r) {
        const auto request = static_cast<size_t>(r / in.rows_per_request);
        const float temperature = in.temperatures[request];
        const uint64_t position_word =
            word(in.seeds[request], static_cast<uint64_t>(in.positions[static_cast<size_t>(r)] + 1));
        int32_t token = 0;
        float best = -INFINITY;
        for (int32_t v = 0; v < in.vocab; ++v) {
            float value = in.logits[static_cast<size_t>(r) * in.vocab + v];
            if (temperature >= 1e-5f) {
                const volatile float scaled = value / temperature;
                value = scaled + gumbel(position_word, static_cast<uint64_t>(v));
            }
            if (value > best) best = value, token = v;
        }
        tokens.push_back(token);
    }
    return tokens;
}

}  // namespace

TEST(ops_draw) {
    Random random(31);
    for (const int32_t rows : {1, 3, 65, 130})
        for (const int32_t vocab : {1, 5, 1000, 1024, 5000, 163840}) {
            if (vocab > 5000 && rows > 3) continue;
            DrawCase in = {};
            in.rows = rows;
            in.vocab = vocab;
            in.rows_per_request = rows == 65 ? 65 : 1;
            for (int64_t i = 0; i < int64_t{rows} * vocab; ++i)
                in.logits.push_back(static_cast<float>(random.below(200)) / 8.0f);  // ties everywhere
            for (int32_t r = 0; r < rows; ++r) {
                in.positions.push_back(random.below(4096));
                constexpr float kTemperatures[] = {0.0f, 0.8f, 1.0f, 30.0f, 1e-5f, 9e-6f};
                in.temperatures.push_back(kTemperatures[random.below(6)]);
                in.seeds.push_back(random.next());
            }
            CHECK_EQ(drawn(in), defined(in));
            in.temperatures.assign(in.temperatures.size(), 1.0f);
            CHECK_EQ(drawn(in), defined(in));
        }
}

TEST(ops_draw_known_tokens) {
    // Test vectors of kdbench/models/sampling.py.
    DrawCase in = {};
    in.rows = 16;
    in.vocab = 1024;
    in.rows_per_request = 16;
    for (int32_t r = 0; r < 16; ++r) {
        in.positions.push_back(r - 1);
        for (int32_t v = 0; v < 1024; ++v) in.logits.push_back(static_cast<float>((v * 37) % 101) / 8.0f);
    }
    in.seeds = {5};
    in.temperatures = {0.8f};
    CHECK_EQ(drawn(in),
             (std::vector<int32_t>{338, 952, 737, 169, 453, 876, 838, 903, 232, 461, 19, 322, 60, 352, 417, 494}));
    in.temperatures = {0.0f};
    CHECK_EQ(drawn(in), std::vector<int32_t>(16, 30));
    in.temperatures = {30.0f};
    const std::vector<int32_t> hot = drawn(in);
    CHECK_EQ(std::vector<int32_t>(hot.begin(), hot.begin() + 8),
             (std::vector<int32_t>{338, 874, 151, 351, 476, 419, 294, 903}));
}

TEST(ops_draw_of_strange_logits) {
    constexpr float kNan = NAN, kInfinity = INFINITY;
    const std::vector<std::vector<float>> rows = {{kNan, kNan, kNan, kNan},
                                                  {-kInfinity, -kInfinity, -kInfinity, -kInfinity},
                                                  {kNan, -kInfinity, -5.0f, kNan},
                                                  {kNan, 1.0f, kInfinity, kInfinity},
                                                  {-0.0f, 0.0f, -0.0f, -1.0f},
                                                  {0.0f, -0.0f, 0.0f, -1.0f},
                                                  {kNan, -kInfinity, -kInfinity, kNan},
                                                  {2.0f, kNan, 3.0f, 3.0f}};
    DrawCase in = {};
    in.rows = static_cast<int32_t>(rows.size());
    in.vocab = 4;
    in.rows_per_request = 1;
    for (const auto& row : rows) in.logits.insert(in.logits.end(), row.begin(), row.end());
    in.positions.assign(rows.size(), 3);
    in.seeds.assign(rows.size(), 9);
    in.temperatures.assign(rows.size(), 0.0f);
    CHECK_EQ(drawn(in), (std::vector<int32_t>{0, 0, 2, 2, 0, 0, 0, 2}));
    in.temperatures.assign(rows.size(), 1.0f);
    CHECK_EQ(drawn(in), defined(in));
}
