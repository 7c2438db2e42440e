// SPDX-License-Identifier: Apache-2.0
//
// verify_attn against double precision: ragged batches, arbitrary masks, garbage in every slot that nobody sees.
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
constexpr uint16_t kNan16 = 0x7FC0;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Shape {
    int32_t max_nodes, num_qo_heads, page_size;
    std::vector<int32_t> prefixes, num_nodes;  // one entry a request
};

// A random tree's mask rows; `density` of extra bits makes the mask arbitrary. Rows and bits of pads stay zero.
void fill_mask(Random& random, VerifyAttnInput& in, const std::vector<int32_t>& num_nodes, double density) {
    const size_t words = static_cast<size_t>(words_of(in.max_nodes));
    in.tree_mask.assign(static_cast<size_t>(in.batch) * in.max_nodes * words, 0);
    for (size_t b = 0; b < num_nodes.size(); ++b) {
        uint64_t* const mask = in.tree_mask.data() + b * in.max_nodes * words;
        for (int32_t i = 0; i < num_nodes[b]; ++i) {
            uint64_t* const row = mask + static_cast<size_t>(i) * words;
            if (i > 0) std::copy_n(mask + static_cast<size_t>(random.below(i)) * words, words, row);
            row[i / 64] |= uint64_t{1} << (i % 64);
            for (int32_t j = 0; density > 0 && j < num_nodes[b]; ++j)
                if (random.uniform() < density) row[j / 64] |= uint64_t{1} << (j % 64);
        }
    }
}

// A request's pages are shuffled among all, page tails and free pages hold NaN, and so do the queries of pads.
VerifyAttnInput random_input(uint64_t seed, const Shape& shape, double density = 0.0) {
    Random random(seed);
    VerifyAttnInput in = {};
    in.batch = static_cast<int32_t>(shape.prefixes.size());
    in.max_nodes = shape.max_nodes;
    in.num_qo_heads = shape.num_qo_heads;
    in.page_size = shape.page_size;
    in.softmax_scale = 0.0721687836f;
    in.seq_lens = shape.prefixes;
    in.num_nodes = shape.num_nodes;
    int32_t total = 0;
    for (size_t b = 0; b < shape.prefixes.size(); ++b) {
        const int32_t pages = (shape.prefixes[b] + shape.num_nodes[b] + shape.page_size - 1) / shape.page_size;
        in.max_pages_per_seq = std::max(in.max_pages_per_seq, pages);
        total += pages;
    }
    in.num_pages = total + 2;
    std::vector<int32_t> free(static_cast<size_t>(in.num_pages));
    std::iota(free.begin(), free.end(), 0);
    for (size_t k = free.size() - 1; k > 0; --k) std::swap(free[k], free[random.below(static_cast<int32_t>(k) + 1)]);

    fill_mask(random, in, shape.num_nodes, density);
    in.kv_cache.assign(static_cast<size_t>(in.num_pages) * in.page_size * (kRank + kRope), kNan16);
    in.block_table.assign(static_cast<size_t>(in.batch) * in.max_pages_per_seq,
                          -1);  // unused entries are not looked at
    for (size_t b = 0; b < shape.prefixes.size(); ++b) {
        const int32_t slots = shape.prefixes[b] + shape.num_nodes[b];
        int32_t* const table = in.block_table.data() + b * in.max_pages_per_seq;
        for (int32_t t = 0; t < slots; ++t) {
            if (t % in.page_size == 0) {
                table[t / in.page_size] = free.back();
                free.pop_back();
            }
            const size_t token = static_cast<size_t>(table[t / in.page_size]) * in.page_size + t % in.page_size;
            for (size_t d = 0; d < kRank + kRope; ++d) in.kv_cache[token * (kRank + kRope) + d] = bf16(random.normal());
        }
    }
    const size_t rows = static_cast<size_t>(in.batch) * in.max_nodes * in.num_qo_heads;
    in.q_nope.assign(rows * kRank, kNan16);
    in.q_pe.assign(rows * kRope, kNan16);
    for (size_t row = 0; row < rows; ++row) {
        const size_t node = row / static_cast<size_t>(in.num_qo_heads);
        if (static_cast<int32_t>(node % in.max_nodes) >= shape.num_nodes[node / in.max_nodes]) continue;
        for (size_t d = 0; d < kRank; ++d) in.q_nope[row * kRank + d] = bf16(random.normal());
        for (size_t d = 0; d < kRope; ++d) in.q_pe[row * kRope + d] = bf16(random.normal());
    }
    return in;
}

