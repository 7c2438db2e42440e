// SPDX-License-Identifier: Apache-2.0
//
// What stands around attention: rotations, the target's cache, the drafter's cache and attention.
#include <tuple>
#include <utility>

#include "engine/arrays.h"

using namespace arrays;
using namespace kdt::engine;

namespace {

// A table of made-up angles, so that a wrong row shows.
struct Table {
    Table(int positions, int pairs) : positions(positions), pairs(pairs) {
        for (int i = 0; i < positions * pairs; ++i) {
            values.push_back(static_cast<float>(std::cos(0.37 * i)));
            values.push_back(static_cast<float>(std::sin(0.37 * i)));
        }
        memory = to_device(values);
    }
    Rope rope() const { return {memory.as<float>(), positions, pairs}; }
    // The pair (a, b) at a position and index.
    std::pair<double, double> turn(double a, double b, int position, int i) const {
        const int row = std::min(std::max(position, 0), positions - 1);
        const double c = values[static_cast<size_t>(row * pairs + i) * 2];
        const double s = values[static_cast<size_t>(row * pairs + i) * 2 + 1];
        return {a * c - b * s, b * c + a * s};
    }

    int positions, pairs;
    std::vector<float> values;
    Memory memory;
};

using Doubles = std::vector<double>;

Doubles turned(const Table& table, Doubles x, int position, bool interleaved) {
    const int pairs = static_cast<int>(x.size()) / 2;
    for (int i = 0; i < pairs; ++i) {
        double& a = x[static_cast<size_t>(interleaved ? 2 * i : i)];
        double& b = x[static_cast<size_t>(interleaved ? 2 * i + 1 : i + pairs)];
        std::tie(a, b) = table.turn(a, b, position, i);
    }
    return x;
}

Doubles normed(Doubles x, const float* weight, double eps) {
    double sum = 0.0;
    for (const double value : x) sum += value * value;
    const double factor = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= factor * weight[i];
    return x;
}

Doubles slice(const std::vector<float>& from, size_t first, size_t count) {
    return Doubles(from.begin() + static_cast<ptrdiff_t>(first), from.begin() + static_cast<ptrdiff_t>(first + count));
}

}  // namespace

TEST(mla_queries_are_split_and_turned) {
    const int rows = 5, heads = 3, stride = heads * 192 + 16;
    const Table table(20, 32);
    const std::vector<int32_t> positions = {0, 7, 19, 25, -4};
    for (const Dtype dtype : dtypes()) {
        const std::vector<float> q = random_values(1, rows * stride, dtype);
        const Memory dq = act_to_device(q, dtype), dp = to_device(positions);
        const Memory nope = act_memory(rows * heads * 128, KDT_BF16), pe = act_memory(rows * heads * 64, KDT_BF16);
        mla_queries(queue(), dtype, dq.data(), stride, dp.as<int32_t>(), table.rope(), heads, nope.data(), pe.data(),
                    rows);
        Doubles wanted_nope, wanted_pe;
        for (int r = 0; r < rows; ++r)
            for (int h = 0; h < heads; ++h) {
                const auto first = static_cast<size_t>(r * stride + h * 192);
                const Doubles left = slice(q, first, 128);
                wanted_nope.insert(wanted_nope.end(), left.begin(), left.end());
                const Doubles right = turned(table, slice(q, first + 128, 64), positions[static_cast<size_t>(r)], true);
                wanted_pe.insert(wanted_pe.end(), right.begin(), right.end());
            }
        check_close(act_from_device(nope, KDT_BF16), wanted_nope, KDT_BF16, 0.0, "q_nope");
        check_close(act_from_device(pe, KDT_BF16), wanted_pe, KDT_BF16, 1e-6, "q_pe");
    }
}

