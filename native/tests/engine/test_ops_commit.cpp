// SPDX-License-Identifier: Apache-2.0
//
// The end of a round, slot by slot, and the order of work.
#include <chrono>
#include <thread>

#include "ops_case.h"

using namespace ops;

namespace {

constexpr int32_t kHorizon = 4, kNodes = 9, kCapacity = 40, kHistogram = KDT_MAX_DRAFT_HORIZON + 2;

// A slot before a round, and what the round says of it.
struct Slot {
    int32_t active, seq_len, remaining, num_tokens, length;
    std::vector<int32_t> path;   // [length]
    std::vector<int32_t> stops;  // up to 8
};

struct Books {
    std::vector<int32_t> roots, seq_lens, active, remaining, context_starts, context_counts;
    std::vector<int32_t> tokens, num_tokens, finished, rounds, status, histogram;
    std::vector<int64_t> accepted;
    int32_t rounds_done;

    bool operator==(const Books& o) const {
        return roots == o.roots && seq_lens == o.seq_lens && active == o.active && remaining == o.remaining &&
               context_counts == o.context_counts && tokens == o.tokens && num_tokens == o.num_tokens &&
               finished == o.finished && rounds == o.rounds && status == o.status && histogram == o.histogram &&
               accepted == o.accepted && rounds_done == o.rounds_done;
    }
};

template <class T>
std::vector<T> host_values(const SharedMemory& memory, size_t count) {
    std::vector<T> values(count);
    std::memcpy(values.data(), memory.host(), count * sizeof(T));
    return values;
}

template <class T>
SharedMemory shared(const std::vector<T>& values) {
    SharedMemory memory(values.size() * sizeof(T));
    std::memcpy(memory.host(), values.data(), values.size() * sizeof(T));
    return memory;
}

const std::vector<Slot> kSlots = {
    {1, 10, 20, 3, 3, {0, 2, 5}, {}},                 // ordinary
    {1, 10, 20, 3, 5, {0, 1, 2, 3, 4}, {1002}},       // a stop token on the way (node 2)
    {1, 10, 2, 3, 4, {0, 1, 3, 8}, {}},               // no more than two
    {1, 10, 2, 3, 3, {0, 1, 3}, {1003}},              // the second token stops, and is the last one allowed
    {0, 0, 0, 0, 1, {0}, {}},                         // empty
    {1, 7, 1, 5, 1, {0}, {}},                         // the root alone, the last one allowed
    {1, 7, 9, 5, 0, {}, {}},                          // no length
    {1, 7, 9, 5, kHorizon + 2, {0, 1, 2, 3, 4}, {}},  // more than there can be
    {1, 7, 9, 5, 3, {0, 1, kNodes}, {}},              // a node that there is not
    {1, 7, 9, 5, 2, {-1, 1}, {}},
    {1, 9, 9, 4, 2, {0, 6}, {2010, 17, 5, 6, 7, 8, 9, 2010}},  // the bonus stops
    {1, 9, 9, 36, 4, {0, 1, 2, 3}, {}},                        // the last places of `tokens`
    {1, 9, 1, 4, 3, {0, 1, 2}, {1002}},                        // a stop token beyond what is allowed
};

}  // namespace

