// SPDX-License-Identifier: Apache-2.0
//
// verify_mla's two modes against keys and values of every head in double precision, with garbage in every slot that
// nobody sees, and against each other.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "calls.h"
#include "check.h"
#include "oracle.h"

namespace {

constexpr size_t kRank = KDT_KV_LORA_RANK;
constexpr size_t kRope = KDT_QK_ROPE_HEAD_DIM;
constexpr size_t kNope = KDT_QK_NOPE_HEAD_DIM;
constexpr size_t kValue = KDT_V_HEAD_DIM;
constexpr size_t kLatent = kRank + kRope;
constexpr uint16_t kNan16 = 0x7FC0;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Shape {
    int32_t max_nodes, num_qo_heads, page_size;
    std::vector<int32_t> prefixes, num_nodes;  // one entry a request
};

std::vector<uint16_t> normals(Random& random, size_t count, float scale) {
    std::vector<uint16_t> values(count);
    for (uint16_t& value : values) value = bf16(random.normal() * scale);
    return values;
}

// Random trees, in which siblings see little of each other; pages shuffled; NaN in page tails and in queries of pads.
VerifyMlaInput random_input(uint64_t seed, const Shape& shape) {
    Random random(seed);
    VerifyMlaInput in = {};
    in.batch = static_cast<int32_t>(shape.prefixes.size());
    in.max_nodes = shape.max_nodes;
    in.num_qo_heads = shape.num_qo_heads;
    in.page_size = shape.page_size;
    in.softmax_scale = 0.0721687836f;
    in.seq_lens = shape.prefixes;
    in.num_nodes = shape.num_nodes;
    for (size_t b = 0; b < shape.prefixes.size(); ++b) {
        const int32_t pages = (shape.prefixes[b] + shape.num_nodes[b] + in.page_size - 1) / in.page_size;
        in.max_pages_per_seq = std::max(in.max_pages_per_seq, pages);
        in.num_pages += pages;
    }
    std::vector<int32_t> free(static_cast<size_t>(in.num_pages));
    std::iota(free.begin(), free.end(), 0);
    for (size_t k = free.size() - 1; k > 0; --k) std::swap(free[k], free[random.below(static_cast<int32_t>(k) + 1)]);
    in.kv_cache.assign(free.size() * in.page_size * kLatent, kNan16);
    in.block_table.assign(static_cast<size_t>(in.batch) * in.max_pages_per_seq, -1);

    const size_t heads = static_cast<size_t>(in.num_qo_heads);
    const size_t words = static_cast<size_t>(words_of(in.max_nodes));
    const size_t rows = static_cast<size_t>(in.batch) * in.max_nodes * heads;
    in.tree_mask.assign(rows / heads * words, 0);
    in.q_nope.assign(rows * kNope, kNan16);
    in.q_pe.assign(rows * kRope, kNan16);
    in.w_uk = normals(random, heads * kNope * kRank, 0.044f);
    in.w_uv = normals(random, heads * kRank * kValue, 0.044f);
    for (size_t b = 0; b < shape.prefixes.size(); ++b) {
        int32_t* const table = in.block_table.data() + b * in.max_pages_per_seq;
        for (int32_t t = 0; t < shape.prefixes[b] + shape.num_nodes[b]; ++t) {
            if (t % in.page_size == 0) {
                table[t / in.page_size] = free.back();
                free.pop_back();
            }
            const size_t token = static_cast<size_t>(table[t / in.page_size]) * in.page_size + t % in.page_size;
            const std::vector<uint16_t> latent = normals(random, kLatent, 1.0f);
            std::copy(latent.begin(), latent.end(), in.kv_cache.begin() + token * kLatent);
        }
        for (int32_t i = 0; i < shape.num_nodes[b]; ++i) {
            const size_t node = b * in.max_nodes + static_cast<size_t>(i);
            uint64_t* const mask = in.tree_mask.data() + node * words;
            if (i > 0) std::copy_n(mask - words * static_cast<size_t>(1 + random.below(std::min(i, 9))), words, mask);
            mask[i / 64] |= uint64_t{1} << (i % 64);
            const std::vector<uint16_t> query = normals(random, heads * (kNope + kRope), 1.0f);
            std::copy_n(query.begin(), heads * kNope, in.q_nope.begin() + node * heads * kNope);
            std::copy_n(query.begin() + heads * kNope, heads * kRope, in.q_pe.begin() + node * heads * kRope);
        }
    }
    return in;
}

double dot(const uint16_t* a, const double* b, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; ++i) sum += from_bf16(a[i]) * b[i];
    return sum;
}