TEST(mla_store_writes_real_nodes_to_their_pages_alone) {
    constexpr int kBatch = 4, kNodes = 5, kPageSize = 4, kPages = 12, kPerSeq = 3, kStride = 576 + 8;
    const Table table(64, 32);
    const std::vector<int32_t> block_table = {7, 2, -1, 3, 99, 5, 0, 1, 4, -1, -1, -1};
    const std::vector<int32_t> seq_lens = {5, 3, 10, 0}, num_nodes = {5, 4, 3, 2};
    for (const Dtype dtype : dtypes()) {
        const std::vector<float> kv = random_values(1, kBatch * kNodes * kStride, dtype);
        const std::vector<float> weight = random_values(2, 512, dtype);
        std::vector<int32_t> positions;
        for (int r = 0; r < kBatch * kNodes; ++r) positions.push_back((r * 7) % 64);
        const std::vector<float> before = random_values(3, kPages * kPageSize * 576, KDT_BF16);
        const Memory dkv = act_to_device(kv, dtype), dw = act_to_device(weight, dtype), dp = to_device(positions);
        const Memory dt = to_device(block_table), ds = to_device(seq_lens), dn = to_device(num_nodes);
        const Memory cache = act_to_device(before, KDT_BF16);
        mla_store(queue(), dtype, dkv.data(), kStride, dw.data(), 1e-6f, dp.as<int32_t>(), table.rope(),
                  ds.as<int32_t>(), dn.as<int32_t>(), {dt.as<int32_t>(), kPerSeq, kPageSize, kPages}, cache.data(),
                  kBatch, kNodes);
        Doubles wanted(before.begin(), before.end());
        int written = 0;
        for (int b = 0; b < kBatch; ++b)
            for (int i = 0; i < num_nodes[static_cast<size_t>(b)]; ++i) {
                const int slot = seq_lens[static_cast<size_t>(b)] + i, r = b * kNodes + i;
                if (slot >= kPerSeq * kPageSize) continue;
                const int page = block_table[static_cast<size_t>(b * kPerSeq + slot / kPageSize)];
                if (page < 0 || page >= kPages) continue;
                const Doubles latent = normed(slice(kv, static_cast<size_t>(r) * kStride, 512), weight.data(), 1e-6);
                const Doubles key = turned(table, slice(kv, static_cast<size_t>(r) * kStride + 512, 64),
                                           positions[static_cast<size_t>(r)], true);
                const auto at = static_cast<size_t>(page * kPageSize + slot % kPageSize) * 576;
                std::copy(latent.begin(), latent.end(), wanted.begin() + static_cast<ptrdiff_t>(at));
                std::copy(key.begin(), key.end(), wanted.begin() + static_cast<ptrdiff_t>(at + 512));
                ++written;
            }
        CHECK_EQ(written, 3 + 1 + 2);
        check_close(act_from_device(cache, KDT_BF16), wanted, KDT_BF16, 1e-6, "cache");
    }
}

TEST(idle_slots_have_no_nodes) {
    const Memory active = to_device(std::vector<int32_t>{1, 0, 1, 0}),
                 nodes = to_device(std::vector<int32_t>{5, 6, 7, 8});
    hide_idle(queue(), active.as<int32_t>(), nodes.as<int32_t>(), 4);
    CHECK_EQ(from_device<int32_t>(nodes), (std::vector<int32_t>{5, 0, 7, 0}));
}

