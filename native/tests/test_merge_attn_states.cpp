// SPDX-License-Identifier: Apache-2.0
//
// merge_attn_states against double precision, its edges, and its use: a split attention put together again.
#include <algorithm>
#include <cmath>
#include <limits>

#include "calls.h"
#include "check.h"
#include "oracle.h"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint16_t kNan16 = 0x7FC0;

MergeAttnStatesInput random_input(uint64_t seed, int32_t rows, int32_t head_dim) {
    Random random(seed);
    MergeAttnStatesInput in = {};
    in.head_dim = head_dim;
    for (int32_t i = 0; i < rows * head_dim; ++i) {
        in.out_a.push_back(bf16(random.normal()));
        in.out_b.push_back(bf16(random.normal()));
    }
    for (int32_t i = 0; i < rows; ++i) {
        in.lse_a.push_back(4.0f * random.normal());
        in.lse_b.push_back(4.0f * random.normal());
    }
    return in;
}

MergeAttnStatesInput exchanged(const MergeAttnStatesInput& in) {
    return {in.head_dim, in.out_b, in.out_a, in.lse_b, in.lse_a};
}

// One rounding to bf16 of a sum whose weights are right to 1e-6.
void check_against_double(const MergeAttnStatesInput& in, const MergeAttnStatesOutput& got) {
    for (size_t row = 0; row < in.lse_a.size(); ++row) {
        const double a = in.lse_a[row], b = in.lse_b[row];
        const double lse = std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
        CHECK(std::abs(got.lse[row] - lse) <= 1e-6 * (1.0 + std::abs(lse)));
        for (size_t d = 0; d < static_cast<size_t>(in.head_dim); ++d) {
            const size_t i = row * static_cast<size_t>(in.head_dim) + d;
            const double x = std::exp(a - lse) * from_bf16(in.out_a[i]);
            const double y = std::exp(b - lse) * from_bf16(in.out_b[i]);
            CHECK(std::abs(from_bf16(got.out[i]) - (x + y)) <=
                  std::abs(x + y) / 256 + 4e-6 * (std::abs(x) + std::abs(y)));
        }
    }
}

}  // namespace

TEST(merge_attn_states_against_double) {
    for (const int32_t head_dim : {8, 16, 24, 64, 128, 192, 256, 264, 504, 512})
        for (const int32_t rows : {1, 7, 33}) {
            const MergeAttnStatesInput in = random_input(static_cast<uint64_t>(rows), rows, head_dim);
            check_against_double(in, run(in));
        }
    const MergeAttnStatesInput in = random_input(4, 1500, 512);
    check_against_double(in, run(in));
    CHECK(run(random_input(5, 0, 64)).out.empty());
}

TEST(merge_attn_states_is_commutative_and_works_in_place) {
    for (const int32_t head_dim : {40, 512}) {
        MergeAttnStatesInput in = random_input(10, 100, head_dim);
        in.lse_a[1] = in.lse_b[1];
        in.lse_a[2] = -kInfinity;
        in.lse_b[3] = -kInfinity;
        const MergeAttnStatesOutput got = run(in);
        CHECK(run(in) == got);
        CHECK(run(exchanged(in)) == got);
        CHECK(run(in, InPlace::a) == got);
        CHECK(run(in, InPlace::b) == got);
    }
}

TEST(merge_attn_states_a_side_that_saw_nothing_counts_for_nothing) {
    MergeAttnStatesInput in = random_input(20, 4, 64);
    in.lse_a = {-kInfinity, 2.5f, -kInfinity, -1e30f};
    in.lse_b = {-7.0f, -kInfinity, -kInfinity, -kInfinity};
    std::fill_n(in.out_a.begin(), 64, kNan16);
    std::fill_n(in.out_b.begin() + 64, 64, kNan16);
    for (auto* const side : {&in.out_a, &in.out_b}) std::fill_n(side->begin() + 128, 64, kNan16);
    in.out_b[5] = in.out_a[70] = 0x8000;  // -0
    for (const InPlace in_place : {InPlace::neither, InPlace::a, InPlace::b}) {
        const MergeAttnStatesOutput got = run(in, in_place);
        CHECK_EQ(got.lse, (std::vector<float>{-7.0f, 2.5f, -kInfinity, -1e30f}));
        for (size_t d = 0; d < 64; ++d) {
            CHECK_EQ(got.out[d], in.out_b[d]);
            CHECK_EQ(got.out[64 + d], in.out_a[64 + d]);
            CHECK_EQ(got.out[128 + d], uint16_t{0});
            CHECK_EQ(got.out[192 + d], in.out_a[192 + d]);
        }
    }
}

TEST(merge_attn_states_keeps_errors_visible) {
    MergeAttnStatesInput in = random_input(30, 7, 16);
    const MergeAttnStatesOutput clean = run(in);
    in.lse_a = {kNan, 1.0f, kNan, -kInfinity, kInfinity, 0.0f, in.lse_a[6]};
    in.lse_b = {1.0f, kNan, -kInfinity, kNan, 0.0f, kInfinity, in.lse_b[6]};
    const MergeAttnStatesOutput got = run(in);
    for (size_t row = 0; row < 6; ++row) {
        CHECK(std::isnan(got.lse[row]));
        for (size_t d = 0; d < 16; ++d) CHECK(std::isnan(from_bf16(got.out[row * 16 + d])));
    }
    // Of a side that saw something, a NaN reaches its own column.
    CHECK_EQ(got.lse[6], clean.lse[6]);
    in.out_a[6 * 16 + 3] = kNan16;
    const MergeAttnStatesOutput spoilt = run(in);
    for (size_t d = 0; d < 16; ++d) {
        CHECK_EQ(std::isnan(from_bf16(spoilt.out[6 * 16 + d])), d == 3);
        if (d != 3) CHECK_EQ(spoilt.out[6 * 16 + d], clean.out[6 * 16 + d]);
    }
}