// Keys and values of every head, and plain softmax over the slots that a node sees. For sound requests.
Attention attend_plain(const VerifyMlaInput& in) {
    const size_t heads = static_cast<size_t>(in.num_qo_heads);
    const size_t rows = static_cast<size_t>(in.batch) * in.max_nodes * heads;
    Attention answer = {std::vector<double>(rows * kValue, 0.0), std::vector<double>(rows, -kInfinity)};
    for (size_t b = 0; b < static_cast<size_t>(in.batch); ++b) {
        const int32_t prefix = in.seq_lens[b];
        const int32_t real = in.num_nodes.empty() ? in.max_nodes : in.num_nodes[b];
        const size_t slots = static_cast<size_t>(prefix + real);
        for (size_t h = 0; h < heads; ++h) {
            std::vector<double> keys(slots * (kNope + kRope)), values(slots * kValue, 0.0);
            for (size_t t = 0; t < slots; ++t) {
                const size_t page_size = static_cast<size_t>(in.page_size);
                const size_t page =
                    static_cast<size_t>(in.block_table[b * static_cast<size_t>(in.max_pages_per_seq) + t / page_size]);
                double latent[kLatent];
                for (size_t r = 0; r < kLatent; ++r)
                    latent[r] = from_bf16(in.kv_cache[(page * page_size + t % page_size) * kLatent + r]);
                double* const key = keys.data() + t * (kNope + kRope);
                for (size_t d = 0; d < kNope; ++d) key[d] = dot(&in.w_uk[(h * kNope + d) * kRank], latent, kRank);
                std::copy(latent + kRank, latent + kLatent, key + kNope);
                for (size_t r = 0; r < kRank; ++r)
                    for (size_t d = 0; d < kValue; ++d)
                        values[t * kValue + d] += latent[r] * from_bf16(in.w_uv[(h * kRank + r) * kValue + d]);
            }
            for (int32_t i = 0; i < real; ++i) {
                const size_t node = b * in.max_nodes + static_cast<size_t>(i);
                const uint64_t* const mask = in.tree_mask.data() + node * static_cast<size_t>(words_of(in.max_nodes));
                std::vector<size_t> seen;
                for (int32_t j = 0; j < real; ++j)
                    if ((mask[j / 64] >> (j % 64) & 1) != 0) seen.push_back(static_cast<size_t>(prefix + j));
                if (seen.empty()) continue;
                for (int32_t t = 0; t < prefix; ++t) seen.push_back(static_cast<size_t>(t));
                const size_t row = node * heads + h;
                std::vector<double> scores;
                for (const size_t t : seen) {
                    const double* const key = keys.data() + t * (kNope + kRope);
                    scores.push_back(in.softmax_scale * (dot(&in.q_nope[row * kNope], key, kNope) +
                                                         dot(&in.q_pe[row * kRope], key + kNope, kRope)));
                }
                const double top = *std::max_element(scores.begin(), scores.end());
                double sum = 0.0;
                for (double& score : scores) sum += score = std::exp(score - top);
                for (size_t k = 0; k < seen.size(); ++k)
                    for (size_t d = 0; d < kValue; ++d)
                        answer.out[row * kValue + d] += scores[k] / sum * values[seen[k] * kValue + d];
                answer.lse[row] = top + std::log(sum);
            }
        }
    }
    return answer;
}

