// SPDX-License-Identifier: Apache-2.0
//
// verify_mla's mha mode: for each head of a request, walk over the slots in tiles; a tile's keys and values are made
// from the latents once and rounded to bf16, then each node takes the slots that it sees, with one running maximum and
// sum a row ("online" softmax). What a slot that a node does not see holds, NaN included, never enters that node's
// arithmetic.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/checks.h"
#include "core/workspace.h"
#include "cpu/parallel.h"
#include "cpu/verify_mla_modes.h"
#include "kdtree/kdtree.h"

namespace kdt {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct MlaWeights {
    float uk_by_rank[kRank][kMlaNope];  // latents to keys
    float uv[kRank][kMlaValue];         // latents to values
};

void widen_weights(const kdt_verify_mla_params& p, int64_t head, MlaWeights& weights) {
    float row[kRank];
    for (int32_t d = 0; d < kMlaNope; ++d) {
        widen(bf16_words(p.w_uk) + (head * kMlaNope + d) * kRank, kRank, row);
        for (int32_t k = 0; k < kRank; ++k) weights.uk_by_rank[k][d] = row[k];
    }
    widen(bf16_words(p.w_uv) + head * kRank * kMlaValue, kRank * kMlaValue, weights.uv[0]);
}

// Scratch of one head, for as many nodes as there may be.
struct MhaLane {
    MlaWeights weights;
    float latents[kMlaTile][kHeadDim];
    float keys[kMlaTile][kMlaKey];
    float values[kMlaTile][kMlaValue];
    float query[KDT_MAX_TREE_BUDGET + 1][kMlaKey];  // softmax_scale applied
    float sum_of_values[KDT_MAX_TREE_BUDGET + 1][kMlaValue];
    float maximum[KDT_MAX_TREE_BUDGET + 1];
    float sum[KDT_MAX_TREE_BUDGET + 1];
    bool pad[KDT_MAX_TREE_BUDGET + 1];
};

// What a request asks for, or why it is refused.
struct Request {
    int32_t status;
    int32_t prefix;
    int32_t nodes;
};

Request examine(const kdt_verify_mla_params& p, int64_t b) {
    const int32_t prefix = p.seq_lens[b];
    const int32_t nodes = p.num_nodes != nullptr ? p.num_nodes[b] : p.max_nodes;
    if (nodes < 1 || nodes > p.max_nodes) return {KDT_REQ_BAD_COUNT, 0, 0};
    const int64_t slots = int64_t{prefix} + nodes;
    if (prefix < 0 || slots > int64_t{p.max_pages_per_seq} * p.page_size) return {KDT_REQ_BAD_LENGTH, 0, 0};
    const int32_t* const pages = p.block_table + b * p.max_pages_per_seq;
    for (int64_t k = 0; k < (slots + p.page_size - 1) / p.page_size; ++k)
        if (pages[k] < 0 || pages[k] >= p.num_pages) return {KDT_REQ_BAD_PAGE, 0, 0};
    return {0, prefix, nodes};
}

// One head of one request.
class Head {
  public:
    Head(const kdt_verify_mla_params& p, int64_t b, int64_t head, const Request& request, MhaLane& lane)
        : p_(p), lane_(lane), request_(request), b_(b), head_(head), words_(mask_words(p.max_nodes)) {}

    void run() {
        bool anything_seen = false;
        for (int32_t i = 0; i < p_.max_nodes; ++i) {
            begin_row(i);
            anything_seen = anything_seen || !lane_.pad[i];
        }
        if (anything_seen) {
            widen_weights(p_, head_, lane_.weights);
            const int64_t slots = int64_t{request_.prefix} + request_.nodes;
            for (int64_t first = 0; first < slots; first += kMlaTile) {
                const int32_t count = static_cast<int32_t>(std::min<int64_t>(kMlaTile, slots - first));
                load_tile(first, count);
                for (int32_t i = 0; i < request_.nodes; ++i) take_tile(i, first, count);
            }
        }
        for (int32_t i = 0; i < p_.max_nodes; ++i) end_row(i);
    }

  private:
    int64_t row_at(int32_t i) const { return (b_ * p_.max_nodes + i) * p_.num_qo_heads + head_; }

    // Whether node i sees node j's slot; bits of pads count for nothing, and neither do the rows of pads.
    bool sees_node(int32_t i, int64_t j) const {
        return i < request_.nodes && (p_.tree_mask[(b_ * p_.max_nodes + i) * words_ + j / 64] >> (j % 64) & 1) != 0;
    }