TEST(draft_store_and_attention_follow_the_definition) {
    constexpr int kBatch = 3, kRows = 4, kLayers = 2, kCapacity = 30, kBlock = 5;
    for (const DraftHeads heads : {DraftHeads{4, 2, 32}, DraftHeads{3, 3, 64}, DraftHeads{8, 1, 128}})
        for (const Dtype dtype : dtypes()) {
            const int dim = heads.head_dim, token = 2 * heads.num_kv_heads * dim,
                      group = heads.num_heads / heads.num_kv_heads;
            const Table table(40, dim / 2);
            const std::vector<int32_t> starts = {0, 11, 28}, counts = {4, 0, 4}, lengths = {4, 11, 30};
            const auto layer_values = static_cast<size_t>(kBatch) * kCapacity * token;
            std::vector<float> cache = random_values(1, kLayers * layer_values, dtype);
            const std::vector<float> kv =
                random_values(2, static_cast<size_t>(kBatch) * kRows * kLayers * token, dtype);
            const std::vector<float> norms = random_values(3, static_cast<size_t>(kLayers) * dim, dtype);
            const Memory dc = act_to_device(cache, dtype), dkv = act_to_device(kv, dtype),
                         dn = act_to_device(norms, dtype);
            const Memory dstarts = to_device(starts), dcounts = to_device(counts), dl = to_device(lengths);
            draft_store(queue(), dtype, heads, dkv.data(), kLayers, dn.data(), 1e-6f, table.rope(),
                        dstarts.as<int32_t>(), dcounts.as<int32_t>(), dc.data(), static_cast<int64_t>(layer_values),
                        kCapacity, kBatch, kRows);
            Doubles wanted(cache.begin(), cache.end());
            for (int layer = 0; layer < kLayers; ++layer)
                for (int b = 0; b < kBatch; ++b)
                    for (int i = 0; i < counts[static_cast<size_t>(b)]; ++i) {
                        const int position = starts[static_cast<size_t>(b)] + i;
                        if (position >= kCapacity) continue;
                        const auto from = static_cast<size_t>(((b * kRows + i) * kLayers + layer) * token);
                        const size_t to = layer * layer_values + static_cast<size_t>(b * kCapacity + position) * token;
                        for (int h = 0; h < 2 * heads.num_kv_heads; ++h) {
                            Doubles head = slice(kv, from + static_cast<size_t>(h) * dim, static_cast<size_t>(dim));
                            if (h < heads.num_kv_heads)
                                head = turned(table, normed(head, &norms[static_cast<size_t>(layer) * dim], 1e-6),
                                              position, false);
                            std::copy(head.begin(), head.end(),
                                      wanted.begin() + static_cast<ptrdiff_t>(to + static_cast<size_t>(h) * dim));
                        }
                    }
            cache = act_from_device(dc, dtype);
            check_close(cache, wanted, dtype, 1e-6, "draft cache");

            // Attention over the second layer's cache.
            const int width = (heads.num_heads + 2 * heads.num_kv_heads) * dim;
            const std::vector<float> qkv = random_values(4, static_cast<size_t>(kBatch) * kBlock * width, dtype, 2.0f);
            const std::vector<float> q_norm = random_values(5, static_cast<size_t>(dim), dtype);
            const std::vector<float> k_norm(norms.begin() + dim, norms.end());
            const Memory dqkv = act_to_device(qkv, dtype), dq = act_to_device(q_norm, dtype),
                         dk = act_to_device(k_norm, dtype);
            const Memory out = act_memory(static_cast<size_t>(kBatch) * kBlock * heads.num_heads * dim, dtype);
            const Memory workspace(draft_attention_workspace(dtype, heads, kBatch, kBlock, kCapacity));
            draft_attention(queue(), dtype, heads, dqkv.data(), dq.data(), dk.data(), 1e-6f, table.rope(),
                            dl.as<int32_t>(), dc.as<char>() + layer_values * size_of(dtype), kCapacity, out.data(),
                            kBatch, kBlock, workspace.data());
            CHECK_EQ(act_from_device(dc, dtype), cache);
            Doubles attended;
            for (int b = 0; b < kBatch; ++b)
                for (int i = 0; i < kBlock; ++i)
                    for (int h = 0; h < heads.num_heads; ++h) {
                        const int length = lengths[static_cast<size_t>(b)];
                        const auto head_at = [&](int row, int head) {
                            return slice(qkv, static_cast<size_t>((b * kBlock + row) * width + head * dim),
                                         static_cast<size_t>(dim));
                        };
                        const Doubles query =
                            turned(table, normed(head_at(i, h), q_norm.data(), 1e-6), length + i, false);
                        Doubles sum(static_cast<size_t>(dim), 0.0);
                        double total = 0.0;
                        for (int t = 0; t < length + kBlock; ++t) {
                            Doubles key, value;
                            if (t < length) {
                                const size_t at =
                                    layer_values + static_cast<size_t>((b * kCapacity + t) * token + h / group * dim);
                                key = slice(cache, at, static_cast<size_t>(dim));
                                value = slice(cache, at + static_cast<size_t>(heads.num_kv_heads) * dim,
                                              static_cast<size_t>(dim));
                            } else {
                                const int kv_head = heads.num_heads + h / group;
                                key =
                                    turned(table, normed(head_at(t - length, kv_head), k_norm.data(), 1e-6), t, false);
                                value = head_at(t - length, kv_head + heads.num_kv_heads);
                            }
                            double score = 0.0;
                            for (size_t k = 0; k < query.size(); ++k) score += query[k] * key[k];
                            const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
                            total += weight;
                            for (size_t k = 0; k < sum.size(); ++k) sum[k] += weight * value[k];
                        }
                        for (const double value : sum) attended.push_back(value / total);
                    }
            check_close(act_from_device(out, dtype), attended, dtype, dtype == KDT_F32 ? 2e-5 : 1e-2,
                        "draft attention");
        }
}