void check_against_double(const Attention& wanted, const VerifyAttnOutput& got) {
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < got.out.size(); ++i) {
        const double difference = from_bf16(got.out[i]) - wanted.out[i];
        error += difference * difference;
        norm += wanted.out[i] * wanted.out[i];
        if (wanted.lse[i / kValue] == -kInfinity) CHECK_EQ(got.out[i], uint16_t{0});
    }
    CHECK(std::sqrt(error) <= 6e-3 * std::sqrt(norm));
    for (size_t row = 0; row < got.lse.size(); ++row)
        if (wanted.lse[row] == -kInfinity)
            CHECK_EQ(got.lse[row], -kInfinity);
        else
            CHECK(std::abs(got.lse[row] - wanted.lse[row]) <= 1e-2);
}

constexpr int32_t kModes[] = {KDT_MLA_ABSORB, KDT_MLA_MHA};

void check_shape(uint64_t seed, const Shape& shape) {
    VerifyMlaInput in = random_input(seed, shape);
    const Attention wanted = attend_plain(in);
    for (const int32_t mode : kModes) {
        in.mode = mode;
        const VerifyAttnOutput got = run(in);
        CHECK_EQ(got.status, std::vector<int32_t>(shape.prefixes.size(), 0));
        check_against_double(wanted, got);
        CHECK(run(in) == got);
    }
}

}  // namespace

using Ints = std::vector<int32_t>;

TEST(verify_mla_ragged_batch_over_pages) {
    check_shape(1, {9, 2, 64, {0, 1, 63, 64, 65}, {9, 1, 5, 8, 2}});
    check_shape(2, {9, 3, 1, {0, 1, 17}, {1, 9, 4}});
    check_shape(3, {1, 1, 64, {0}, {1}});
}

TEST(verify_mla_tile_edges) {
    for (const int32_t nodes : {63, 64, 65, 128, 129}) check_shape(20, {nodes, 1, 32, {31, 0}, {nodes, nodes - 1}});
    check_shape(21, {2, 1, 64, {900}, {2}});
}

TEST(verify_mla_without_num_nodes_or_status) {
    VerifyMlaInput in = random_input(40, {8, 2, 8, {12, 20}, {8, 8}});
    in.num_nodes.clear();
    in.with_status = false;
    // Pads in the middle and at the end, known by their empty rows alone; nobody sees node 3.
    for (const size_t row : {3u, 7u, 8u + 5u}) in.tree_mask[row] = 0;
    for (size_t i = 0; i < 8; ++i) in.tree_mask[i] &= ~uint64_t{8};
    const Attention wanted = attend_plain(in);
    for (const int32_t mode : kModes) {
        in.mode = mode;
        check_against_double(wanted, run(in));
    }
}

TEST(verify_mla_nan_reaches_those_who_see_it_and_nobody_else) {
    VerifyMlaInput in = random_input(50, {12, 2, 8, {21, 6}, {7, 12}});
    for (const int32_t mode : kModes) {
        in.mode = mode;
        const VerifyAttnOutput wanted = run(in);
        VerifyMlaInput poisoned = in;
        const size_t slot = 21 + 4;
        const size_t token = static_cast<size_t>(in.block_table[slot / 8]) * 8 + slot % 8;
        std::fill_n(poisoned.kv_cache.begin() + token * kLatent, kLatent, kNan16);
        const VerifyAttnOutput got = run(poisoned);
        int touched = 0, untouched = 0;
        for (size_t row = 0; row < got.lse.size(); ++row) {
            const bool sees = row / 2 < 7 && (in.tree_mask[row / 2] >> 4 & 1) != 0;
            (sees ? touched : untouched)++;
            CHECK_EQ(std::isnan(got.lse[row]), sees);
            if (!sees) CHECK_EQ(got.lse[row], wanted.lse[row]);
        }
        CHECK(touched > 0 && untouched > 0);
        // Bits and rows of pads count for nothing.
        VerifyMlaInput bits = in;
        for (size_t i = 0; i < 12; ++i) bits.tree_mask[i] |= uint64_t{0xF80};
        CHECK(run(bits) == wanted);
    }
}