void check_against_double(const VerifyAttnInput& in, const VerifyAttnOutput& got) {
    const Attention wanted = attend(in);
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < got.out.size(); ++i) {
        const double difference = from_bf16(got.out[i]) - wanted.out[i];
        error += difference * difference;
        norm += wanted.out[i] * wanted.out[i];
        if (wanted.lse[i / kRank] == -kInfinity) CHECK_EQ(got.out[i], uint16_t{0});
    }
    CHECK(std::sqrt(error) <= 3e-3 * std::sqrt(norm));
    for (size_t row = 0; row < got.lse.size(); ++row)
        if (wanted.lse[row] == -kInfinity)
            CHECK_EQ(got.lse[row], -kInfinity);
        else
            CHECK(std::abs(got.lse[row] - wanted.lse[row]) <= 1e-3);
}

void check_shape(uint64_t seed, const Shape& shape, double density = 0.0) {
    const VerifyAttnInput in = random_input(seed, shape, density);
    const VerifyAttnOutput got = run(in);
    CHECK_EQ(got.status, std::vector<int32_t>(shape.prefixes.size(), 0));
    check_against_double(in, got);
}

}  // namespace

using Ints = std::vector<int32_t>;

TEST(verify_attn_ragged_batch_over_pages) {
    check_shape(1, {9, 8, 64, {0, 1, 63, 64, 65, 200}, {9, 1, 5, 8, 2, 7}});
    check_shape(2, {9, 16, 1, {0, 1, 17, 40}, {1, 9, 4, 6}});
    check_shape(3, {6, 3, 7, {5, 30}, {6, 3}});
    check_shape(4, {4, 128, 16, {33}, {4}});
    check_shape(5, {1, 1, 64, {0}, {1}});
}

TEST(verify_attn_tile_edges) {
    for (const int32_t nodes : {31, 32, 33, 63, 64, 65, 128, 129})
        check_shape(20, {nodes, 1, 32, {31, 0}, {nodes, nodes - 1}});
    check_shape(21, {257, 2, 64, {100}, {255}});
    check_shape(22, {1025, 1, 64, {3}, {1025}});
    check_shape(23, {2, 8, 64, {3000, 5}, {2, 1}});
}

// Enough rows that a GPU takes its largest tiles, unsplit and split.
TEST(verify_attn_many_rows) {
    check_shape(24, {17, 128, 64, {0, 1, 63, 64, 65, 100, 10, 31}, {17, 16, 3, 17, 9, 17, 17, 12}});
    check_shape(25, {4, 128, 16, {2000}, {4}});
}

TEST(verify_attn_arbitrary_masks) {
    check_shape(30, {70, 2, 16, {50, 3}, {70, 31}}, 0.3);
    check_shape(31, {40, 1, 16, {0}, {40}}, 0.9);
}

TEST(verify_attn_without_num_nodes_or_status) {
    VerifyAttnInput in = random_input(40, {8, 4, 8, {12, 20}, {8, 8}});
    in.num_nodes.clear();
    in.with_status = false;
    // Pads in the middle and at the end, known by their empty rows alone; nobody sees node 3.
    for (const size_t row : {3u, 7u, 8u + 5u}) in.tree_mask[row] = 0;
    for (size_t i = 0; i < 8; ++i) in.tree_mask[i] &= ~uint64_t{8};
    check_against_double(in, run(in));
}

