// SPDX-License-Identifier: Apache-2.0
//
// draft_topk against a full sort in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "calls.h"
#include "check.h"
#include "oracle.h"

namespace {

using Ints = std::vector<int32_t>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void check_rows(const DraftTopkInput& in) {
    const DraftTopkOutput got = run(in);
    CHECK(run(in) == got);
    CHECK_EQ(got.status, Ints(static_cast<size_t>(in.rows), 0));
    for (int32_t row = 0; row < in.rows; ++row) {
        std::vector<double> logits;
        for (int32_t v = 0; v < in.vocab_size; ++v) {
            const size_t at = static_cast<size_t>(row) * in.vocab_size + v;
            logits.push_back(in.logits_f32.empty() ? from_bf16(in.logits_bf16[at]) : in.logits_f32[at]);
        }
        Ints order(logits.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
        });
        const double top = logits[static_cast<size_t>(order[0])];
        double sum = 0.0;
        for (const double logit : logits) sum += std::exp(logit - top);
        order.resize(static_cast<size_t>(in.topk));
        const auto first = static_cast<std::ptrdiff_t>(row) * in.topk;
        CHECK_EQ(Ints(got.topk_token_ids.begin() + first, got.topk_token_ids.begin() + first + in.topk), order);
        for (int32_t k = 0; k < in.topk; ++k) {
            const double wanted = logits[static_cast<size_t>(order[static_cast<size_t>(k)])] - top - std::log(sum);
            const float log_prob = got.topk_log_probs[static_cast<size_t>(first + k)];
            CHECK(log_prob <= 0.0f);
            CHECK(log_prob == wanted || std::abs(log_prob - wanted) <= 1e-5 + 1e-6 * std::abs(wanted));
        }
    }
}

// The logits as f32 or rounded to bf16.
DraftTopkInput rows_of(int32_t rows, int32_t vocab_size, int32_t topk, const std::vector<float>& logits, bool f32) {
    DraftTopkInput in = {rows, vocab_size, topk, {}, {}};
    if (f32) {
        in.logits_f32 = logits;
    } else {
        for (const float logit : logits) in.logits_bf16.push_back(bf16(logit));
    }
    return in;
}

DraftTopkInput random_rows(uint64_t seed, int32_t rows, int32_t vocab_size, int32_t topk, bool f32) {
    Random random(seed);
    std::vector<float> logits(static_cast<size_t>(rows) * static_cast<size_t>(vocab_size));
    for (float& logit : logits) logit = 4.0f * random.normal();
    return rows_of(rows, vocab_size, topk, logits, f32);
}

}  // namespace

TEST(draft_topk_random_rows) {
    for (const bool f32 : {true, false}) {
        check_rows(random_rows(1, 3, 1, 1, f32));
        check_rows(random_rows(2, 4, 7, 7, f32));
        check_rows(random_rows(3, 2, 513, 8, f32));
        check_rows(random_rows(4, 3, 2048, 1024, f32));
        check_rows(random_rows(5, 5, 30011, 64, f32));  // odd: rows are not aligned
        check_rows(random_rows(6, 1, 163840, 16, f32));
    }
}

// Few rows are shared by many blocks of a GPU, many are not; topk decides how a threshold is found.
TEST(draft_topk_rows_and_topk) {
    uint64_t seed = 100;
    for (const bool f32 : {true, false})
        for (const int32_t rows : {1, 7, 15, 16, 17, 33, 120})
            for (const int32_t topk : {1, 64, 65, 1024}) check_rows(random_rows(++seed, rows, 8200, topk, f32));
    check_rows(random_rows(++seed, 300, 4100, 64, false));
}

// Around the ends of 16-byte groups, of what a block holds at once, and of blocks' segments; rows that begin anywhere.
TEST(draft_topk_odd_sizes) {
    uint64_t seed = 200;
    for (const bool f32 : {true, false})
        for (const int32_t vocab_size : {2, 3, 5, 8, 9, 15, 17, 6143, 6144, 6145, 12287, 12288, 12289, 16385, 70001})
            check_rows(random_rows(++seed, 3, vocab_size, std::min(vocab_size, 70), f32));
}

// Rows in which few, or none, of the logits are unlike the others, or every tile brings better ones.
TEST(draft_topk_hostile_rows) {
    constexpr int32_t kVocabSize = 70001;
    for (const bool f32 : {true, false}) {
        for (const int32_t topk : {1, 64, 300, 1024}) {
            std::vector<float> logits;
            const auto row = [&](auto value) {
                for (int32_t v = 0; v < kVocabSize; ++v) logits.push_back(static_cast<float>(value(v)));
            };
            row([](int32_t) { return 0.25; });
            row([](int32_t v) { return v % 2 == 0 ? 0.0 : -0.0; });
            row([](int32_t v) { return v < 50000 ? -1.0 - v % 7 : -INFINITY; });
            row([](int32_t v) { return v < 69990 ? -INFINITY : v - 69990.0; });
            row([](int32_t v) { return v == 44444 ? 100.0 : -3.0; });
            row([](int32_t v) { return 0.001 * v; });
            row([](int32_t v) { return -0.001 * v; });
            row([](int32_t v) { return v >= 35000 && v < 37000 ? 40.0 + 0.125 * (v % 50) : 0.001 * (v % 997); });
            row([](int32_t v) { return v % 9000 == 8999 ? 2.0 : 1.0; });
            check_rows(rows_of(9, kVocabSize, topk, logits, f32));
        }
    }
}

