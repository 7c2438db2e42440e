// SPDX-License-Identifier: Apache-2.0
//
// kv_compact: a move by hand, random rounds against a plain copy, and requests that are refused.
#include <algorithm>
#include <cstring>
#include <limits>

#include "calls.h"
#include "check.h"
#include "oracle.h"

using Ints = std::vector<int32_t>;

namespace {

constexpr int32_t kFar = std::numeric_limits<int32_t>::max();
constexpr int32_t kLow = std::numeric_limits<int32_t>::min();

// A cache of random bytes and pages in random order, one spare.
KvCompactInput random_cache(Random& random, int32_t layers, int32_t batch, int32_t pages, int32_t page_size,
                            int32_t row_bytes) {
    KvCompactInput in = {};
    in.batch = batch;
    in.num_layers = layers;
    in.num_pages = batch * pages + 1;
    in.page_size = page_size;
    in.max_pages_per_seq = pages;
    in.row_bytes = row_bytes;
    in.with_status = true;
    const size_t bytes = static_cast<size_t>(layers) * in.num_pages * page_size * row_bytes;
    while (in.kv_cache.size() < bytes) {
        const uint64_t word = random.next();
        for (int k = 0; k < 8; ++k) in.kv_cache.push_back(static_cast<unsigned char>(word >> (8 * k)));
    }
    in.kv_cache.resize(bytes);
    for (int32_t k = 0; k < in.num_pages; ++k) in.block_table.push_back(k);
    for (size_t k = in.block_table.size() - 1; k > 0; --k)
        std::swap(in.block_table[k], in.block_table[static_cast<size_t>(random.below(static_cast<int32_t>(k) + 1))]);
    in.block_table.pop_back();
    return in;
}

size_t row_at(const KvCompactInput& in, int32_t layer, int32_t b, int32_t slot) {
    const int32_t page = in.block_table[static_cast<size_t>(b) * in.max_pages_per_seq + slot / in.page_size];
    return ((static_cast<size_t>(layer) * in.num_pages + page) * in.page_size + slot % in.page_size) * in.row_bytes;
}

// From a copy of the whole cache, so that no order matters.
std::vector<unsigned char> moved(const KvCompactInput& in, const std::vector<bool>& refused) {
    std::vector<unsigned char> after = in.kv_cache;
    for (int32_t layer = 0; layer < in.num_layers; ++layer)
        for (int32_t b = 0; b < in.batch; ++b)
            for (int32_t k = 0; k <= in.draft_horizon && !refused[static_cast<size_t>(b)]; ++k) {
                const int32_t node = in.accepted_path[static_cast<size_t>(b) * (in.draft_horizon + 1) + k];
                if (node < 0) break;
                const int32_t prefix = in.seq_lens[static_cast<size_t>(b)];
                std::memcpy(&after[row_at(in, layer, b, prefix + k)], &in.kv_cache[row_at(in, layer, b, prefix + node)],
                            static_cast<size_t>(in.row_bytes));
            }
    return after;
}

}  // namespace

TEST(kv_compact_by_hand) {
    // Ten slots in pages of four, two tokens of prefix; rows are told apart by their first byte.
    KvCompactInput in = {1, 3, 1, 3, 4, 3, 16, std::vector<unsigned char>(12 * 16, 0), {2, 0, 1}, {2}, {0, 2, 3, 6}};
    for (int32_t slot = 0; slot < 12; ++slot) in.kv_cache[row_at(in, 0, 0, slot)] = static_cast<unsigned char>(slot);
    const KvCompactOutput got = run(in);
    Ints slots;
    for (int32_t slot = 0; slot < 12; ++slot) slots.push_back(got.kv_cache[row_at(in, 0, 0, slot)]);
    CHECK_EQ(slots, (Ints{0, 1, 2, 4, 5, 8, 6, 7, 8, 9, 10, 11}));
    CHECK_EQ(got.status, Ints{0});
    in.with_status = false;
    CHECK(run(in).kv_cache == got.kv_cache);
}