TEST(ops_commit) {
    Random random(61);
    const auto batch = static_cast<int32_t>(kSlots.size());
    for (const Dtype dtype : kDtypes)
        for (const int32_t width : {0, 48, 7168, 33}) {  // 0: no drafter
            Books before = {};
            std::vector<int32_t> token_ids, paths, lengths, bonus, stops, flags, more_flags;
            for (int32_t b = 0; b < batch; ++b) {
                const Slot& slot = kSlots[static_cast<size_t>(b)];
                for (int32_t i = 0; i < kNodes; ++i) token_ids.push_back(1000 + i);
                for (size_t i = 0; i <= kHorizon; ++i) paths.push_back(i < slot.path.size() ? slot.path[i] : -1);
                for (size_t i = 0; i < 8; ++i) stops.push_back(i < slot.stops.size() ? slot.stops[i] : -1);
                lengths.push_back(slot.length);
                bonus.push_back(2000 + b);
                flags.push_back(1 << b);
                more_flags.push_back(1 << 20);
                before.roots.push_back(50 + b);
                before.seq_lens.push_back(slot.seq_len);
                before.active.push_back(slot.active);
                before.remaining.push_back(slot.remaining);
                before.context_starts.push_back(77);
                before.context_counts.push_back(3);
                before.num_tokens.push_back(slot.num_tokens);
                before.finished.push_back(1 - slot.active);
                before.rounds.push_back(2 * b);
                before.accepted.push_back((int64_t{1} << 33) + b);
                before.status.push_back(1 << 25);
                for (int32_t i = 0; i < kHistogram; ++i) before.histogram.push_back(i);
                for (int32_t i = 0; i < kCapacity; ++i) before.tokens.push_back(-5);
            }
            before.rounds_done = 41;

            const size_t rows = static_cast<size_t>(batch) * kNodes;
            const int32_t context_rows = kHorizon + 1;
            const auto features = random_values(random, dtype, rows * static_cast<size_t>(width));
            std::vector<float> context(static_cast<size_t>(batch * context_rows * width), 4.0f);
            const Buffer df = up(dtype, features), dc = up(dtype, context);
            Books wanted = before;
            for (int32_t b = 0; b < batch; ++b) {
                const auto at = static_cast<size_t>(b);
                const Slot& slot = kSlots[at];
                wanted.context_counts[at] = 0;
                if (slot.active == 0) continue;
                wanted.status[at] |= flags[at] | more_flags[at];
                bool sound = slot.length >= 1 && slot.length <= kHorizon + 1;
                for (const int32_t node : slot.path) sound = sound && node >= 0 && node < kNodes;
                if (!sound) {
                    wanted.finished[at] = 1;
                    wanted.active[at] = 0;
                    continue;
                }
                for (int32_t i = 0; i < slot.length; ++i) {
                    const size_t node = at * kNodes + static_cast<size_t>(slot.path[static_cast<size_t>(i)]);
                    std::copy(features.begin() + static_cast<int64_t>(node) * width,
                              features.begin() + static_cast<int64_t>(node + 1) * width,
                              context.begin() + int64_t{b * context_rows + i} * width);
                }
                wanted.context_starts[at] = slot.seq_len;
                wanted.context_counts[at] = slot.length;
                wanted.seq_lens[at] += slot.length;
                wanted.roots[at] = bonus[at];
                wanted.rounds[at] += 1;
                wanted.accepted[at] += slot.length;
                wanted.histogram[at * kHistogram + static_cast<size_t>(slot.length)] += 1;
                for (int32_t i = 0; i < slot.length && wanted.finished[at] == 0; ++i) {
                    const int32_t token =
                        i + 1 < slot.length ? 1000 + slot.path[static_cast<size_t>(i) + 1] : bonus[at];
                    wanted.tokens[at * kCapacity + static_cast<size_t>(wanted.num_tokens[at]++)] = token;
                    wanted.remaining[at] -= 1;
                    const bool stopped = std::find(slot.stops.begin(), slot.stops.end(), token) != slot.stops.end();
                    if (stopped || wanted.remaining[at] == 0) {
                        wanted.finished[at] = 1;
                        wanted.active[at] = 0;
                    }
                }
            }
            wanted.rounds_done = 42;

            const Buffer roots = up(before.roots), seq_lens = up(before.seq_lens), active = up(before.active);
            const Buffer remaining = up(before.remaining), starts = up(before.context_starts), ds = up(stops);
            const Buffer counts = up(before.context_counts), round = up(std::vector<int32_t>{41});
            const Buffer ids = up(token_ids), dp = up(paths), dl = up(lengths), db = up(bonus);
            const Buffer df0 = up(flags), df1 = up(more_flags);
            const SharedMemory tokens = shared(before.tokens), num_tokens = shared(before.num_tokens);
            const SharedMemory finished = shared(before.finished), rounds = shared(before.rounds);
            const SharedMemory accepted = shared(before.accepted), status = shared(before.status);
            const SharedMemory histogram = shared(before.histogram);
            const SharedMemory done = shared(std::vector<int32_t>{before.rounds_done});
            const auto i32 = [](const SharedMemory& memory) { return static_cast<int32_t*>(memory.device()); };
            Accepted result = {};
            result.token_ids = ids.as<int32_t>();
            result.accepted_path = dp.as<int32_t>();
            result.acceptance_length = dl.as<int32_t>();
            result.bonus_tokens = db.as<int32_t>();
            result.max_nodes = kNodes;
            result.horizon = kHorizon;
            result.statuses[0] = df0.as<int32_t>();
            result.statuses[1] = df1.as<int32_t>();
            result.num_statuses = 2;
            const Context gather = {width == 0 ? nullptr : df.data(), dc.data(), width, context_rows};
            commit(queue(), dtype, result, gather,
                   {roots.as<int32_t>(), seq_lens.as<int32_t>(), active.as<int32_t>(), remaining.as<int32_t>(),
                    ds.as<int32_t>(), starts.as<int32_t>(), counts.as<int32_t>(), round.as<int32_t>()},
                   {i32(tokens), i32(num_tokens), i32(finished), i32(rounds), static_cast<int64_t*>(accepted.device()),
                    i32(status), i32(histogram), i32(done), kCapacity},
                   batch);
            queue().wait();

            Books after = {};
            after.roots = roots.values<int32_t>();
            after.seq_lens = seq_lens.values<int32_t>();
            after.active = active.values<int32_t>();
            after.remaining = remaining.values<int32_t>();
            after.context_starts = starts.values<int32_t>();
            after.context_counts = counts.values<int32_t>();
            const auto slots = static_cast<size_t>(batch);
            after.tokens = host_values<int32_t>(tokens, slots * kCapacity);
            after.num_tokens = host_values<int32_t>(num_tokens, slots);
            after.finished = host_values<int32_t>(finished, slots);
            after.rounds = host_values<int32_t>(rounds, slots);
            after.accepted = host_values<int64_t>(accepted, slots);
            after.status = host_values<int32_t>(status, slots);
            after.histogram = host_values<int32_t>(histogram, slots * kHistogram);
            after.rounds_done = host_values<int32_t>(done, 1)[0];
            CHECK_EQ(after.tokens, wanted.tokens);
            CHECK_EQ(after.num_tokens, wanted.num_tokens);
            CHECK_EQ(after.finished, wanted.finished);
            CHECK_EQ(after.active, wanted.active);
            CHECK_EQ(after.remaining, wanted.remaining);
            CHECK_EQ(after.seq_lens, wanted.seq_lens);
            CHECK_EQ(after.context_counts, wanted.context_counts);
            CHECK_EQ(after.histogram, wanted.histogram);
            CHECK_EQ(after.status, wanted.status);
            CHECK_EQ(after.rounds, wanted.rounds);
            CHECK(after == wanted);
            CHECK_EQ(round.values<int32_t>(), std::vector<int32_t>{42});
            for (size_t b = 0; b < slots; ++b)
                if (wanted.context_counts[b] > 0) CHECK_EQ(after.context_starts[b], wanted.context_starts[b]);
            if (width == 0) continue;
            const std::vector<float> gathered = down(dtype, dc);
            for (size_t b = 0; b < slots; ++b)
                for (int64_t i = 0; i < int64_t{wanted.context_counts[b]} * width; ++i) {
                    const size_t at = b * static_cast<size_t>(context_rows * width) + static_cast<size_t>(i);
                    CHECK_EQ(gathered[at], context[at]);
                }
        }
}

