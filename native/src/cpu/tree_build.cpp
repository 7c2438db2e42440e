// SPDX-License-Identifier: Apache-2.0
//
// tree_build: best-first search with a heap (DDTree, arXiv 2604.12989), the clear definition that the other backends
// must equal bit for bit.
//
// A node is named by its rank tuple: the ranks, from the root, of the tokens on its path. Its cost is minus the sum of
// their log-probs in fixed point, so sums are exact and the order (cost, then rank tuple) is total: any way of finding
// the first tree_budget nodes gives the same tree.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/checks.h"
#include "core/path_mass.h"
#include "core/workspace.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"
#include "cpu/tree_layout.h"
#include "kdtree/kdtree.h"

namespace kdt {
namespace {

constexpr double kFixedPointOne = static_cast<double>(int64_t{1} << KDT_FIXED_POINT_BITS);

// A child that may be selected next: its parent is in the tree, it is not.
struct Candidate {
    int64_t cost;
    int32_t parent;
    int32_t rank;
};

// Scratch of all requests; each uses its own part.
struct Scratch {
    Candidate* heap;  // [B, N + 1]: a selected node leaves one candidate more than it found, at most
    int64_t* costs;   // [B, N]
    int32_t* ranks;   // [B, N]

    Scratch(Workspace& workspace, const kdt_tree_build_params& p) {
        const size_t nodes = static_cast<size_t>(p.batch) * (static_cast<size_t>(p.tree_budget) + 1);
        heap = workspace.take<Candidate>(nodes + static_cast<size_t>(p.batch));
        costs = workspace.take<int64_t>(nodes);
        ranks = workspace.take<int32_t>(nodes);
    }
};

size_t needed_workspace(const kdt_tree_build_params& p) {
    Workspace measure;
    Scratch(measure, p);
    return measure.bytes();
}

KDT_CLONES int32_t refusals(const float* log_probs, int64_t count) {
    int32_t nan = 0;
    int32_t positive = 0;
    for (int64_t i = 0; i < count; ++i) {
        nan |= log_probs[i] != log_probs[i];
        positive |= log_probs[i] > 0.0f;
    }
    return (nan != 0 ? KDT_REQ_NAN : 0) | (positive != 0 ? KDT_REQ_POSITIVE : 0);
}

// llrint rounds to nearest even, and the product is exact: a float times a power of two.
int64_t fixed_point_cost(float log_prob) {
    return static_cast<int64_t>(std::llrint(-static_cast<double>(log_prob) * kFixedPointOne));
}

// Builds the tree of one request. Reads its rows, writes its outputs, N values each.
class Builder {
  public:
    Builder(const kdt_tree_build_params& p, const Scratch& scratch, int64_t b)
        : p_(p),
          num_outputs_(p.tree_budget + 1),
          seq_len_(p.seq_lens[b]),
          log_probs_(p.topk_log_probs + b * p.draft_horizon * p.topk),
          draft_tokens_(p.topk_token_ids + b * p.draft_horizon * p.topk),
          tokens_(p.token_ids + b * num_outputs_),
          parents_(p.parents + b * num_outputs_),
          depths_(p.depths + b * num_outputs_),
          positions_(p.positions + b * num_outputs_),
          first_child_(p.first_child + b * num_outputs_),
          next_sibling_(p.next_sibling + b * num_outputs_),
          scores_(p.scores + b * num_outputs_),
          heap_(scratch.heap + b * (num_outputs_ + 1)),
          costs_(scratch.costs + b * num_outputs_),
          ranks_(scratch.ranks + b * num_outputs_) {}

    // Returns the request's status.
    int32_t build(int32_t root_token) {
        add_node(root_token, -1, 0, 0, 0);
        int32_t status = refusals(log_probs_, int64_t{p_.draft_horizon} * p_.topk);
        if (status == 0) {
            select_nodes();
            if (num_nodes_ < num_outputs_) status |= KDT_REQ_SHORT_TREE;
            if (truncated_) status |= KDT_REQ_TRUNCATED;
        }
        pad();
        link();
        return status;
    }

    int32_t num_nodes() const { return num_nodes_; }

    // The acceptance_length expected of the tree cut after each node; pads repeat the last.
    void write_expected_lengths(float* out) const {
        int64_t mass = 0;
        for (int32_t i = 0; i < num_outputs_; ++i) {
            if (i < num_nodes_) mass += path_mass(costs_[i]);
            out[i] = expected_length(mass);
        }
    }

  private:
    void add_node(int32_t token, int32_t parent, int32_t depth, int32_t rank, int64_t cost) {
        const int32_t i = num_nodes_++;
        tokens_[i] = token;
        parents_[i] = parent;
        depths_[i] = depth;
        // Unsigned, because an absurd seq_lens must wrap rather than be undefined.
        positions_[i] = static_cast<int32_t>(static_cast<uint32_t>(seq_len_) + static_cast<uint32_t>(depth));
        ranks_[i] = rank;
        costs_[i] = cost;
        // Costs stay below 2^52, so only the conversion to float rounds. The root's is 0, not -0.
        scores_[i] = static_cast<float>(0.0 - static_cast<double>(cost) / kFixedPointOne);
    }

    // The order of selection: cost, then rank tuple, a tuple before its extensions. The tuples of two candidates are
    // compared by climbing to where their paths part.
    bool precedes(const Candidate& a, const Candidate& b) const {
        if (a.cost != b.cost) return a.cost < b.cost;
        int32_t a_parent = a.parent, a_rank = a.rank, b_parent = b.parent, b_rank = b.rank;
        const auto climb = [&](int32_t& parent, int32_t& rank) {
            rank = ranks_[parent];
            parent = parents_[parent];
        };
        while (depths_[a_parent] > depths_[b_parent]) climb(a_parent, a_rank);
        while (depths_[b_parent] > depths_[a_parent]) climb(b_parent, b_rank);
        while (a_parent != b_parent) {
            climb(a_parent, a_rank);
            climb(b_parent, b_rank);
        }
        if (a_rank != b_rank) return a_rank < b_rank;
        return depths_[a.parent] < depths_[b.parent];
    }