TEST(kv_compact_equals_a_copy) {
    Random random(21);
    for (const int32_t page_size : {1, 3, 16, 64})
        for (const int32_t horizon : {0, 1, 7, 8, 15, 16, 31})
            for (const int32_t row_bytes : {16, 656, 1152}) {
                const int32_t nodes = 90, prefix = 70;
                KvCompactInput in = random_cache(random, 1 + random.below(3), 1 + random.below(4),
                                                 (prefix + nodes + page_size - 1) / page_size, page_size, row_bytes);
                in.draft_horizon = horizon;
                for (int32_t b = 0; b < in.batch; ++b) {
                    in.seq_lens.push_back(random.below(prefix + 1));
                    const int32_t length = random.below(horizon + 2);
                    // Small steps overlap, and some of them are none at all.
                    for (int32_t k = 0, node = 0; k <= horizon; ++k, node += 1 + random.below(b % 2 == 0 ? 2 : 4) / 2)
                        in.accepted_path.push_back(k < length ? node : -1);
                }
                const KvCompactOutput got = run(in);
                CHECK_EQ(got.status, Ints(static_cast<size_t>(in.batch), 0));
                CHECK(got.kv_cache == moved(in, std::vector<bool>(static_cast<size_t>(in.batch), false)));
                CHECK(run(in) == got);
            }
}

TEST(kv_compact_refuses_one_request) {
    Random random(22);
    KvCompactInput sound = random_cache(random, 2, 3, 8, 4, 32);
    sound.draft_horizon = 4;
    sound.seq_lens = {5, 3, 0};
    for (int b = 0; b < 3; ++b)
        for (const int32_t node : {0, 2, 5, 20, -1}) sound.accepted_path.push_back(node);
    const auto refused = [&](const KvCompactInput& in, int32_t status) {
        const KvCompactOutput got = run(in);
        CHECK_EQ(got.status, (Ints{0, status, 0}));
        CHECK(got.kv_cache == moved(in, {false, status != 0, false}));
    };
    refused(sound, 0);
    const auto with_path = [&](const Ints& path) {
        KvCompactInput in = sound;
        std::copy(path.begin(), path.end(), in.accepted_path.begin() + 5);
        return in;
    };
    for (const Ints& path : {Ints{1, 2, 3, 4, 5}, Ints{0, 3, 3, -1, -1}, Ints{0, 5, 4, -1, -1}, Ints{0, 5, -1, 6, -1},
                             Ints{-1, 0, -1, -1, -1}, Ints{0, 5, -2, -1, -1}, Ints{kLow, -1, -1, -1, -1}})
        refused(with_path(path), KDT_REQ_BAD_TREE);
    refused(with_path({0, 2, kFar, -1, -1}), KDT_REQ_BAD_LENGTH);
    refused(with_path({0, 2, 29, -1, -1}), KDT_REQ_BAD_LENGTH);  // slot 32 of 32
    refused(with_path({0, 2, 28, -1, -1}), 0);
    for (const int32_t length : {-1, kLow, kFar}) {
        KvCompactInput in = sound;
        in.seq_lens[1] = length;
        refused(in, KDT_REQ_BAD_LENGTH);
    }
    for (const int32_t page : {-1, kLow, kFar, sound.num_pages})
        for (const size_t entry : {1, 2, 5}) {  // targets and a source; source alone; source alone
            KvCompactInput in = sound;
            in.block_table[8 + entry] = page;
            refused(in, KDT_REQ_BAD_PAGE);
        }
}

TEST(kv_compact_looks_at_nothing_it_does_not_need) {
    Random random(23);
    KvCompactInput in = random_cache(random, 1, 2, 8, 4, 16);
    in.draft_horizon = 3;
    in.seq_lens = {-7, kFar};
    in.accepted_path = {-1, -1, -1, -1, 0, 1, 2, 3};
    std::fill(in.block_table.begin(), in.block_table.end(), -1);
    const KvCompactOutput got = run(in);
    CHECK_EQ(got.status, (Ints{0, 0}));
    CHECK(got.kv_cache == in.kv_cache);
}

TEST(kv_compact_many_requests) {
    // More than a launch has blocks for in one of its dimensions.
    Random random(24);
    KvCompactInput in = random_cache(random, 1, 66000, 4, 1, 16);
    in.draft_horizon = 2;
    for (int32_t b = 0; b < in.batch; ++b) {
        in.seq_lens.push_back(b % 2);
        for (const int32_t node : {0, 2, -1}) in.accepted_path.push_back(node);
    }
    CHECK(run(in).kv_cache == moved(in, std::vector<bool>(66000, false)));
}

TEST(kv_compact_empty_batch) {
    CHECK_EQ(run(KvCompactInput{0, 3, 1, 1, 1, 1, 16, std::vector<unsigned char>(16), {}, {}, {}}).status, Ints{});
}
