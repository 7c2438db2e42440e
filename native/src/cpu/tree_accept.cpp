// SPDX-License-Identifier: Apache-2.0
//
// tree_accept: from the root, follow the child whose token is what the target said, until there is none.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/checks.h"
#include "cpu/parallel.h"
#include "kdtree/kdtree.h"

namespace kdt {
namespace {

// One request's arrays.
struct Tree {
    const int32_t* token_ids;
    const int32_t* parents;
    const int32_t* target_tokens;
    int32_t num_nodes;
};

// Parents before their children: this alone rules out cycles, self-parents and what is out of range.
bool parents_are_sound(const Tree& tree) {
    for (int32_t i = 1; i < tree.num_nodes; ++i)
        if (tree.parents[i] < 0 || tree.parents[i] >= i) return false;
    return true;
}

// Writes the nodes of the accepted path and returns their number, or 0 when the path has more than draft_horizon
// drafts. A node's children all come after it, so one pass in index order meets the lowest matching child first.
int32_t walk(const Tree& tree, int32_t draft_horizon, int32_t* path) {
    int32_t length = 0;
    int32_t current = 0;
    path[length++] = current;
    for (int32_t i = 1; i < tree.num_nodes; ++i) {
        if (tree.parents[i] != current || tree.token_ids[i] != tree.target_tokens[current]) continue;
        if (length > draft_horizon) return 0;
        path[length++] = current = i;
    }
    return length;
}

void accept_request(const kdt_tree_accept_params& p, int64_t b) {
    const int64_t nodes_at = b * p.max_nodes;
    const Tree tree = {p.token_ids + nodes_at, p.parents + nodes_at, p.target_tokens + nodes_at, p.num_nodes[b]};
    const int64_t path_at = b * (p.draft_horizon + int64_t{1});
    int32_t* const path = p.accepted_path + path_at;
    const int32_t prefix = p.source_slots != nullptr ? p.seq_lens[b] : 0;
    const bool placed = prefix >= 0 && prefix <= std::numeric_limits<int32_t>::max() - p.max_nodes;

    int32_t status = 0;
    int32_t length = 0;
    if (tree.num_nodes < 1 || tree.num_nodes > p.max_nodes) {
        status = KDT_REQ_BAD_COUNT;
    } else if (!placed) {
        status = KDT_REQ_BAD_LENGTH;
    } else if (!parents_are_sound(tree)) {
        status = KDT_REQ_BAD_TREE;
    } else {
        length = walk(tree, p.draft_horizon, path);
        if (length == 0) status = KDT_REQ_TOO_DEEP;
    }
    if (status != 0 && tree.num_nodes > 0) path[length++] = 0;

    std::fill(path + length, path + p.draft_horizon + 1, -1);
    for (int32_t k = 0; p.source_slots != nullptr && k <= p.draft_horizon; ++k)
        p.source_slots[path_at + k] = placed && k < length ? prefix + path[k] : -1;
    p.acceptance_length[b] = length;
    p.bonus_token[b] = length > 0 ? tree.target_tokens[path[length - 1]] : -1;
    p.status[b] = status;
}

}  // namespace
}  // namespace kdt

extern "C" kdt_status kdt_tree_accept_workspace_size(const kdt_tree_accept_params* params, size_t* bytes) {
    return kdt::guarded([&] {
        const kdt_tree_accept_params p = kdt::read_params(params);
        kdt::check_bytes_out("tree_accept", bytes);
        kdt::check_tree_accept_sizes(p);
        *bytes = 0;
    });
}

extern "C" kdt_status kdt_tree_accept(const kdt_tree_accept_params* params) {
    return kdt::guarded([&] {
        const kdt_tree_accept_params p = kdt::read_params(params);
        kdt::check_tree_accept(p);
        const double work_ns = 2.0 * p.batch * p.max_nodes;
        kdt::parallel_for(p.batch, kdt::plan_threads(p.batch, work_ns),
                          [&](int64_t b, int) { kdt::accept_request(p, b); });
    });
}
