// SPDX-License-Identifier: Apache-2.0
//
// tree_accept: golden vectors, random walks, duplicates and malformed trees.
#include <algorithm>
#include <limits>

#include "calls.h"
#include "check.h"
#include "oracle.h"

using Ints = std::vector<int32_t>;

namespace {

// The tree that tree_build makes of the three-level example.
TreeAcceptInput three_levels(const Ints& target) {
    return {1, 8, 3, {900, 11, 21, 12, 31, 21, 22, 23}, {-1, 0, 1, 0, 2, 3, 1, 1}, {8}, target};
}

void check_answer(const TreeAcceptInput& in, const Ints& path, int32_t length, int32_t bonus, int32_t status = 0) {
    const TreeAcceptOutput got = run(in);
    CHECK_EQ(got.accepted_path, path);
    CHECK_EQ(got.acceptance_length, Ints{length});
    CHECK_EQ(got.bonus_token, Ints{bonus});
    CHECK_EQ(got.status, Ints{status});
}

// Walks by searching all nodes for the children of the current one.
Ints walk(const TreeAcceptInput& in, int32_t b) {
    const size_t at = static_cast<size_t>(b) * in.max_nodes;
    Ints path = {0};
    for (bool moved = true; moved;) {
        moved = false;
        const int32_t current = path.back();
        for (int32_t i = in.num_nodes[static_cast<size_t>(b)] - 1; i > 0; --i)
            if (in.parents[at + i] == current && in.token_ids[at + i] == in.target_tokens[at + current]) {
                if (moved) path.pop_back();
                path.push_back(i);
                moved = true;
            }
    }
    return path;
}

}  // namespace

TEST(tree_accept_three_levels) {
    check_answer(three_levels({11, 21, 31, 1, 1, 1, 1, 1}), {0, 1, 2, 4}, 4, 1);
    check_answer(three_levels({11, 21, 0, 0, 31, 0, 0, 0}), {0, 1, 2, -1}, 3, 0);
    check_answer(three_levels({12, 7, 7, 21, 7, 8, 7, 7}), {0, 3, 5, -1}, 3, 8);
    check_answer(three_levels({11, 22, 5, 5, 5, 5, 9, 5}), {0, 1, 6, -1}, 3, 9);
    check_answer(three_levels({5, 5, 5, 5, 5, 5, 5, 5}), {0, -1, -1, -1}, 1, 5);
}

// The vector of sgl-kernel's verify_tree_greedy test in our conventions.
TEST(tree_accept_sglang_vector) {
    const TreeAcceptOutput got = run(TreeAcceptInput{2,
                                                     6,
                                                     3,
                                                     {0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12},
                                                     {-1, 0, 1, 0, 3, 4, -1, 0, 1, 2, 0, 4},
                                                     {6, 6},
                                                     {3, 18, 18, 4, 5, 18, 11, 18, 18, 18, 12, 18}});
    CHECK_EQ(got.accepted_path, (Ints{0, 3, 4, 5, 0, 4, 5, -1}));
    CHECK_EQ(got.acceptance_length, (Ints{4, 3}));
    CHECK_EQ(got.bonus_token, (Ints{18, 18}));
}

TEST(tree_accept_token_zero_is_a_token) {
    check_answer({1, 3, 2, {0, 0, 0}, {-1, 0, 1}, {3}, {0, 0, 0}}, {0, 1, 2}, 3, 0);
}

TEST(tree_accept_duplicate_siblings_take_the_lowest_index) {
    // Nodes 1 and 2 are twins; only the higher one has the child that would go on.
    check_answer({1, 4, 3, {9, 5, 5, 6}, {-1, 0, 0, 2}, {4}, {5, 6, 6, 7}}, {0, 1, -1, -1}, 2, 6);
}

TEST(tree_accept_pads_are_not_walked) {
    check_answer({1, 3, 2, {9, 5, 6}, {-1, 0, 1}, {2}, {5, 6, 7}}, {0, 1, -1}, 2, 6);
    // A pad's parent may be anything.
    check_answer({1, 3, 2, {9, 5, 6}, {-1, 0, 12345}, {2}, {5, 6, 7}}, {0, 1, -1}, 2, 6);
}