// Rows so many that each has a block of its own, which reads them in several steps: the best logits stand in the last
// steps, equal to the very last one. The second kind of row makes the queue of a block overflow first.
TEST(draft_topk_late_ties) {
    constexpr int32_t kRows = 140;
    constexpr int32_t kVocabSize = 40003;
    for (const bool f32 : {true, false}) {
        for (const int32_t topk : {1, 2}) {
            std::vector<float> logits;
            for (int32_t row = 0; row < kRows; ++row) {
                for (int32_t v = 0; v < kVocabSize; ++v)
                    logits.push_back(v == 37000 || v == kVocabSize - 1 ? 5.0f
                                     : row % 2 == 0 || v < 12288       ? 0.0f
                                                                       : 4.0f);
            }
            check_rows(rows_of(kRows, kVocabSize, topk, logits, f32));
        }
    }
}

TEST(draft_topk_ties_go_by_lowest_id) {
    DraftTopkInput in = random_rows(7, 3, 5000, 300, true);
    for (float& logit : in.logits_f32) logit = std::floor(logit);
    std::fill_n(in.logits_f32.begin(), 5000, 1.5f);  // the whole first row
    check_rows(in);
    // Falling and rising rows.
    for (size_t v = 0; v < 5000; ++v) {
        in.logits_f32[v] = -0.01f * static_cast<float>(v);
        in.logits_f32[5000 + v] = 0.01f * static_cast<float>(v);
    }
    check_rows(in);
}

TEST(draft_topk_minus_infinity_is_ordinary) {
    DraftTopkInput in = random_rows(8, 2, 100, 10, true);
    for (size_t v = 4; v < 100; ++v) in.logits_f32[v] = -kInfinity;
    in.logits_f32[150] = -std::numeric_limits<float>::max();
    check_rows(in);
    // A row without any possible token.
    std::fill_n(in.logits_f32.begin(), 100, -kInfinity);
    const DraftTopkOutput got = run(in);
    CHECK_EQ(got.status, (Ints{0, 0}));
    CHECK_EQ(Ints(got.topk_token_ids.begin(), got.topk_token_ids.begin() + 10), (Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    for (size_t k = 0; k < 10; ++k) CHECK_EQ(got.topk_log_probs[k], -kInfinity);
}

TEST(draft_topk_one_sure_token) {
    DraftTopkInput in = random_rows(9, 1, 3000, 4, true);
    in.logits_f32[1234] = 3e38f;
    const DraftTopkOutput got = run(in);
    CHECK_EQ(got.topk_token_ids[0], 1234);
    CHECK_EQ(got.topk_log_probs[0], 0.0f);
    CHECK_EQ(got.status, Ints{0});
}

TEST(draft_topk_refuses_rows_and_leaves_neighbours) {
    for (const bool f32 : {true, false}) {
        const DraftTopkInput clean = random_rows(10, 5, 1500, 9, f32);
        const DraftTopkOutput wanted = run(clean);
        DraftTopkInput in = clean;
        const auto put = [&](size_t at, float logit) {
            if (f32)
                in.logits_f32[at] = logit;
            else
                in.logits_bf16[at] = bf16(logit);
        };
        put(0, kNan);
        put(2 * 1500 + 1499, kInfinity);
        put(4 * 1500 + 700, kNan);
        put(4 * 1500 + 701, kInfinity);
        const DraftTopkOutput got = run(in);
        CHECK_EQ(got.status, (Ints{KDT_REQ_NAN, 0, KDT_REQ_POSITIVE, 0, KDT_REQ_NAN | KDT_REQ_POSITIVE}));
        for (size_t i = 0; i < got.topk_log_probs.size(); ++i) {
            const bool refused = got.status[i / 9] != 0;
            CHECK_EQ(got.topk_token_ids[i], refused ? -1 : wanted.topk_token_ids[i]);
            CHECK_EQ(std::isnan(got.topk_log_probs[i]), refused);
            if (!refused) CHECK_EQ(got.topk_log_probs[i], wanted.topk_log_probs[i]);
        }
    }
}

// Whatever else a row holds, one NaN anywhere refuses it.
TEST(draft_topk_one_bad_logit) {
    for (const bool f32 : {true, false}) {
        for (const size_t at : {size_t{0}, size_t{8191}, size_t{8192}, size_t{40000}, size_t{40002}}) {
            for (const float bad : {kNan, kInfinity}) {
                std::vector<float> logits(2 * 40003, -kInfinity);
                logits[at] = bad;
                logits[40003 + 7] = -3e38f;
                const DraftTopkOutput got = run(rows_of(2, 40003, 3, logits, f32));
                CHECK_EQ(got.status, (Ints{std::isnan(bad) ? KDT_REQ_NAN : KDT_REQ_POSITIVE, 0}));
                CHECK_EQ(got.topk_token_ids, (Ints{-1, -1, -1, 7, 0, 1}));
                CHECK_EQ(got.topk_log_probs[3], 0.0f);
            }
        }
    }
}

TEST(draft_topk_no_rows) {
    CHECK(run(DraftTopkInput{0, 10, 3, {}, {}}).status.empty());
}
