// SPDX-License-Identifier: Apache-2.0
//
// The target's queries and its latents.
#include "ops_case.h"

using namespace ops;

namespace {

constexpr int32_t kNope = KDT_QK_NOPE_HEAD_DIM, kPe = KDT_QK_ROPE_HEAD_DIM, kLatent = KDT_KV_LORA_RANK;

std::vector<float> halves_of(const Buffer& buffer) {
    return down(KDT_BF16, buffer);
}

}  // namespace

TEST(ops_mla_queries) {
    Random random(21);
    const RopeTable table(50, kPe / 2);
    for (const Dtype dtype : kDtypes)
        for (const int32_t rows : {1, 3, 65, 130})
            for (const int32_t extra : {0, 64, 3}) {
                const int32_t heads = rows == 65 ? 4 : 3, width = heads * (kNope + kPe), stride = width + extra;
                const auto q = random_values(random, dtype, static_cast<size_t>(rows) * stride);
                std::vector<int32_t> positions;
                for (int32_t r = 0; r < rows; ++r) positions.push_back(random.below(70) - 10);
                const Buffer dq = up(dtype, q), dp = up(positions);
                const Buffer nope = space(KDT_BF16, static_cast<size_t>(rows) * heads * kNope);
                const Buffer pe = space(KDT_BF16, static_cast<size_t>(rows) * heads * kPe);
                mla_queries(queue(), dtype, dq.data(), stride, dp.as<int32_t>(), table.rope(), heads, nope.data(),
                            pe.data(), rows);
                std::vector<double> wanted_nope, wanted_pe;
                for (int32_t r = 0; r < rows; ++r)
                    for (int32_t h = 0; h < heads; ++h) {
                        const float* const head = &q[static_cast<size_t>(r) * stride + h * (kNope + kPe)];
                        wanted_nope.insert(wanted_nope.end(), head, head + kNope);
                        for (int32_t pair = 0; pair < kPe / 2; ++pair) {
                            double a = head[kNope + 2 * pair], b = head[kNope + 2 * pair + 1];
                            table.rotate(positions[static_cast<size_t>(r)], pair, a, b);
                            wanted_pe.push_back(a);
                            wanted_pe.push_back(b);
                        }
                    }
                check_near("q_nope", KDT_BF16, halves_of(nope), wanted_nope, 0.0);
                check_near("q_pe", KDT_BF16, halves_of(pe), wanted_pe, 1e-6);
            }
}

TEST(ops_mla_store) {
    Random random(22);
    const RopeTable table(300, kPe / 2);
    const int32_t batch = 4, pages = 40;
    for (const Dtype dtype : kDtypes)
        for (const int32_t page_size : {1, 64, 5})
            for (const int32_t max_nodes : {1, 3, 65}) {
                const int32_t stride = kLatent + kPe + (max_nodes == 3 ? 7 : 64), pages_a_seq = page_size == 1 ? 9 : 6;
                const int32_t rows = batch * max_nodes;
                const auto kv = random_values(random, dtype, static_cast<size_t>(rows) * stride);
                const auto weight = random_values(random, dtype, kLatent);
                std::vector<int32_t> positions, block_table(static_cast<size_t>(batch) * pages_a_seq, -1);
                for (int32_t r = 0; r < rows; ++r) positions.push_back(random.below(320) - 10);
                // Slot 1 is empty, slot 2 writes beyond its block table, slot 3 has bad pages.
                const std::vector<int32_t> seq_lens = {3, 0, pages_a_seq * page_size - 2, 2};
                const std::vector<int32_t> num_nodes = {max_nodes, 0, max_nodes, (max_nodes + 1) / 2};
                for (int32_t i = 0; i < pages_a_seq; ++i) {
                    block_table[static_cast<size_t>(i)] = i;
                    block_table[static_cast<size_t>(2 * pages_a_seq + i)] = 10 + i;
                    block_table[static_cast<size_t>(3 * pages_a_seq + i)] = i % 2 == 0 ? 20 + i : i == 1 ? pages : -1;
                }
                const size_t width = kLatent + kPe;
                std::vector<float> before(static_cast<size_t>(pages) * page_size * width, 9.0f);
                std::vector<double> wanted(before.begin(), before.end());
                for (int32_t b = 0; b < batch; ++b)
                    for (int32_t i = 0; i < num_nodes[static_cast<size_t>(b)]; ++i) {
                        const int32_t slot = seq_lens[static_cast<size_t>(b)] + i;
                        if (slot / page_size >= pages_a_seq) continue;
                        const int32_t page = block_table[static_cast<size_t>(b * pages_a_seq + slot / page_size)];
                        if (page < 0 || page >= pages) continue;
                        const int32_t r = b * max_nodes + i;
                        const float* const row = &kv[static_cast<size_t>(r) * stride];
                        std::vector<double> latent = normed({row, row + kLatent}, weight, 1e-6);
                        for (int32_t pair = 0; pair < kPe / 2; ++pair) {
                            double a = row[kLatent + 2 * pair], c = row[kLatent + 2 * pair + 1];
                            table.rotate(positions[static_cast<size_t>(r)], pair, a, c);
                            latent.push_back(a);
                            latent.push_back(c);
                        }
                        std::copy(latent.begin(), latent.end(),
                                  wanted.begin() +
                                      (int64_t{page} * page_size + slot % page_size) * static_cast<int64_t>(width));
                    }
                const Buffer dkv = up(dtype, kv), dw = up(dtype, weight), dp = up(positions), dt = up(block_table);
                const Buffer ds = up(seq_lens), dn = up(num_nodes), cache = up(KDT_BF16, before);
                mla_store(queue(), dtype, dkv.data(), stride, dw.data(), 1e-6f, dp.as<int32_t>(), table.rope(),
                          ds.as<int32_t>(), dn.as<int32_t>(), {dt.as<int32_t>(), pages_a_seq, page_size, pages},
                          cache.data(), batch, max_nodes);
                check_near("mla_store", KDT_BF16, halves_of(cache), wanted, 1e-6);
            }
}

TEST(ops_hide_idle) {
    std::vector<int32_t> active, nodes, wanted;
    for (int32_t b = 0; b < 300; ++b) {
        active.push_back(b % 3 == 0);
        nodes.push_back(b + 1);
        wanted.push_back(b % 3 == 0 ? b + 1 : 0);
    }
    const Buffer da = up(active), dn = up(nodes);
    hide_idle(queue(), da.as<int32_t>(), dn.as<int32_t>(), 300);
    CHECK_EQ(dn.values<int32_t>(), wanted);
}
