// SPDX-License-Identifier: Apache-2.0
//
// tree_build: golden vectors, brute force, edges and malformed inputs.
#include <cmath>
#include <limits>

#include "calls.h"
#include "check.h"
#include "core/path_mass.h"
#include "oracle.h"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> logs(std::vector<double> probabilities) {
    std::vector<float> out;
    for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p)));
    return out;
}

// The three-level example: probabilities .6 .3 .1 / .55 .25 .2 / .7 .2 .1, budget 7.
TreeBuildInput three_levels() {
    return {1,     3,   3, 7, logs({.6, .3, .1, .55, .25, .2, .7, .2, .1}), {11, 12, 13, 21, 22, 23, 31, 32, 33},
            {900}, {40}};
}

void check_near(const std::vector<float>& actual, const std::vector<float>& wanted) {
    CHECK_EQ(actual.size(), wanted.size());
    for (size_t i = 0; i < actual.size(); ++i)
        if (actual[i] != wanted[i] && !(std::abs(actual[i] - wanted[i]) <= 1e-6f)) CHECK_EQ(actual, wanted);
}

}  // namespace

using Ints = std::vector<int32_t>;
using Words = std::vector<uint64_t>;

TEST(tree_build_three_levels) {
    const TreeBuildOutput tree = run(three_levels());
    CHECK_EQ(tree.token_ids, (Ints{900, 11, 21, 12, 31, 21, 22, 23}));
    CHECK_EQ(tree.parents, (Ints{-1, 0, 1, 0, 2, 3, 1, 1}));
    CHECK_EQ(tree.depths, (Ints{0, 1, 2, 1, 3, 2, 2, 2}));
    CHECK_EQ(tree.positions, (Ints{40, 41, 42, 41, 43, 42, 42, 42}));
    CHECK_EQ(tree.first_child, (Ints{1, 2, 4, 5, -1, -1, -1, -1}));
    CHECK_EQ(tree.next_sibling, (Ints{-1, 3, 6, -1, -1, -1, 7, -1}));
    CHECK_EQ(tree.tree_mask, (Words{1, 3, 7, 9, 23, 41, 67, 131}));
    CHECK_EQ(tree.num_nodes, (Ints{8}));
    // Column 2 was taken at depth 2, and a wider row might have had a better node there.
    CHECK_EQ(tree.status, (Ints{KDT_REQ_TRUNCATED}));
    CHECK_EQ(tree.dfs_order, (Ints{0, 1, 2, 4, 6, 7, 3, 5}));
    check_near(tree.scores, {0.0f, -.510825634f, -1.108662605f, -1.203972816f, -1.465337515f, -1.801809788f,
                             -1.897119999f, -2.120263577f});
    check_near(tree.expected_lengths, {1, 1.6f, 1.93f, 2.23f, 2.461f, 2.626f, 2.776f, 2.896f});
}

TEST(tree_build_ties_go_by_rank_tuple) {
    const TreeBuildOutput tree = run(TreeBuildInput{1, 2, 2, 6, {-1, -2, -1, -2}, {1, 2, 3, 4}, {9}, {0}});
    CHECK_EQ(tree.parents, (Ints{-1, 0, 1, 0, 1, 3, 3}));
    CHECK_EQ(tree.scores, (std::vector<float>{0, -1, -2, -2, -3, -3, -4}));
    CHECK_EQ(tree.first_child, (Ints{1, 2, -1, 5, -1, -1, -1}));
    CHECK_EQ(tree.next_sibling, (Ints{-1, 3, 4, -1, -1, 6, -1}));
    CHECK_EQ(tree.tree_mask, (Words{1, 3, 7, 9, 19, 41, 73}));
    const TreeBuildOutput flat = run(TreeBuildInput{1, 2, 2, 6, {-1, -1, -1, -1}, {1, 2, 3, 4}, {9}, {0}});
    CHECK_EQ(flat.parents, (Ints{-1, 0, 0, 1, 1, 2, 2}));
}

TEST(tree_build_runs_out_of_candidates) {
    const TreeBuildOutput tree = run(TreeBuildInput{1, 1, 2, 4, logs({.75, .25}), {5, 6}, {9}, {100}});
    CHECK_EQ(tree.num_nodes, (Ints{3}));
    CHECK_EQ(tree.status, (Ints{KDT_REQ_SHORT_TREE | KDT_REQ_TRUNCATED}));
    CHECK_EQ(tree.token_ids, (Ints{9, 5, 6, 0, 0}));
    CHECK_EQ(tree.parents, (Ints{-1, 0, 0, -1, -1}));
    CHECK_EQ(tree.depths, (Ints{0, 1, 1, 0, 0}));
    CHECK_EQ(tree.positions, (Ints{100, 101, 101, 100, 100}));
    CHECK_EQ(tree.first_child, (Ints{1, -1, -1, -1, -1}));
    CHECK_EQ(tree.next_sibling, (Ints{-1, 2, -1, -1, -1}));
    CHECK_EQ(tree.tree_mask, (Words{1, 3, 5, 0, 0}));
    CHECK_EQ(tree.dfs_order, (Ints{0, 1, 2, -1, -1}));
    check_near(tree.scores, {0.0f, -.287682f, -1.386294f, -kInfinity, -kInfinity});
}