TEST(tree_accept_malformed_trees) {
    const Ints tokens = {9, 1, 2, 3}, target = {1, 2, 3, 4};
    const Ints root_only = {0, -1, -1, -1};
    const auto tree = [&](const Ints& parents, int32_t nodes) {
        return TreeAcceptInput{1, 4, 3, tokens, parents, {nodes}, target};
    };
    const int32_t far = std::numeric_limits<int32_t>::max(), low = std::numeric_limits<int32_t>::min();
    check_answer(tree({-1, 0, 2, 1}, 4), root_only, 1, 1, KDT_REQ_BAD_TREE);   // its own parent
    check_answer(tree({-1, 2, 1, 1}, 4), root_only, 1, 1, KDT_REQ_BAD_TREE);   // a cycle
    check_answer(tree({-1, 0, -1, 1}, 4), root_only, 1, 1, KDT_REQ_BAD_TREE);  // a second root
    check_answer(tree({-1, 0, far, 1}, 4), root_only, 1, 1, KDT_REQ_BAD_TREE);
    check_answer(tree({-1, 0, 1, low}, 4), root_only, 1, 1, KDT_REQ_BAD_TREE);
    check_answer(tree({far, 0, 1, 2}, 4), {0, 1, 2, 3}, 4, 4);  // the root's own entry is not looked at
    for (const int32_t count : {5, 6, far})
        check_answer(tree({-1, 0, 1, 2}, count), root_only, 1, 1, KDT_REQ_BAD_COUNT);
    for (const int32_t count : {0, -1, low})
        check_answer(tree({-1, 0, 1, 2}, count), {-1, -1, -1, -1}, 0, -1, KDT_REQ_BAD_COUNT);
}

TEST(tree_accept_too_deep) {
    const Ints tokens = {9, 1, 2, 3}, parents = {-1, 0, 1, 2}, target = {1, 2, 3, 4};
    check_answer({1, 4, 2, tokens, parents, {4}, target}, {0, -1, -1}, 1, 1, KDT_REQ_TOO_DEEP);
    check_answer({1, 4, 0, tokens, parents, {4}, target}, {0}, 1, 1, KDT_REQ_TOO_DEEP);
    // A deep tree whose accepted path fits is fine.
    check_answer({1, 4, 2, tokens, parents, {4}, {1, 2, 0, 4}}, {0, 1, 2}, 3, 0);
}

TEST(tree_accept_source_slots) {
    const int32_t far = std::numeric_limits<int32_t>::max();
    TreeAcceptInput in = three_levels({11, 21, 0, 0, 31, 0, 0, 0});
    CHECK_EQ(run(in).source_slots, Ints{});
    for (const int32_t prefix : {0, 5, far - 8}) {
        in.seq_lens = {prefix};
        const TreeAcceptOutput got = run(in);
        CHECK_EQ(got.accepted_path, (Ints{0, 1, 2, -1}));
        CHECK_EQ(got.source_slots, (Ints{prefix, prefix + 1, prefix + 2, -1}));
        CHECK_EQ(got.status, Ints{0});
    }
    for (const int32_t prefix : {-1, far, far - 7, std::numeric_limits<int32_t>::min()}) {
        in.seq_lens = {prefix};
        check_answer(in, {0, -1, -1, -1}, 1, 11, KDT_REQ_BAD_LENGTH);
        CHECK_EQ(run(in).source_slots, (Ints{-1, -1, -1, -1}));
    }
    // A refused tree keeps its root, and the root its slot; without nodes there is none.
    in.seq_lens = {7};
    in.parents[3] = 3;
    check_answer(in, {0, -1, -1, -1}, 1, 11, KDT_REQ_BAD_TREE);
    CHECK_EQ(run(in).source_slots, (Ints{7, -1, -1, -1}));
    in.num_nodes = {0};
    check_answer(in, {-1, -1, -1, -1}, 0, -1, KDT_REQ_BAD_COUNT);
    CHECK_EQ(run(in).source_slots, (Ints{-1, -1, -1, -1}));
}