TEST(verify_attn_ignores_what_nobody_may_see) {
    const Shape shape = {12, 4, 8, {21, 6}, {7, 12}};
    VerifyAttnInput in = random_input(50, shape);
    const VerifyAttnOutput wanted = run(in);
    // A column masked for every row may hold NaN; its own row then has to go, so it becomes a pad.
    VerifyAttnInput masked = in;
    for (size_t i = 0; i < 12; ++i) masked.tree_mask[i] &= ~uint64_t{16};
    masked.tree_mask[4] = 0;
    VerifyAttnInput poisoned = masked;
    const size_t slot = 21 + 4;
    const size_t token = static_cast<size_t>(in.block_table[slot / 8]) * 8 + slot % 8;
    std::fill_n(poisoned.kv_cache.begin() + token * (kRank + kRope), kRank + kRope, kNan16);
    const VerifyAttnOutput clean = run(masked);
    CHECK(run(poisoned) == clean);
    check_against_double(masked, clean);
    // A node's NaN reaches those who see it and nobody else: node 4 is seen by some rows of the tree only.
    VerifyAttnInput partly = in;
    partly.kv_cache = poisoned.kv_cache;
    const VerifyAttnOutput got = run(partly);
    int touched = 0, untouched = 0;
    for (size_t row = 0; row < got.lse.size(); ++row) {
        const bool sees = row / 4 < 7 && (in.tree_mask[row / 4] >> 4 & 1) != 0;
        (sees ? touched : untouched)++;
        CHECK_EQ(std::isnan(got.lse[row]), sees);
        if (!sees) CHECK_EQ(got.lse[row], wanted.lse[row]);
    }
    CHECK(touched > 0 && untouched > 0);
    // Bits and rows of pads count for nothing.
    VerifyAttnInput bits = in;
    for (size_t i = 0; i < 12; ++i) bits.tree_mask[i] |= uint64_t{0xF80};
    CHECK(run(bits) == wanted);
}