TEST(tree_build_minus_infinity_ends_a_row) {
    const std::vector<float> rows = {-.1f, -kInfinity, -kInfinity, -.2f, -3.0f, -kInfinity};
    const TreeBuildOutput tree = run(TreeBuildInput{1, 2, 3, 8, rows, {1, 2, 3, 4, 5, 6}, {9}, {0}});
    CHECK_EQ(tree.num_nodes, (Ints{4}));
    CHECK_EQ(tree.status, (Ints{KDT_REQ_SHORT_TREE}));
    CHECK_EQ(Ints(tree.token_ids.begin(), tree.token_ids.begin() + 4), (Ints{9, 1, 4, 5}));
    CHECK_EQ(Ints(tree.parents.begin(), tree.parents.begin() + 4), (Ints{-1, 0, 1, 1}));
    check_near({tree.scores.begin(), tree.scores.begin() + 4}, {0.0f, -.1f, -.3f, -3.1f});
}

TEST(tree_build_floor_counts_as_minus_infinity) {
    const float below = std::nextafter(KDT_LOG_PROB_FLOOR, -100.0f);
    // The floor itself is usable; below it ends the row, a finite later entry included.
    const TreeBuildOutput tree = run(TreeBuildInput{
        2, 1, 3, 3, {-1, KDT_LOG_PROB_FLOOR, below, -1, below, -64}, {1, 2, 3, 4, 5, 6}, {9, 9}, {0, 0}});
    CHECK_EQ(tree.num_nodes, (Ints{3, 2}));
    CHECK_EQ(tree.scores[2], KDT_LOG_PROB_FLOOR);
}

TEST(tree_build_root_only) {
    TreeBuildInput no_budget = three_levels();
    no_budget.tree_budget = 0;
    TreeBuildOutput tree = run(no_budget);
    CHECK_EQ(tree.token_ids, (Ints{900}));
    CHECK_EQ(tree.tree_mask, (Words{1}));
    CHECK_EQ(tree.status, (Ints{0}));
    CHECK_EQ(tree.dfs_order, (Ints{0}));
    tree = run(TreeBuildInput{1, 0, 4, 3, {}, {}, {900}, {40}});
    CHECK_EQ(tree.num_nodes, (Ints{1}));
    CHECK_EQ(tree.status, (Ints{KDT_REQ_SHORT_TREE}));
    CHECK_EQ(tree.positions, (Ints{40, 40, 40, 40}));
}

TEST(tree_build_refuses_a_request_and_leaves_its_neighbours) {
    Random random(7);
    const TreeBuildInput clean = random_tree_input(random, 5, 4, 6, 40, 2.0f, 0);
    const TreeBuildOutput wanted = run(clean);
    TreeBuildInput bad = clean;
    const size_t block = 4 * 6;
    bad.topk_log_probs[0 * block + 23] = kNan;  // the very last entry counts too
    bad.topk_log_probs[2 * block + 5] = 1e-30f;
    bad.topk_log_probs[3 * block + 7] = kInfinity;
    bad.topk_log_probs[3 * block + 8] = kNan;
    const TreeBuildOutput got = run(bad);
    CHECK_EQ(got.status,
             (Ints{KDT_REQ_NAN, wanted.status[1], KDT_REQ_POSITIVE, KDT_REQ_NAN | KDT_REQ_POSITIVE, wanted.status[4]}));
    CHECK_EQ(got.num_nodes, (Ints{1, wanted.num_nodes[1], 1, 1, wanted.num_nodes[4]}));
    for (const size_t b : {0u, 2u, 3u}) {
        CHECK_EQ(got.token_ids[b * 41], clean.root_token_ids[b]);
        for (size_t i = 1; i < 41; ++i) {
            CHECK_EQ(got.parents[b * 41 + i], -1);
            CHECK_EQ(got.tree_mask[b * 41 + i], uint64_t{0});
            CHECK_EQ(got.scores[b * 41 + i], -kInfinity);
            CHECK_EQ(got.positions[b * 41 + i], clean.seq_lens[b]);
        }
    }
    for (const size_t b : {1u, 4u})
        for (size_t i = b * 41; i < (b + 1) * 41; ++i) {
            CHECK_EQ(got.token_ids[i], wanted.token_ids[i]);
            CHECK_EQ(got.parents[i], wanted.parents[i]);
            CHECK_EQ(got.tree_mask[i], wanted.tree_mask[i]);
            CHECK_EQ(got.scores[i], wanted.scores[i]);
        }
}