TEST(ops_recording_runs_only_when_replayed) {
    const Buffer counter = up(std::vector<float>(300, 0.0f)), ones = up(std::vector<float>(300, 1.0f));
    const Buffer other(1200);
    // residual += delta, three times.
    const auto add = [&] {
        for (int i = 0; i < 3; ++i)
            add_rmsnorm(queue(), KDT_F32, counter.data(), ones.data(), nullptr, 0, nullptr, 0.0f, nullptr, 1, 300);
        queue().copy(other.data(), counter.data(), 1200);
        queue().zero(other.data(), 4);
    };
    Recording recording(queue(), add);
    queue().wait();
    CHECK_EQ(counter.values<float>(), std::vector<float>(300, 0.0f));
    recording.replay();
    recording.replay();
    queue().wait();
    CHECK_EQ(counter.values<float>(), std::vector<float>(300, 6.0f));
    std::vector<float> wanted(300, 6.0f);
    wanted[0] = 0.0f;
    CHECK_EQ(other.values<float>(), wanted);
}

TEST(ops_stamp_sums_spans_and_gaps) {
    const Memory stamps(sizeof(Stamps));
    Stamps* const device = stamps.as<Stamps>();
    Recording round(queue(), [&] {
        stamp(queue(), device, 0, false);
        stamp(queue(), device, 3, false);
        stamp(queue(), device, 6, true);
    });
    round.replay();
    queue().wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    round.replay();
    queue().zero(&device->end, sizeof(device->end));
    round.replay();
    Stamps found = {};
    queue().download(&found, stamps.data(), sizeof(found));
    CHECK_EQ(found.rounds, int64_t{3});
    CHECK_EQ(found.gaps, int64_t{1});
    CHECK(found.idle >= 15'000'000 && found.idle < 10'000'000'000);
    CHECK_EQ(found.busy, found.spans[3] + found.spans[6]);
    CHECK_EQ(found.spans[0] + found.spans[1] + found.spans[2] + found.spans[4] + found.spans[5], int64_t{0});
    CHECK_EQ(found.last, found.end);
    CHECK(found.begin <= found.end && found.busy < 1'000'000'000);
}

TEST(ops_recording_leaves_no_capture_behind_a_failure) {
    bool failed = false;
    try {
        Recording recording(queue(), [] { throw std::runtime_error("on purpose"); });
        recording.replay();  // the CPU's runs here
    } catch (const std::runtime_error&) {
        failed = true;
    }
    CHECK(failed);
    const Buffer memory = up(std::vector<int32_t>{1, 2, 3});
    CHECK_EQ(memory.values<int32_t>(), (std::vector<int32_t>{1, 2, 3}));
}

TEST(ops_memory_is_zeroed) {
    for (const size_t bytes : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
        const Memory memory(bytes);
        std::vector<char> values(bytes, 1);
        queue().download(values.data(), memory.data(), bytes);
        CHECK_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 256, uintptr_t{0});
        CHECK(values == std::vector<char>(bytes, 0));
    }
}
