// SPDX-License-Identifier: Apache-2.0
//
// commit: outputs, state and context of every kind of slot, against a model of it in plain code.
#include "engine/arrays.h"

using namespace arrays;
using namespace kdt::engine;

namespace {

constexpr int kBatch = 7, kNodes = 9, kHorizon = 4, kWidth = 10, kContext = 8, kCapacity = 12;
constexpr int kHistogram = KDT_MAX_DRAFT_HORIZON + 2;

// The arrays of Slots and Outputs by name, on the host.
struct State {
    std::vector<int32_t> roots, seq_lens, active, remaining, stops, starts, counts, round;
    std::vector<int32_t> tokens, num_tokens, finished, rounds, status, histogram, rounds_done;
    std::vector<int64_t> accepted;
};

State initial() {
    State s;
    for (int b = 0; b < kBatch; ++b) {
        s.roots.push_back(100 + b);
        s.seq_lens.push_back(20 * b + 3);
        s.active.push_back(b == 2 ? 0 : 1);
        s.remaining.push_back(b == 3 ? 2 : 9);
        s.starts.push_back(-7);
        s.counts.push_back(5);
        s.num_tokens.push_back(1 + b % 2);
        s.finished.push_back(b == 2);
        s.rounds.push_back(b);
        s.status.push_back(b == 1 ? 4 : 0);
        s.accepted.push_back((int64_t{1} << 33) + b);
    }
    s.stops.assign(kBatch * 8, -1);
    s.stops[4 * 8 + 3] = 4 * 1000 + 6;  // request 4's second emitted token
    s.tokens.assign(kBatch * kCapacity, -5);
    s.histogram.assign(kBatch * kHistogram, 2);
    s.round = {41};
    s.rounds_done = {41};
    return s;
}

}  // namespace

TEST(commit_moves_every_kind_of_slot) {
    for (const Dtype dtype : dtypes()) {
        // 0: a path; 1: the bonus alone; 2: idle; 3: cut at remaining; 4: cut at a stop; 5: no length; 6: a full path.
        const std::vector<int32_t> paths = {0, 2,  5, -1, -1, 0,  -1, -1, -1, -1, 0,  1,  -1, -1, -1, 0, 1, 2,
                                            8, -1, 0, 6,  7,  -1, -1, -1, -1, -1, -1, -1, 0,  1,  2,  3, 8};
        const std::vector<int32_t> lengths = {3, 1, 2, 4, 3, 0, 5};
        std::vector<int32_t> token_ids, bonus, statuses;
        for (int b = 0; b < kBatch; ++b) {
            for (int i = 0; i < kNodes; ++i) token_ids.push_back(1000 * b + i);
            bonus.push_back(1000 * b + 500);
            statuses.push_back(b == 0 ? 1 : b == 2 ? 256 : 0);
        }
        const std::vector<float> features = random_values(1, kBatch * kNodes * kWidth, dtype);
        const std::vector<float> before = random_values(2, kBatch * kContext * kWidth, dtype);
        const State s = initial();
        const Memory roots = to_device(s.roots), seq_lens = to_device(s.seq_lens), active = to_device(s.active),
                     remaining = to_device(s.remaining), stops = to_device(s.stops), starts = to_device(s.starts),
                     counts = to_device(s.counts), round = to_device(s.round), tokens = to_device(s.tokens),
                     num_tokens = to_device(s.num_tokens), finished = to_device(s.finished),
                     rounds = to_device(s.rounds), status = to_device(s.status), histogram = to_device(s.histogram),
                     done = to_device(s.rounds_done), accepted_sum = to_device(s.accepted),
                     d_ids = to_device(token_ids), d_paths = to_device(paths), d_lengths = to_device(lengths),
                     d_bonus = to_device(bonus), d_status = to_device(statuses),
                     d_features = act_to_device(features, dtype), context = act_to_device(before, dtype);
        const Memory d_more = to_device(std::vector<int32_t>{2, 0, 0, 0, 8, 0, 0});
        const Accepted accepted = {d_ids.as<int32_t>(),
                                   d_paths.as<int32_t>(),
                                   d_lengths.as<int32_t>(),
                                   d_bonus.as<int32_t>(),
                                   kNodes,
                                   kHorizon,
                                   {d_status.as<int32_t>(), d_more.as<int32_t>()},
                                   2};
        const Slots slots = {roots.as<int32_t>(), seq_lens.as<int32_t>(), active.as<int32_t>(), remaining.as<int32_t>(),
                             stops.as<int32_t>(), starts.as<int32_t>(),   counts.as<int32_t>(), round.as<int32_t>()};
        const Outputs outputs = {tokens.as<int32_t>(),    num_tokens.as<int32_t>(),   finished.as<int32_t>(),
                                 rounds.as<int32_t>(),    accepted_sum.as<int64_t>(), status.as<int32_t>(),
                                 histogram.as<int32_t>(), done.as<int32_t>(),         kCapacity};
        commit(queue(), dtype, accepted, {d_features.data(), context.data(), kWidth, kContext}, slots, outputs, kBatch);

        CHECK_EQ(from_device<int32_t>(roots), (std::vector<int32_t>{500, 1500, 102, 3500, 4500, 105, 6500}));
        CHECK_EQ(from_device<int32_t>(seq_lens), (std::vector<int32_t>{6, 24, 43, 67, 86, 103, 128}));
        CHECK_EQ(from_device<int32_t>(active), (std::vector<int32_t>{1, 1, 0, 0, 0, 0, 1}));
        CHECK_EQ(from_device<int32_t>(remaining), (std::vector<int32_t>{6, 8, 9, 0, 8, 9, 4}));
        const std::vector<int32_t> new_counts = from_device<int32_t>(counts), new_starts = from_device<int32_t>(starts);
        CHECK_EQ(new_counts, (std::vector<int32_t>{3, 1, 0, 4, 3, 0, 5}));
        for (const int b : {0, 1, 3, 4, 6}) CHECK_EQ(new_starts[static_cast<size_t>(b)], 20 * b + 3);
        CHECK_EQ(from_device<int32_t>(num_tokens), (std::vector<int32_t>{4, 3, 1, 4, 2, 2, 6}));
        CHECK_EQ(from_device<int32_t>(finished), (std::vector<int32_t>{0, 0, 1, 1, 1, 1, 0}));
        CHECK_EQ(from_device<int32_t>(rounds), (std::vector<int32_t>{1, 2, 2, 4, 5, 5, 7}));
        CHECK_EQ(from_device<int32_t>(status), (std::vector<int32_t>{3, 4, 0, 0, 8, 0, 0}));
        CHECK_EQ(from_device<int32_t>(round), (std::vector<int32_t>{42}));
        CHECK_EQ(from_device<int32_t>(done), (std::vector<int32_t>{42}));
        std::vector<int64_t> sums = s.accepted;
        std::vector<int32_t> bins = s.histogram, texts = s.tokens;
        for (const size_t b : {0, 1, 3, 4, 6}) {
            sums[b] += lengths[b];
            ++bins[b * kHistogram + static_cast<size_t>(lengths[b])];
        }
        CHECK_EQ(from_device<int64_t>(accepted_sum), sums);
        CHECK_EQ(from_device<int32_t>(histogram), bins);
        const auto write = [&](size_t b, size_t first, const std::vector<int32_t>& values) {
            std::copy(values.begin(), values.end(), texts.begin() + static_cast<ptrdiff_t>(b * kCapacity + first));
        };
        write(0, 1, {2, 5, 500});
        write(1, 2, {1500});
        write(3, 2, {3001, 3002});
        write(4, 1, {4006});
        write(6, 1, {6001, 6002, 6003, 6008, 6500});
        CHECK_EQ(from_device<int32_t>(tokens), texts);

        std::vector<float> rows = before;
        for (const size_t b : {0, 1, 3, 4, 6})
            for (size_t i = 0; i < static_cast<size_t>(lengths[b]); ++i)
                std::copy_n(
                    features.begin() + static_cast<ptrdiff_t>(
                                           (b * kNodes + static_cast<size_t>(paths[b * (kHorizon + 1) + i])) * kWidth),
                    kWidth, rows.begin() + static_cast<ptrdiff_t>((b * kContext + i) * kWidth));
        CHECK_EQ(act_from_device(context, dtype), rows);
    }
}

