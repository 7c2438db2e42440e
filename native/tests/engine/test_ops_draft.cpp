// SPDX-License-Identifier: Apache-2.0
//
// The drafter's context, its block's attention, and proposals made up for simulated acceptance.
#include "engine/keyed_random.h"
#include "ops_case.h"

using namespace ops;

namespace {

// A head, normed and rotated in pairs (i, i + head_dim / 2).
std::vector<double> turned(const float* head, const float* weight, int32_t head_dim, int64_t position,
                           const RopeTable& table) {
    std::vector<double> out = normed({head, head + head_dim}, {weight, weight + head_dim}, 1e-6);
    for (int32_t pair = 0; pair < head_dim / 2; ++pair)
        table.rotate(position, pair, out[static_cast<size_t>(pair)], out[static_cast<size_t>(pair + head_dim / 2)]);
    return out;
}

}  // namespace

TEST(ops_draft_store) {
    Random random(51);
    for (const Dtype dtype : kDtypes)
        for (const int32_t head_dim : {32, 64, 96, 128})
            for (const int32_t max_rows : {1, 8, 65}) {
                const DraftHeads heads = {4, head_dim == 96 ? 1 : 2, head_dim};
                const int32_t batch = 4, layers = 3, capacity = 100;
                const RopeTable table(90, head_dim / 2);  // positions beyond take the last row
                const int32_t head_count = 2 * heads.num_kv_heads;
                const auto kv = random_values(random, dtype,
                                              static_cast<size_t>(batch * max_rows * layers * head_count * head_dim));
                const auto norms = random_values(random, dtype, static_cast<size_t>(layers * head_dim));
                const std::vector<int32_t> starts = {0, 7, capacity - 3, -2};
                const std::vector<int32_t> counts = {max_rows, 0, max_rows, (max_rows + 1) / 2};
                const int64_t layer_stride = int64_t{batch} * capacity * head_count * head_dim + 16;
                const std::vector<float> before(static_cast<size_t>(layers * layer_stride), 7.0f);
                std::vector<double> wanted(before.begin(), before.end());
                for (int32_t b = 0; b < batch; ++b)
                    for (int32_t i = 0; i < counts[static_cast<size_t>(b)]; ++i)
                        for (int32_t layer = 0; layer < layers; ++layer)
                            for (int32_t h = 0; h < head_count; ++h) {
                                const int64_t position = starts[static_cast<size_t>(b)] + i;
                                if (position < 0 || position >= capacity) continue;
                                const int64_t row = ((int64_t{b} * max_rows + i) * layers + layer) * head_count + h;
                                const float* const head = &kv[static_cast<size_t>(row * head_dim)];
                                std::vector<double> stored(head, head + head_dim);
                                if (h < heads.num_kv_heads)
                                    stored = turned(head, &norms[static_cast<size_t>(layer * head_dim)], head_dim,
                                                    position, table);
                                std::copy(stored.begin(), stored.end(),
                                          wanted.begin() + layer * layer_stride +
                                              ((int64_t{b} * capacity + position) * head_count + h) * head_dim);
                            }
                const Buffer dkv = up(dtype, kv), dn = up(dtype, norms), ds = up(starts), dc = up(counts);
                const Buffer cache = up(dtype, before);
                draft_store(queue(), dtype, heads, dkv.data(), layers, dn.data(), 1e-6f, table.rope(), ds.as<int32_t>(),
                            dc.as<int32_t>(), cache.data(), layer_stride, capacity, batch, max_rows);
                check_near("draft_store", dtype, down(dtype, cache), wanted, 2e-6);
            }
}