TEST(simulated_drafts_keep_to_the_golden_tokens) {
    constexpr int kBatch = 3, kHorizon = 6, kTopk = 4, kVocab = 50, kStride = 40;
    std::vector<int32_t> golden;
    for (int i = 0; i < kBatch * kStride; ++i) golden.push_back((i * 13 + 5) % kVocab);
    const std::vector<int32_t> counts = {40, 12, 0}, starts = {10, 3, 5}, lengths = {12, 10, 4};
    const std::vector<uint64_t> seeds = {1, 2, uint64_t{1} << 63};
    const Memory dg = to_device(golden), dc = to_device(counts), dst = to_device(starts), dl = to_device(lengths),
                 dse = to_device(seeds);
    const Memory log_probs(kBatch * kHorizon * kTopk * sizeof(float)), ids(kBatch * kHorizon * kTopk * sizeof(int32_t));
    int spoilt_ones = 0;
    for (const float accept : {0.0001f, 0.5f, 1.0f}) {
        simulate_draft(queue(), {dg.as<int32_t>(), dc.as<int32_t>(), dst.as<int32_t>(), kStride}, dl.as<int32_t>(),
                       dse.as<uint64_t>(), accept, kVocab, log_probs.as<float>(), ids.as<int32_t>(), kBatch, kHorizon,
                       kTopk);
        std::vector<int32_t> wanted;
        std::vector<float> wanted_probs;
        for (int b = 0; b < kBatch; ++b)
            for (int d = 1; d <= kHorizon; ++d) {
                const int position = lengths[static_cast<size_t>(b)] + d,
                          index = position - starts[static_cast<size_t>(b)];
                int token = 0;
                bool spoilt = true;
                if (index >= 0 && index < counts[static_cast<size_t>(b)]) {
                    token = golden[static_cast<size_t>(b * kStride + index)];
                    spoilt = uniform(word(seeds[static_cast<size_t>(b)] ^ kSpoilKey,
                                          static_cast<uint64_t>(position))) >= accept;
                    spoilt_ones += spoilt && accept == 0.5f;
                }
                for (int k = 0; k < kTopk; ++k) {
                    wanted.push_back((token + (spoilt ? 1 : 0) + k) % kVocab);
                    wanted_probs.push_back(-0.6931472f * static_cast<float>(k + 1));
                }
            }
        CHECK_EQ(from_device<int32_t>(ids), wanted);
        CHECK_EQ(from_device<float>(log_probs), wanted_probs);
    }
    CHECK(spoilt_ones > 0 && spoilt_ones < 11);
}