TEST(verify_mla_refuses_requests_and_leaves_neighbours) {
    VerifyMlaInput clean = random_input(60, {5, 2, 4, {9, 14, 3, 8, 10}, {5, 5, 5, 5, 5}});
    const int32_t far = std::numeric_limits<int32_t>::max();
    for (const int32_t mode : kModes) {
        clean.mode = mode;
        const VerifyAttnOutput wanted = run(clean);
        const auto check_refused = [&](const VerifyMlaInput& in, const Ints& status) {
            const VerifyAttnOutput got = run(in);
            CHECK_EQ(got.status, status);
            const size_t per_request = 5 * 2;
            for (size_t row = 0; row < got.lse.size(); ++row) {
                const bool refused = status[row / per_request] != 0;
                CHECK_EQ(got.lse[row], refused ? -kInfinity : wanted.lse[row]);
                for (size_t d = 0; d < kValue; ++d)
                    CHECK_EQ(got.out[row * kValue + d], refused ? uint16_t{0} : wanted.out[row * kValue + d]);
            }
        };
        VerifyMlaInput in = clean;
        in.seq_lens[0] = -1;
        in.seq_lens[2] = far;
        in.seq_lens[4] = in.max_pages_per_seq * 4 - 4;  // one slot too many
        check_refused(in, {KDT_REQ_BAD_LENGTH, 0, KDT_REQ_BAD_LENGTH, 0, KDT_REQ_BAD_LENGTH});
        in = clean;
        in.num_nodes = {0, 5, -7, 6, far};
        check_refused(in, {KDT_REQ_BAD_COUNT, 0, KDT_REQ_BAD_COUNT, KDT_REQ_BAD_COUNT, KDT_REQ_BAD_COUNT});
        in = clean;
        const size_t pages = static_cast<size_t>(in.max_pages_per_seq);
        in.block_table[0 * pages + 0] = -1;
        in.block_table[1 * pages + 4] = in.num_pages;  // the last page needed: slot 18
        in.block_table[3 * pages + 1] = far;
        check_refused(in, {KDT_REQ_BAD_PAGE, KDT_REQ_BAD_PAGE, 0, KDT_REQ_BAD_PAGE, 0});
    }
}

TEST(verify_mla_auto_is_the_cheaper_mode) {
    VerifyMlaInput in = random_input(70, {6, 2, 4, {16, 8}, {6, 5}});
    kdt_verify_mla_params p = {};
    p.struct_size = sizeof(p);
    p.batch = in.batch;
    p.max_nodes = in.max_nodes;
    p.num_qo_heads = in.num_qo_heads;
    p.qk_nope_head_dim = KDT_QK_NOPE_HEAD_DIM;
    p.qk_rope_head_dim = KDT_QK_ROPE_HEAD_DIM;
    p.kv_lora_rank = KDT_KV_LORA_RANK;
    p.v_head_dim = KDT_V_HEAD_DIM;
    p.num_pages = in.num_pages;
    p.page_size = in.page_size;
    p.max_pages_per_seq = in.max_pages_per_seq;
    p.softmax_scale = in.softmax_scale;
    kdt_verify_mla_costs costs = {};
    costs.struct_size = sizeof(costs);
    CHECK_EQ(kdt_verify_mla_cost(&p, &costs), KDT_OK);
    CHECK_EQ(costs.mode, costs.mha_seconds < costs.absorb_seconds ? KDT_MLA_MHA : KDT_MLA_ABSORB);
    const VerifyAttnOutput automatic = run(in);
    in.mode = costs.mode;
    CHECK(run(in) == automatic);
}

TEST(verify_mla_empty_batch) {
    for (const int32_t mode : kModes) {
        VerifyMlaInput in = {};
        in.max_nodes = in.num_qo_heads = in.num_pages = in.page_size = in.max_pages_per_seq = 1;
        in.mode = mode;
        in.softmax_scale = 1.0f;
        CHECK(run(in).out.empty());
    }
}