TEST(commit_without_a_drafter_leaves_the_context) {
    const State s = initial();
    const Memory roots = to_device(s.roots), seq_lens = to_device(s.seq_lens), active = to_device(s.active),
                 remaining = to_device(s.remaining), stops = to_device(s.stops), starts = to_device(s.starts),
                 counts = to_device(s.counts), round = to_device(s.round), tokens = to_device(s.tokens),
                 num_tokens = to_device(s.num_tokens), finished = to_device(s.finished), rounds = to_device(s.rounds),
                 status = to_device(s.status), histogram = to_device(s.histogram), done = to_device(s.rounds_done),
                 accepted_sum = to_device(s.accepted);
    const Memory ids = to_device(std::vector<int32_t>(kBatch, 9)), paths = to_device(std::vector<int32_t>(kBatch, 0)),
                 lengths = to_device(std::vector<int32_t>(kBatch, 1)),
                 bonus = to_device(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6});
    const Slots slots = {roots.as<int32_t>(), seq_lens.as<int32_t>(), active.as<int32_t>(), remaining.as<int32_t>(),
                         stops.as<int32_t>(), starts.as<int32_t>(),   counts.as<int32_t>(), round.as<int32_t>()};
    const Outputs outputs = {tokens.as<int32_t>(),    num_tokens.as<int32_t>(),   finished.as<int32_t>(),
                             rounds.as<int32_t>(),    accepted_sum.as<int64_t>(), status.as<int32_t>(),
                             histogram.as<int32_t>(), done.as<int32_t>(),         kCapacity};
    commit(queue(), KDT_F32,
           {ids.as<int32_t>(), paths.as<int32_t>(), lengths.as<int32_t>(), bonus.as<int32_t>(), 1, 0, {}, 0},
           {nullptr, nullptr, 0, 0}, slots, outputs, kBatch);
    CHECK_EQ(from_device<int32_t>(roots), (std::vector<int32_t>{0, 1, 102, 3, 4, 5, 6}));
    CHECK_EQ(from_device<int32_t>(num_tokens), (std::vector<int32_t>{2, 3, 1, 3, 2, 3, 2}));
    CHECK_EQ(from_device<int32_t>(tokens)[0 * kCapacity + 1], 0);  // token 0 is a token
    CHECK_EQ(from_device<int32_t>(finished), (std::vector<int32_t>{0, 0, 1, 0, 0, 0, 0}));
}