    void begin_row(int32_t i) {
        widen(bf16_words(p_.q_nope) + row_at(i) * kMlaNope, kMlaNope, lane_.query[i]);
        widen(bf16_words(p_.q_pe) + row_at(i) * kRope, kRope, lane_.query[i] + kMlaNope);
        for (float& value : lane_.query[i]) value *= p_.softmax_scale;
        std::fill_n(lane_.sum_of_values[i], kMlaValue, 0.0f);
        lane_.maximum[i] = -kInfinity;
        lane_.sum[i] = 0.0f;
        lane_.pad[i] = true;
        for (int32_t j = 0; j < request_.nodes && lane_.pad[i]; ++j) lane_.pad[i] = !sees_node(i, j);
    }

    // Keys and values of a tile, as rounded as if they had been stored.
    void load_tile(int64_t first, int32_t count) {
        const int32_t* const pages = p_.block_table + b_ * p_.max_pages_per_seq;
        for (int32_t s = 0; s < count; ++s) {
            const int64_t slot = first + s;
            const int64_t token = int64_t{pages[slot / p_.page_size]} * p_.page_size + slot % p_.page_size;
            widen(bf16_words(p_.kv_cache) + token * kHeadDim, kHeadDim, lane_.latents[s]);
        }
        project_rows(lane_.latents[0], kHeadDim, count, kRank, lane_.weights.uk_by_rank[0], kMlaNope, lane_.keys[0],
                     kMlaKey);
        project_rows(lane_.latents[0], kHeadDim, count, kRank, lane_.weights.uv[0], kMlaValue, lane_.values[0],
                     kMlaValue);
        for (int32_t s = 0; s < count; ++s) {
            round_to_bf16(lane_.keys[s], kMlaNope);
            round_to_bf16(lane_.values[s], kMlaValue);
            std::copy_n(lane_.latents[s] + kRank, kRope, lane_.keys[s] + kMlaNope);
        }
    }

    void take_tile(int32_t i, int64_t first, int32_t count) {
        if (lane_.pad[i]) return;
        int32_t slots[kMlaTile];
        int32_t seen = 0;
        for (int32_t s = 0; s < count; ++s)
            if (first + s < request_.prefix || sees_node(i, first + s - request_.prefix)) slots[seen++] = s;
        if (seen == 0) return;

        float weights[kMlaTile];
        dot_keys(lane_.query[i], lane_.keys, slots, seen, weights);
        float maximum = lane_.maximum[i];
        for (int32_t k = 0; k < seen; ++k) maximum = std::max(maximum, weights[k]);
        const float decay = std::exp(lane_.maximum[i] - maximum);
        lane_.sum[i] = lane_.sum[i] * decay + exponentiate(weights, seen, maximum);
        lane_.maximum[i] = maximum;
        accumulate_values(weights, lane_.values, slots, seen, decay, lane_.sum_of_values[i]);
    }

    // A row that saw nothing has sum 0: out 0, lse -inf.
    void end_row(int32_t i) {
        const float sum = lane_.sum[i];
        store_bf16(lane_.sum_of_values[i], kMlaValue, sum == 0.0f ? 0.0f : 1.0f / sum,
                   static_cast<uint16_t*>(p_.out) + row_at(i) * kMlaValue);
        p_.lse[row_at(i)] = sum == 0.0f ? -kInfinity : lane_.maximum[i] + std::log(sum);
    }

    const kdt_verify_mla_params& p_;
    MhaLane& lane_;
    const Request request_;
    const int64_t b_;
    const int64_t head_;
    const int32_t words_;
};

int64_t lanes(const kdt_verify_mla_params& p) {
    return std::min<int64_t>(kMaxMlaLanes, int64_t{p.batch} * p.num_qo_heads);
}

}  // namespace

size_t mha_workspace(const kdt_verify_mla_params& p) {
    Workspace measure;
    measure.take<MhaLane>(static_cast<size_t>(lanes(p)));
    return measure.bytes();
}

void run_mha(const kdt_verify_mla_params& p) {
    Workspace workspace(p.workspace);
    MhaLane* const scratch = workspace.take<MhaLane>(static_cast<size_t>(lanes(p)));
    double slots = 0.0;
    for (int32_t b = 0; b < p.batch; ++b) slots += std::max(0, p.seq_lens[b]) + static_cast<double>(p.max_nodes);
    const double work_ns = 0.05 * slots * p.num_qo_heads * (kRank * 2 * kMlaNope + 320.0 * p.max_nodes);
    const int64_t heads = int64_t{p.batch} * p.num_qo_heads;
    const int threads = std::min<int>(static_cast<int>(lanes(p)), plan_threads(heads, work_ns));
    parallel_for(heads, threads, [&](int64_t item, int at) {
        const int64_t b = item / p.num_qo_heads;
        const Request request = examine(p, b);
        if (p.status != nullptr && item % p.num_qo_heads == 0) p.status[b] = request.status;
        Head(p, b, item % p.num_qo_heads, request, scratch[at]).run();
    });
}

}  // namespace kdt
