// SPDX-License-Identifier: Apache-2.0
#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/path_mass.h"

uint64_t Random::next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

float Random::normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return static_cast<float>(radius * std::cos(6.283185307179586 * uniform()));
}

uint16_t bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (std::isnan(value)) return 0x7FC0;
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float from_bf16(uint16_t value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

std::vector<float> random_log_probs(Random& random, int32_t rows, int32_t topk, float sharpness, int32_t levels) {
    std::vector<float> all;
    for (int32_t row = 0; row < rows; ++row) {
        std::vector<double> logits;
        double sum = 0.0;
        for (int32_t k = 0; k < topk + 4; ++k) {
            logits.push_back(sharpness * random.normal());
            sum += std::exp(logits.back());
        }
        std::sort(logits.rbegin(), logits.rend());
        for (int32_t k = 0; k < topk; ++k) {
            double log_prob = logits[static_cast<size_t>(k)] - std::log(sum);
            if (levels > 0) log_prob = std::floor(log_prob * levels) / levels;
            all.push_back(std::min(0.0f, static_cast<float>(log_prob)));
        }
    }
    return all;
}

TreeBuildInput random_tree_input(Random& random, int32_t batch, int32_t draft_horizon, int32_t topk,
                                 int32_t tree_budget, float sharpness, int32_t levels) {
    TreeBuildInput in = {batch, draft_horizon, topk, tree_budget, {}, {}, {}, {}};
    in.topk_log_probs = random_log_probs(random, batch * draft_horizon, topk, sharpness, levels);
    for (int32_t row = 0; row < batch * draft_horizon; ++row)
        for (int32_t k = 0; k < topk; ++k) in.topk_token_ids.push_back(10 * k + row % 10);
    for (int32_t b = 0; b < batch; ++b) {
        in.root_token_ids.push_back(100000 + b);
        in.seq_lens.push_back(random.below(5000));
    }
    return in;
}

namespace {

struct Prefix {
    int64_t cost;
    std::vector<int32_t> ranks;
};

void enumerate(const float* rows, int32_t horizon, int32_t topk, const Prefix& prefix, std::vector<Prefix>& all) {
    if (static_cast<int32_t>(prefix.ranks.size()) == horizon) return;
    const float* const row = rows + prefix.ranks.size() * static_cast<size_t>(topk);
    for (int32_t rank = 0; rank < topk && row[rank] >= KDT_LOG_PROB_FLOOR; ++rank) {
        Prefix child = prefix;
        child.cost += static_cast<int64_t>(std::nearbyint(std::ldexp(-static_cast<double>(row[rank]), 40)));
        child.ranks.push_back(rank);
        all.push_back(child);
        enumerate(rows, horizon, topk, child, all);
    }
}

}  // namespace

TreeBuildOutput brute_force(const TreeBuildInput& in) {
    const int32_t nodes = in.tree_budget + 1;
    const int32_t words = words_of(nodes);
    TreeBuildOutput out;
    for (int32_t b = 0; b < in.batch; ++b) {
        const size_t rows_at = static_cast<size_t>(b) * in.draft_horizon * in.topk;
        std::vector<Prefix> all = {{0, {}}};
        enumerate(in.topk_log_probs.data() + rows_at, in.draft_horizon, in.topk, {0, {}}, all);
        std::sort(all.begin(), all.end(), [](const Prefix& x, const Prefix& y) {
            return x.cost != y.cost ? x.cost < y.cost : x.ranks < y.ranks;
        });
        const int32_t count = std::min(nodes, static_cast<int32_t>(all.size()));
        all.resize(static_cast<size_t>(count));
        int32_t status = count < nodes ? KDT_REQ_SHORT_TREE : 0;
        // The index of a prefix among the selected, or -1.
        const auto index_of = [&](const std::vector<int32_t>& ranks) {
            for (int32_t i = 0; i < count; ++i)
                if (all[static_cast<size_t>(i)].ranks == ranks) return i;
            return -1;
        };
        for (int32_t i = 0; i < nodes; ++i) {
            const bool real = i < count;
            const std::vector<int32_t> ranks = real ? all[static_cast<size_t>(i)].ranks : std::vector<int32_t>();
            const int32_t depth = static_cast<int32_t>(ranks.size());
            std::vector<uint64_t> mask(static_cast<size_t>(words), 0);
            int32_t parent = -1, child = -1, sibling = -1;
            if (real) {
                for (std::vector<int32_t> up = ranks;; up.pop_back()) {
                    const int32_t at = index_of(up);
                    mask[static_cast<size_t>(at / 64)] |= uint64_t{1} << (at % 64);
                    if (up.size() + 1 == ranks.size()) parent = at;
                    if (up.empty()) break;
                }
                std::vector<int32_t> other = ranks;
                other.push_back(0);
                child = index_of(other);
                if (depth > 0) {
                    other = ranks;
                    ++other.back();
                    sibling = index_of(other);
                    if (ranks.back() == in.topk - 1 && ranks.back() < in.tree_budget - depth)
                        status |= KDT_REQ_TRUNCATED;
                }
            }
            const size_t entry = depth == 0 ? 0 : rows_at + static_cast<size_t>((depth - 1) * in.topk + ranks.back());
            out.token_ids.push_back(!real        ? 0
                                    : depth == 0 ? in.root_token_ids[static_cast<size_t>(b)]
                                                 : in.topk_token_ids[entry]);
            out.parents.push_back(parent);
            out.depths.push_back(depth);
            out.positions.push_back(in.seq_lens[static_cast<size_t>(b)] + depth);
            out.first_child.push_back(child);
            out.next_sibling.push_back(sibling);
            out.tree_mask.insert(out.tree_mask.end(), mask.begin(), mask.end());
            out.scores.push_back(
                !real ? -std::numeric_limits<float>::infinity()
                : i == 0
                    ? 0.0f
                    : static_cast<float>(0.0 - std::ldexp(static_cast<double>(all[static_cast<size_t>(i)].cost), -40)));
        }
        if (in.expected_lengths) {
            int64_t mass = 0;
            for (int32_t i = 0; i < nodes; ++i) {
                if (i < count) mass += kdt::path_mass(all[static_cast<size_t>(i)].cost);
                out.expected_lengths.push_back(kdt::expected_length(mass));
            }
        }
        if (in.dfs_order) {
            // Pre-order is the lexicographic order of the rank tuples.
            std::vector<int32_t> order(static_cast<size_t>(count));
            for (int32_t i = 0; i < count; ++i) order[static_cast<size_t>(i)] = i;
            std::sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
                return all[static_cast<size_t>(x)].ranks < all[static_cast<size_t>(y)].ranks;
            });
            order.resize(static_cast<size_t>(nodes), -1);
            out.dfs_order.insert(out.dfs_order.end(), order.begin(), order.end());
        }
        out.num_nodes.push_back(count);
        out.status.push_back(status);
    }
    return out;
}