TEST(verify_attn_refuses_requests_and_leaves_neighbours) {
    const VerifyAttnInput clean = random_input(60, {5, 2, 4, {9, 14, 3, 8, 10}, {5, 5, 5, 5, 5}});
    const VerifyAttnOutput wanted = run(clean);
    const int32_t far = std::numeric_limits<int32_t>::max();
    const auto check_refused = [&](const VerifyAttnInput& in, const Ints& status) {
        const VerifyAttnOutput got = run(in);
        CHECK_EQ(got.status, status);
        const size_t per_request = 5 * 2;
        for (size_t row = 0; row < got.lse.size(); ++row) {
            const bool refused = status[row / per_request] != 0;
            CHECK_EQ(got.lse[row], refused ? -kInfinity : wanted.lse[row]);
            for (size_t d = 0; d < kRank; ++d)
                CHECK_EQ(got.out[row * kRank + d], refused ? uint16_t{0} : wanted.out[row * kRank + d]);
        }
    };
    VerifyAttnInput in = clean;
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

// Slots of the prefix may then hold anything, and so may the table's entries for pages of theirs alone.
TEST(verify_attn_tail_only_leaves_the_prefix_out) {
    for (const Shape& shape : {Shape{9, 8, 16, {0, 1, 63, 64, 65, 200}, {9, 1, 5, 8, 2, 7}},
                               Shape{70, 3, 1, {31, 0}, {70, 64}}, Shape{1025, 1, 64, {130}, {1025}}}) {
        VerifyAttnInput in = random_input(90, shape);
        in.tail_only = true;
        in.tree_mask[0] = 0;  // a row that sees nothing
        const VerifyAttnOutput got = run(in);
        CHECK_EQ(got.status, Ints(shape.prefixes.size(), 0));
        CHECK_EQ(got.lse[0], -kInfinity);
        check_against_double(in, got);
        VerifyAttnInput bare = in;
        for (size_t b = 0; b < shape.prefixes.size(); ++b) {
            int32_t* const table = bare.block_table.data() + b * bare.max_pages_per_seq;
            for (int32_t t = 0; t < shape.prefixes[b]; ++t) {
                const size_t token = static_cast<size_t>(in.block_table[b * static_cast<size_t>(in.max_pages_per_seq) +
                                                                        static_cast<size_t>(t / in.page_size)]) *
                                         in.page_size +
                                     static_cast<size_t>(t % in.page_size);
                std::fill_n(bare.kv_cache.begin() + token * (kRank + kRope), kRank + kRope, kNan16);
                if (t / in.page_size < shape.prefixes[b] / in.page_size) table[t / in.page_size] = -7;
            }
        }
        CHECK(run(bare) == got);
    }
}

TEST(verify_attn_tail_only_still_checks_lengths_and_its_own_pages) {
    VerifyAttnInput in = random_input(91, {5, 2, 4, {9, 14, 3, 8, 10}, {5, 5, 5, 5, 5}});
    in.tail_only = true;
    const VerifyAttnOutput wanted = run(in);
    const size_t pages = static_cast<size_t>(in.max_pages_per_seq);
    in.seq_lens[0] = -1;
    in.seq_lens[2] = in.max_pages_per_seq * 4 - 4;  // one slot too many
    in.block_table[1 * pages + 3] = -1;             // slots 12 .. 15: the page of the last prefix slots and the root
    in.block_table[3 * pages + 1] = -1;             // slots 4 .. 7: prefix alone
    in.block_table[4 * pages + 3] = in.num_pages;   // slots 12 .. 15: the tree's last
    const VerifyAttnOutput got = run(in);
    CHECK_EQ(got.status, (Ints{KDT_REQ_BAD_LENGTH, KDT_REQ_BAD_PAGE, KDT_REQ_BAD_LENGTH, 0, KDT_REQ_BAD_PAGE}));
    for (size_t row = 0; row < got.lse.size(); ++row) {
        const bool refused = got.status[row / 10] != 0;
        CHECK_EQ(got.lse[row], refused ? -kInfinity : wanted.lse[row]);
        for (size_t d = 0; d < kRank; ++d)
            CHECK_EQ(got.out[row * kRank + d], refused ? uint16_t{0} : wanted.out[row * kRank + d]);
    }
}

TEST(verify_attn_requests_may_share_pages_and_permute) {
    VerifyAttnInput in = random_input(70, {6, 2, 4, {16, 16, 8}, {6, 4, 5}});
    // The second request's prefix is the first one's.
    const size_t pages = static_cast<size_t>(in.max_pages_per_seq);
    for (size_t k = 0; k < 4; ++k) in.block_table[pages + k] = in.block_table[k];
    const VerifyAttnOutput got = run(in);
    check_against_double(in, got);
    CHECK(run(in) == got);

    const auto swap_requests = [](auto& values, size_t each) {
        std::swap_ranges(values.begin(), values.begin() + each, values.begin() + 2 * each);
    };
    VerifyAttnInput swapped = in;
    swap_requests(swapped.q_nope, 12 * kRank);
    swap_requests(swapped.q_pe, 12 * kRope);
    swap_requests(swapped.block_table, pages);
    swap_requests(swapped.seq_lens, 1);
    swap_requests(swapped.tree_mask, 6);
    swap_requests(swapped.num_nodes, 1);
    VerifyAttnOutput wanted = got;
    swap_requests(wanted.out, 12 * kRank);
    swap_requests(wanted.lse, 12);
    CHECK(run(swapped) == wanted);
}

// Splits whose partial results are NaN must not pass for splits that saw nothing.
TEST(verify_attn_nan_stays_visible_over_a_long_prefix) {
    VerifyAttnInput in = random_input(75, {4, 2, 64, {3000}, {4}});
    const VerifyAttnOutput wanted = run(in);
    in.q_nope[(1 * 2 + 1) * kRank + 17] = kNan16;
    const VerifyAttnOutput got = run(in);
    for (size_t row = 0; row < 8; ++row) {
        CHECK_EQ(std::isnan(got.lse[row]), row == 3);
        if (row != 3) CHECK_EQ(got.lse[row], wanted.lse[row]);
        for (size_t d = 0; d < kRank; ++d) CHECK_EQ(std::isnan(from_bf16(got.out[row * kRank + d])), row == 3);
    }
}

TEST(verify_attn_far_apart_scores) {
    // Scores of several hundred: only a running maximum keeps them finite.
    VerifyAttnInput in = random_input(80, {4, 2, 16, {100, 300}, {4, 3}});
    in.softmax_scale = 4.0f;
    check_against_double(in, run(in));
}

TEST(verify_attn_slot_tile_edges) {
    // Prefix and tree end before, at and behind multiples of 64 slots, on pages that are multiples of 64 and not.
    for (const int32_t page_size : {64, 128, 32, 16, 3, 1}) {
        check_shape(90, {9, 8, page_size, {0, 1, 55, 56, 63, 64}, {9, 9, 9, 8, 1, 9}});
        check_shape(91, {65, 3, page_size, {65, 127, 128, 129}, {65, 64, 1, 63}});
    }
    check_shape(92, {130, 1, 192, {70}, {129}}, 0.01);
    check_shape(93, {2, 128, 64, {700, 64}, {2, 1}});
}

namespace {

// Whether the library takes the call on this GPU, from the workspace query.
kdt_status ask_for_path(const VerifyAttnInput& in, int32_t path) {
    kdt_verify_attn_params p = {};
    p.struct_size = sizeof(p);
    p.batch = in.batch;
    p.max_nodes = in.max_nodes;
    p.num_qo_heads = in.num_qo_heads;
    p.kv_lora_rank = KDT_KV_LORA_RANK;
    p.qk_rope_head_dim = KDT_QK_ROPE_HEAD_DIM;
    p.num_pages = in.num_pages;
    p.page_size = in.page_size;
    p.max_pages_per_seq = in.max_pages_per_seq;
    p.softmax_scale = in.softmax_scale;
    p.path = path;
    size_t bytes = 0;
    return kdt_verify_attn_workspace_size(&p, &bytes);
}

void check_close(const VerifyAttnOutput& a, const VerifyAttnOutput& b) {
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < a.out.size(); ++i) {
        const double difference = from_bf16(a.out[i]) - from_bf16(b.out[i]);
        error += difference * difference;
        norm += from_bf16(a.out[i]) * from_bf16(a.out[i]);
    }
    CHECK(std::sqrt(error) <= 4e-3 * std::sqrt(norm));
    for (size_t row = 0; row < a.lse.size(); ++row)
        CHECK(a.lse[row] == b.lse[row] || std::abs(a.lse[row] - b.lse[row]) <= 1e-3);
    CHECK_EQ(a.status, b.status);
}

}  // namespace

TEST(verify_attn_paths_agree) {
    for (const int32_t page_size : {64, 16}) {
        for (const bool tail_only : {false, true}) {
            VerifyAttnInput in = random_input(95, {40, 7, page_size, {900, 0, 130}, {40, 33, 1}}, 0.05);
            in.tail_only = tail_only;
            in.path = KDT_ATTN_PORTABLE;
            CHECK_EQ(ask_for_path(in, KDT_ATTN_PORTABLE), KDT_OK);
            const VerifyAttnOutput portable = run(in);
            if (ask_for_path(in, KDT_ATTN_HOPPER) != KDT_OK) {
                CHECK_EQ(ask_for_path(in, KDT_ATTN_HOPPER), KDT_UNSUPPORTED);
                throw check::Skipped("no Hopper path here");
            }
            in.path = KDT_ATTN_HOPPER;
            check_close(portable, run(in));
        }
    }
}

TEST(verify_attn_empty_batch) {
    VerifyAttnInput in = {};
    in.max_nodes = in.num_qo_heads = in.num_pages = in.page_size = in.max_pages_per_seq = 1;
    in.softmax_scale = 1.0f;
    CHECK(run(in).out.empty());
}