TEST(tree_accept_bad_neighbours_change_nothing) {
    TreeAcceptInput in = {3, 4, 3, {}, {}, {4, 4, 4}, {}};
    for (int b = 0; b < 3; ++b) {
        for (const int32_t token : {9, 1, 2, 3}) in.token_ids.push_back(token);
        for (const int32_t parent : {-1, 0, 1, 2}) in.parents.push_back(parent);
        for (const int32_t token : {1, 2, 3, 4}) in.target_tokens.push_back(token);
    }
    in.parents[1] = 1;
    in.num_nodes[2] = -3;
    const TreeAcceptOutput got = run(in);
    CHECK_EQ(got.accepted_path, (Ints{0, -1, -1, -1, 0, 1, 2, 3, -1, -1, -1, -1}));
    CHECK_EQ(got.acceptance_length, (Ints{1, 4, 0}));
    CHECK_EQ(got.bonus_token, (Ints{1, 4, -1}));
    CHECK_EQ(got.status, (Ints{KDT_REQ_BAD_TREE, 0, KDT_REQ_BAD_COUNT}));
}

TEST(tree_accept_equals_a_search) {
    Random random(11);
    int deepest = 0;
    for (const int32_t nodes : {1, 2, 8, 31, 32, 33, 63, 64, 65, 128, 129, 256, 1024, 1025}) {
        TreeAcceptInput in = {9, nodes, KDT_MAX_DRAFT_HORIZON, {}, {}, {}, {}};
        for (int32_t b = 0; b < in.batch; ++b) {
            in.num_nodes.push_back(1 + random.below(nodes));
            for (int32_t i = 0; i < nodes; ++i) {
                // Few tokens, so that duplicates are common; every other tree is nearly a chain.
                const int32_t parent = random.below(b % 2 == 0 ? 2 : 50) > 0 ? i - 1 : random.below(std::max(1, i));
                in.parents.push_back(i == 0 ? -1 : parent);
                in.token_ids.push_back(random.below(2));
                in.target_tokens.push_back(random.below(2));
            }
            // Most targets name a child.
            const size_t at = static_cast<size_t>(b) * nodes;
            for (int32_t i = 1; i < nodes; ++i)
                if (random.below(50) > 0) in.target_tokens[at + in.parents[at + i]] = in.token_ids[at + i];
        }
        const TreeAcceptOutput got = run(in);
        CHECK(got == run(in));
        for (int32_t b = 0; b < in.batch; ++b) {
            Ints path = walk(in, b);
            const int32_t length = static_cast<int32_t>(path.size());
            deepest = std::max(deepest, length);
            const size_t at = static_cast<size_t>(b) * (KDT_MAX_DRAFT_HORIZON + 1);
            if (length > KDT_MAX_DRAFT_HORIZON + 1) {
                CHECK_EQ(got.status[static_cast<size_t>(b)], KDT_REQ_TOO_DEEP);
                path = {0};
            } else {
                CHECK_EQ(got.status[static_cast<size_t>(b)], 0);
                CHECK_EQ(got.acceptance_length[static_cast<size_t>(b)], length);
            }
            CHECK_EQ(got.bonus_token[static_cast<size_t>(b)],
                     in.target_tokens[static_cast<size_t>(b) * nodes + path.back()]);
            path.resize(KDT_MAX_DRAFT_HORIZON + 1, -1);
            CHECK_EQ(Ints(got.accepted_path.begin() + at, got.accepted_path.begin() + at + path.size()), path);
        }
    }
    CHECK(deepest > KDT_MAX_DRAFT_HORIZON + 1);  // some are too deep, most are not
}

TEST(tree_accept_empty_batch) {
    CHECK_EQ(run(TreeAcceptInput{0, 8, 3, {}, {}, {}, {}}).status, Ints{});
}