TEST(tree_build_without_optional_outputs) {
    TreeBuildInput in = three_levels();
    TreeBuildOutput wanted = run(in);
    wanted.dfs_order.clear();
    in.dfs_order = false;
    CHECK(run(in) == wanted);
    wanted.expected_lengths.clear();
    in.expected_lengths = false;
    CHECK(run(in) == wanted);
}

TEST(tree_build_masses_are_those_of_exp) {
    Random random(5);
    CHECK_EQ(kdt::path_mass(0), int64_t{1} << 40);
    CHECK_EQ(kdt::path_mass((int64_t{1} << 51) - 1), int64_t{0});
    for (int64_t cost = 1; cost < int64_t{1} << 51; cost += 1 + cost / 50 + random.below(1000)) {
        const double exact = std::exp(-std::ldexp(static_cast<double>(cost), -40));
        const double mass = std::ldexp(static_cast<double>(kdt::path_mass(cost)), -40);
        CHECK(std::abs(mass - exact) <= 0x1p-29 * exact + 0x1p-40);
    }
}

TEST(tree_build_equals_brute_force) {
    Random random(1);
    int short_trees = 0, truncated = 0, ties = 0;
    for (int trial = 0; trial < 300; ++trial) {
        const int32_t horizon = 1 + random.below(4), topk = 1 + random.below(5), budget = random.below(100);
        const int32_t levels = trial % 3 == 0 ? 0 : 1 << random.below(5);
        const TreeBuildInput in =
            random_tree_input(random, 1 + random.below(3), horizon, topk, budget, 0.1f + 4.0f * trial / 300, levels);
        const TreeBuildOutput tree = run(in), wanted = brute_force(in);
        CHECK_EQ(tree.parents, wanted.parents);
        CHECK(tree == wanted);
        for (const int32_t status : tree.status) {
            short_trees += (status & KDT_REQ_SHORT_TREE) != 0;
            truncated += (status & KDT_REQ_TRUNCATED) != 0;
        }
        for (size_t i = 1; i < tree.scores.size(); ++i)
            ties += tree.scores[i] == tree.scores[i - 1] && tree.scores[i] > -kInfinity;
    }
    // The inputs must reach the branches they are for.
    CHECK(short_trees > 20 && truncated > 20 && ties > 1000);
}

TEST(tree_build_smaller_budget_is_a_prefix_at_mask_word_edges) {
    Random random(3);
    const TreeBuildInput large = random_tree_input(random, 2, 15, 64, 1024, 2.0f, 8);
    const TreeBuildOutput all = run(large);
    CHECK_EQ(all.num_nodes, (Ints{1025, 1025}));
    for (const int32_t budget : {1, 31, 32, 62, 63, 64, 65, 127, 128, 511, 1023}) {
        TreeBuildInput in = large;
        in.tree_budget = budget;
        const TreeBuildOutput tree = run(in);
        const size_t nodes = static_cast<size_t>(budget) + 1, words = (nodes + 63) / 64;
        for (size_t b = 0; b < 2; ++b)
            for (size_t i = 0; i < nodes; ++i) {
                CHECK_EQ(tree.parents[b * nodes + i], all.parents[b * 1025 + i]);
                CHECK_EQ(tree.token_ids[b * nodes + i], all.token_ids[b * 1025 + i]);
                for (size_t w = 0; w < words; ++w)
                    CHECK_EQ(tree.tree_mask[(b * nodes + i) * words + w], all.tree_mask[(b * 1025 + i) * 17 + w]);
            }
    }
}

TEST(tree_build_limits_and_determinism) {
    Random random(4);
    for (const int32_t levels : {0, 2}) {
        const TreeBuildInput in =
            random_tree_input(random, 3, KDT_MAX_DRAFT_HORIZON, KDT_MAX_TOPK, KDT_MAX_TREE_BUDGET, 1.0f, levels);
        CHECK(run(in) == run(in));
    }
    // All ties at the floor: the deepest possible sums.
    TreeBuildInput flat = random_tree_input(random, 1, KDT_MAX_DRAFT_HORIZON, 2, 100, 1.0f, 0);
    for (float& log_prob : flat.topk_log_probs) log_prob = KDT_LOG_PROB_FLOOR;
    CHECK_EQ(run(flat).num_nodes, (Ints{101}));
}

TEST(tree_build_empty_batch) {
    CHECK_EQ(run(TreeBuildInput{0, 3, 3, 7, {}, {}, {}, {}}).status, Ints{});
}