TEST(ops_draft_attention) {
    Random random(52);
    struct Shape {
        DraftHeads heads;
        int32_t block, capacity;
        std::vector<int32_t> seq_lens;
    };
    const std::vector<Shape> shapes = {{{4, 2, 64}, 8, 700, {0, 1, 700, 333}}, {{4, 4, 32}, 2, 40, {31}},
                                       {{6, 1, 96}, 32, 300, {299, 5, 64}},    {{8, 2, 128}, 16, 130, {129, 900, -4}},
                                       {{4, 2, 64}, 8, 4096, {4000}},          {{3, 3, 64}, 1, 64, {63, 0}}};
    for (const Dtype dtype : kDtypes)
        for (const Shape& shape : shapes) {
            const DraftHeads heads = shape.heads;
            const int32_t hd = heads.head_dim, block = shape.block;
            const auto batch = static_cast<int32_t>(shape.seq_lens.size());
            const int32_t all_heads = heads.num_heads + 2 * heads.num_kv_heads;
            const RopeTable table(shape.capacity + block, hd / 2);
            const auto qkv = random_values(random, dtype, static_cast<size_t>(batch * block * all_heads * hd));
            const auto q_norm = random_values(random, dtype, static_cast<size_t>(hd), 3.0f);
            const auto k_norm = random_values(random, dtype, static_cast<size_t>(hd), 3.0f);
            const int64_t row_values = int64_t{2} * heads.num_kv_heads * hd;
            auto cache = random_values(random, dtype, static_cast<size_t>(batch * shape.capacity * row_values));
            // Nobody may look beyond the context.
            for (int32_t b = 0; b < batch; ++b)
                for (int64_t t = std::max(shape.seq_lens[static_cast<size_t>(b)], 0); t < shape.capacity; ++t)
                    for (int64_t i = 0; i < row_values; ++i)
                        cache[static_cast<size_t>((b * int64_t{shape.capacity} + t) * row_values + i)] = NAN;
            std::vector<double> wanted(static_cast<size_t>(batch * block * heads.num_heads * hd));
            for (int32_t b = 0; b < batch; ++b) {
                const int64_t position = shape.seq_lens[static_cast<size_t>(b)];
                const int64_t context = std::min<int64_t>(std::max<int64_t>(position, 0), shape.capacity);
                const auto head_at = [&](int32_t i, int32_t h) {
                    return &qkv[static_cast<size_t>(((int64_t{b} * block + i) * all_heads + h) * hd)];
                };
                for (int32_t kv_head = 0; kv_head < heads.num_kv_heads; ++kv_head) {
                    std::vector<std::vector<double>> keys, values;
                    for (int64_t t = 0; t < context; ++t) {
                        const float* const row =
                            &cache[static_cast<size_t>((b * int64_t{shape.capacity} + t) * row_values + kv_head * hd)];
                        keys.emplace_back(row, row + hd);
                        values.emplace_back(row + heads.num_kv_heads * hd, row + heads.num_kv_heads * hd + hd);
                    }
                    for (int32_t i = 0; i < block; ++i) {
                        keys.push_back(
                            turned(head_at(i, heads.num_heads + kv_head), k_norm.data(), hd, position + i, table));
                        const float* const value = head_at(i, heads.num_heads + heads.num_kv_heads + kv_head);
                        values.emplace_back(value, value + hd);
                    }
                    const int32_t shared = heads.num_heads / heads.num_kv_heads;
                    for (int32_t i = 0; i < block; ++i)
                        for (int32_t h = kv_head * shared; h < (kv_head + 1) * shared; ++h) {
                            const auto query = turned(head_at(i, h), q_norm.data(), hd, position + i, table);
                            std::vector<double> scores;
                            double top = -1e300, sum = 0.0;
                            for (const auto& key : keys) {
                                double score = 0.0;
                                for (int32_t d = 0; d < hd; ++d)
                                    score += query[static_cast<size_t>(d)] * key[static_cast<size_t>(d)];
                                scores.push_back(score / std::sqrt(static_cast<double>(hd)));
                                top = std::max(top, scores.back());
                            }
                            double* const out =
                                &wanted[static_cast<size_t>(((int64_t{b} * block + i) * heads.num_heads + h) * hd)];
                            for (double& score : scores) sum += score = std::exp(score - top);
                            for (size_t t = 0; t < scores.size(); ++t)
                                for (int32_t d = 0; d < hd; ++d)
                                    out[d] += scores[t] / sum * values[t][static_cast<size_t>(d)];
                        }
                }
            }
            const Buffer dqkv = up(dtype, qkv), dq = up(dtype, q_norm), dk = up(dtype, k_norm);
            const Buffer ds = up(shape.seq_lens), dcache = up(dtype, cache), out = space(dtype, wanted.size());
            const Buffer workspace(draft_attention_workspace(dtype, heads, batch, block, shape.capacity));
            for (int again = 0; again < 2; ++again) {
                draft_attention(queue(), dtype, heads, dqkv.data(), dq.data(), dk.data(), 1e-6f, table.rope(),
                                ds.as<int32_t>(), dcache.data(), shape.capacity, out.data(), batch, block,
                                workspace.data());
                check_near("draft_attention", dtype, down(dtype, out), wanted, 2e-5);
                workspace.values<char>();
            }
        }
}

TEST(ops_simulate_draft) {
    Random random(53);
    const int32_t batch = 5, horizon = 7, topk = 33, vocab = 1000, stride = 12;
    std::vector<int32_t> golden;
    for (int32_t i = 0; i < batch * stride; ++i) golden.push_back(random.below(vocab));
    const std::vector<int32_t> counts = {12, 12, 3, 0, 12}, starts = {4, 10, 4, 4, 100}, seq_lens = {4, 8, 4, 4, 99};
    std::vector<uint64_t> seeds;
    for (int32_t b = 0; b < batch; ++b) seeds.push_back(random.next());
    for (const float accept : {0.5f, 1.0f}) {
        std::vector<int32_t> tokens;
        std::vector<float> log_probs;
        for (size_t b = 0; b < static_cast<size_t>(batch); ++b)
            for (int32_t depth = 1; depth <= horizon; ++depth) {
                const int32_t position = seq_lens[b] + depth, at = position - starts[b];
                int64_t token = 0, spoilt = 1;
                if (at >= 0 && at < counts[b]) {
                    token = golden[b * stride + static_cast<size_t>(at)];
                    spoilt = uniform(word(seeds[b] ^ kSpoilKey, static_cast<uint64_t>(position))) >= accept;
                }
                for (int32_t k = 0; k < topk; ++k) {
                    tokens.push_back(static_cast<int32_t>((token + spoilt + k) % vocab));
                    log_probs.push_back(-0.6931472f * static_cast<float>(k + 1));
                }
            }
        const Buffer dg = up(golden), dc = up(counts), dst = up(starts), ds = up(seq_lens), dseeds = up(seeds);
        const Buffer ids(tokens.size() * 4), probs(tokens.size() * 4);
        simulate_draft(queue(), {dg.as<int32_t>(), dc.as<int32_t>(), dst.as<int32_t>(), stride}, ds.as<int32_t>(),
                       dseeds.as<uint64_t>(), accept, vocab, probs.as<float>(), ids.as<int32_t>(), batch, horizon,
                       topk);
        CHECK_EQ(ids.values<int32_t>(), tokens);
        CHECK_EQ(probs.values<float>(), log_probs);
    }
}