Attention attend(const VerifyAttnInput& in) {
    const size_t heads = static_cast<size_t>(in.num_qo_heads);
    const size_t rows = static_cast<size_t>(in.batch) * in.max_nodes * heads;
    Attention answer = {std::vector<double>(rows * KDT_KV_LORA_RANK, 0.0),
                        std::vector<double>(rows, -std::numeric_limits<double>::infinity())};
    for (size_t row = 0; row < rows; ++row) {
        const size_t node = row / heads;
        const size_t b = node / static_cast<size_t>(in.max_nodes);
        const int32_t i = static_cast<int32_t>(node % static_cast<size_t>(in.max_nodes));
        const int32_t real = in.num_nodes.empty() ? in.max_nodes : in.num_nodes[b];
        const uint64_t* const mask = in.tree_mask.data() + node * static_cast<size_t>(words_of(in.max_nodes));
        std::vector<int32_t> slots;
        for (int32_t j = 0; i < real && j < real; ++j)
            if ((mask[j / 64] >> (j % 64) & 1) != 0) slots.push_back(in.seq_lens[b] + j);
        if (slots.empty()) continue;
        for (int32_t t = 0; !in.tail_only && t < in.seq_lens[b]; ++t) slots.push_back(t);

        std::vector<double> scores;
        std::vector<const uint16_t*> tokens;
        for (const int32_t t : slots) {
            const int32_t page = in.block_table[b * static_cast<size_t>(in.max_pages_per_seq) + t / in.page_size];
            const size_t token = static_cast<size_t>(page) * in.page_size + static_cast<size_t>(t % in.page_size);
            tokens.push_back(in.kv_cache.data() + token * (KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM));
            double score = 0.0;
            for (size_t d = 0; d < KDT_KV_LORA_RANK; ++d)
                score +=
                    static_cast<double>(from_bf16(in.q_nope[row * KDT_KV_LORA_RANK + d])) * from_bf16(tokens.back()[d]);
            for (size_t d = 0; d < KDT_QK_ROPE_HEAD_DIM; ++d)
                score += static_cast<double>(from_bf16(in.q_pe[row * KDT_QK_ROPE_HEAD_DIM + d])) *
                         from_bf16(tokens.back()[KDT_KV_LORA_RANK + d]);
            scores.push_back(score * in.softmax_scale);
        }
        const double top = *std::max_element(scores.begin(), scores.end());
        double sum = 0.0;
        for (double& score : scores) sum += score = std::exp(score - top);
        for (size_t k = 0; k < tokens.size(); ++k)
            for (size_t d = 0; d < KDT_KV_LORA_RANK; ++d)
                answer.out[row * KDT_KV_LORA_RANK + d] += scores[k] / sum * from_bf16(tokens[k][d]);
        answer.lse[row] = top + std::log(sum);
    }
    return answer;
}