    // std's heaps keep their largest on top; the largest here is what comes first.
    auto after() const {
        return [this](const Candidate& a, const Candidate& b) { return precedes(b, a); };
    }

    // Offers a child of `parent`, if its row has a usable entry of that rank: rows descend, so the first entry below
    // the floor ends the row.
    void offer(int32_t parent, int32_t rank) {
        const int32_t row = depths_[parent];
        if (row == p_.draft_horizon || rank == p_.topk) return;
        const float log_prob = log_probs_[int64_t{row} * p_.topk + rank];
        if (!(log_prob >= KDT_LOG_PROB_FLOOR)) return;
        heap_[heap_size_++] = {costs_[parent] + fixed_point_cost(log_prob), parent, rank};
        std::push_heap(heap_, heap_ + heap_size_, after());
    }

    void select_nodes() {
        if (num_nodes_ < num_outputs_) offer(0, 0);
        while (heap_size_ > 0 && num_nodes_ < num_outputs_) {
            std::pop_heap(heap_, heap_ + heap_size_, after());
            const Candidate best = heap_[--heap_size_];
            const int32_t row = depths_[best.parent];
            const int32_t depth = row + 1;
            // A node of rank r at depth d needs d - 1 ancestors and r left siblings: beyond rank budget - d there is
            // nothing to miss.
            if (best.rank == p_.topk - 1 && best.rank < p_.tree_budget - depth) truncated_ = true;
            add_node(draft_tokens_[int64_t{row} * p_.topk + best.rank], best.parent, depth, best.rank, best.cost);
            offer(best.parent, best.rank + 1);
            offer(num_nodes_ - 1, 0);
        }
    }

    void pad() {
        std::fill(tokens_ + num_nodes_, tokens_ + num_outputs_, 0);
        std::fill(parents_ + num_nodes_, parents_ + num_outputs_, -1);
        std::fill(depths_ + num_nodes_, depths_ + num_outputs_, 0);
        std::fill(positions_ + num_nodes_, positions_ + num_outputs_, seq_len_);
        std::fill(scores_ + num_nodes_, scores_ + num_outputs_, -std::numeric_limits<float>::infinity());
    }

    // Siblings are selected in the order of their ranks. Going backwards, a node puts itself before the siblings that
    // were selected after it.
    void link() {
        std::fill(first_child_, first_child_ + num_outputs_, -1);
        std::fill(next_sibling_, next_sibling_ + num_outputs_, -1);
        for (int32_t i = num_nodes_ - 1; i > 0; --i) {
            next_sibling_[i] = first_child_[parents_[i]];
            first_child_[parents_[i]] = i;
        }
    }

    const kdt_tree_build_params& p_;
    const int32_t num_outputs_;
    const int32_t seq_len_;
    const float* const log_probs_;
    const int32_t* const draft_tokens_;
    int32_t* const tokens_;
    int32_t* const parents_;
    int32_t* const depths_;
    int32_t* const positions_;
    int32_t* const first_child_;
    int32_t* const next_sibling_;
    float* const scores_;
    Candidate* const heap_;
    int64_t* const costs_;
    int32_t* const ranks_;
    int32_t heap_size_ = 0;
    int32_t num_nodes_ = 0;
    bool truncated_ = false;
};

void build_request(const kdt_tree_build_params& p, const Scratch& scratch, int64_t b) {
    const int32_t num_outputs = p.tree_budget + 1;
    const int64_t nodes_at = b * num_outputs;
    Builder builder(p, scratch, b);
    p.status[b] = builder.build(p.root_token_ids[b]);
    p.num_nodes[b] = builder.num_nodes();
    write_mask(p.parents + nodes_at, builder.num_nodes(), num_outputs,
               p.tree_mask + nodes_at * mask_words(num_outputs));
    if (p.expected_lengths != nullptr) builder.write_expected_lengths(p.expected_lengths + nodes_at);
    if (p.dfs_order != nullptr)
        write_dfs_order(p.parents + nodes_at, p.first_child + nodes_at, p.next_sibling + nodes_at, num_outputs,
                        p.dfs_order + nodes_at);
}

}  // namespace
}  // namespace kdt

extern "C" kdt_status kdt_tree_build_workspace_size(const kdt_tree_build_params* params, size_t* bytes) {
    return kdt::guarded([&] {
        const kdt_tree_build_params p = kdt::read_params(params);
        kdt::check_bytes_out("tree_build", bytes);
        kdt::check_tree_build_sizes(p);
        *bytes = kdt::needed_workspace(p);
    });
}

extern "C" kdt_status kdt_tree_build(const kdt_tree_build_params* params) {
    return kdt::guarded([&] {
        const kdt_tree_build_params p = kdt::read_params(params);
        kdt::check_tree_build(p);
        kdt::check_workspace("tree_build", p.workspace, p.workspace_size, kdt::needed_workspace(p));
        if (p.batch == 0) return;
        kdt::Workspace workspace(p.workspace);
        const kdt::Scratch scratch(workspace, p);
        const double work_ns = static_cast<double>(p.batch) * (p.draft_horizon * p.topk + 100.0 * p.tree_budget);
        kdt::parallel_for(p.batch, kdt::plan_threads(p.batch, work_ns),
                          [&](int64_t b, int) { kdt::build_request(p, scratch, b); });
    });
}
