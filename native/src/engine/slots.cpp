// SPDX-License-Identifier: Apache-2.0
#include "engine/slots.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/workspace.h"

namespace kdt::engine {
namespace {

constexpr int32_t kHistogram = KDT_MAX_DRAFT_HORIZON + 2;

// What the device wrote before it wrote this is visible when this is.
int32_t read_flag(const int32_t* flag) {
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

Memory ints(int64_t count) {
    return Memory(static_cast<size_t>(count) * sizeof(int32_t));
}

}  // namespace

SlotTable::SlotTable(Queue& queue, const Config& config)
    : queue_(queue),
      config_(config),
      pages_(config.num_pages),
      occupied_(static_cast<size_t>(config.max_batch), 0),
      unknown_to_drafter_(static_cast<size_t>(config.max_batch), 0),
      pages_of_(static_cast<size_t>(config.max_batch)),
      temperatures_(static_cast<size_t>(config.max_batch) * sizeof(float)),
      seeds_(static_cast<size_t>(config.max_batch) * sizeof(uint64_t)) {
    const int64_t batch = config.max_batch;
    roots_ = ints(batch);
    seq_lens_ = ints(batch);
    active_ = ints(batch);
    remaining_ = ints(batch);
    stop_tokens_ = ints(batch * kMaxStopTokens);
    context_starts_ = ints(batch);
    context_counts_ = ints(batch);
    round_ = ints(1);
    block_table_ = ints(batch * config.max_pages_per_seq());
    golden_ = ints(batch * config.max_seq_len);
    golden_counts_ = ints(batch);
    golden_starts_ = ints(batch);
    const std::vector<int32_t> nowhere(static_cast<size_t>(batch * config.max_pages_per_seq()), -1);
    queue.upload(block_table_.data(), nowhere.data(), block_table_.bytes());
    // Measured from a base that is none: the last address is the size.
    const Outputs sizes = outputs_in(nullptr);
    shared_ = SharedMemory(reinterpret_cast<uintptr_t>(sizes.rounds_done) + sizeof(int32_t));
}

Outputs SlotTable::outputs_in(void* base) const {
    auto at = reinterpret_cast<uintptr_t>(base);
    const auto next = [&](int64_t count, size_t size) {
        const uintptr_t here = at;
        at += (static_cast<size_t>(count) * size + 63) & ~size_t{63};
        return here;
    };
    const auto next_ints = [&](int64_t count) { return reinterpret_cast<int32_t*>(next(count, sizeof(int32_t))); };
    const int64_t batch = config_.max_batch;
    Outputs o = {};
    o.accepted = reinterpret_cast<int64_t*>(next(batch, sizeof(int64_t)));
    o.tokens = next_ints(batch * config_.max_seq_len);
    o.num_tokens = next_ints(batch);
    o.finished = next_ints(batch);
    o.rounds = next_ints(batch);
    o.status = next_ints(batch);
    o.histogram = next_ints(batch * kHistogram);
    o.rounds_done = next_ints(1);
    o.capacity = config_.max_seq_len;
    return o;
}

Outputs SlotTable::outputs() const {
    return outputs_in(shared_.device());
}

Slots SlotTable::state() const {
    return {roots_.as<int32_t>(),          seq_lens_.as<int32_t>(),    active_.as<int32_t>(),
            remaining_.as<int32_t>(),      stop_tokens_.as<int32_t>(), context_starts_.as<int32_t>(),
            context_counts_.as<int32_t>(), round_.as<int32_t>()};
}

Golden SlotTable::golden() const {
    return {golden_.as<int32_t>(), golden_counts_.as<int32_t>(), golden_starts_.as<int32_t>(), config_.max_seq_len};
}

const int32_t* SlotTable::block_table(int32_t slot) const {
    return block_table_.as<int32_t>() + int64_t{slot} * config_.max_pages_per_seq();
}

int32_t SlotTable::num_occupied() const {
    return static_cast<int32_t>(std::count(occupied_.begin(), occupied_.end(), 1));
}

template <class T>
void SlotTable::set(const Memory& memory, int64_t index, const T& value) {
    queue_.upload(memory.as<T>() + index, &value, sizeof(value));
}

int32_t SlotTable::occupy(int32_t tokens) {
    const auto found = std::find(occupied_.begin(), occupied_.end(), 0);
    if (found == occupied_.end())
        fail(KDT_UNSUPPORTED, "engine_admit: all %d slots are occupied now", config_.max_batch);
    const auto slot = static_cast<int32_t>(found - occupied_.begin());
    const int32_t wanted = (tokens + config_.page_size - 1) / config_.page_size;
    std::vector<int32_t> row = pages_.take(wanted);
    pages_of_[static_cast<size_t>(slot)] = row;
    occupied_[static_cast<size_t>(slot)] = 1;
    unknown_to_drafter_[static_cast<size_t>(slot)] = 0;
    row.resize(static_cast<size_t>(config_.max_pages_per_seq()), -1);
    queue_.upload(block_table_.as<int32_t>() + int64_t{slot} * config_.max_pages_per_seq(), row.data(),
                  row.size() * sizeof(int32_t));
    return slot;
}

void SlotTable::vacate(int32_t slot) {
    set(active_, slot, int32_t{0});
    set(seq_lens_, slot, int32_t{0});
    set(context_counts_, slot, int32_t{0});
    set(golden_counts_, slot, int32_t{0});
    const std::vector<int32_t> row(static_cast<size_t>(config_.max_pages_per_seq()), -1);
    queue_.upload(block_table_.as<int32_t>() + int64_t{slot} * config_.max_pages_per_seq(), row.data(),
                  row.size() * sizeof(int32_t));
    pages_.give_back(pages_of_[static_cast<size_t>(slot)]);
    pages_of_[static_cast<size_t>(slot)].clear();
    occupied_[static_cast<size_t>(slot)] = 0;
}

void SlotTable::check_occupied(const char* call, int32_t slot) const {
    if (slot < 0 || slot >= config_.max_batch)
        fail_argument("%s: slot is %d, wanted 0 .. %d", call, slot, config_.max_batch - 1);
    if (!occupied(slot)) fail_argument("%s: slot %d holds no request", call, slot);
}

void SlotTable::set_sampling(int32_t slot, float temperature, uint64_t seed) {
    set(temperatures_, slot, temperature);
    set(seeds_, slot, seed);
}

void SlotTable::activate(int32_t slot, const kdt_engine_request& request, int32_t first_token) {
    const int32_t* const stops = request.stop_tokens;
    const bool stopped =
        std::find(stops, stops + request.num_stop_tokens, first_token) != stops + request.num_stop_tokens;
    const int32_t remaining = request.max_new_tokens - 1;
    const bool finished = remaining == 0 || (stopped && first_token >= 0);

    const Outputs o = outputs_in(shared_.host());
    o.tokens[int64_t{slot} * o.capacity] = first_token;
    o.rounds[slot] = 0;
    o.accepted[slot] = 0;
    o.status[slot] = 0;
    std::fill_n(o.histogram + int64_t{slot} * kHistogram, kHistogram, 0);
    o.num_tokens[slot] = 1;
    o.finished[slot] = finished ? 1 : 0;

    int32_t padded[kMaxStopTokens];
    std::fill_n(padded, kMaxStopTokens, -1);
    std::copy_n(stops, request.num_stop_tokens, padded);
    queue_.upload(stop_tokens_.as<int32_t>() + slot * kMaxStopTokens, padded, sizeof(padded));
    const int32_t golden = std::min(request.num_golden_tokens, config_.max_seq_len);
    if (golden > 0)
        queue_.upload(golden_.as<int32_t>() + int64_t{slot} * config_.max_seq_len, request.golden_tokens,
                      static_cast<size_t>(golden) * sizeof(int32_t));
    set(golden_counts_, slot, golden);
    set(golden_starts_, slot, request.prompt_length);
    set(roots_, slot, first_token);
    set(seq_lens_, slot, request.prompt_length);
    set(remaining_, slot, remaining);
    set(context_starts_, slot, request.prompt_length);
    set(context_counts_, slot, int32_t{0});
    set(active_, slot, int32_t{finished ? 0 : 1});
}

int32_t SlotTable::slot_unknown_to_drafter() const {
    const Outputs o = outputs_in(shared_.host());
    for (int32_t slot = 0; slot < config_.max_batch; ++slot)
        if (occupied(slot) && unknown_to_drafter_[static_cast<size_t>(slot)] && read_flag(o.finished + slot) == 0)
            return slot;
    return -1;
}

void SlotTable::note_ar_rounds() {
    for (size_t slot = 0; slot < occupied_.size(); ++slot) unknown_to_drafter_[slot] |= occupied_[slot];
}

void SlotTable::progress(int32_t slot, kdt_engine_progress* to, int32_t* tokens, int32_t first,
                         int32_t capacity) const {
    const Outputs o = outputs_in(shared_.host());
    to->rounds_done = read_flag(o.rounds_done);
    to->finished = read_flag(o.finished + slot);
    to->num_tokens = std::min(read_flag(o.num_tokens + slot), o.capacity);
    to->rounds = o.rounds[slot];
    to->accepted = o.accepted[slot];
    to->status = o.status[slot];
    std::copy_n(o.histogram + int64_t{slot} * kHistogram, kHistogram, to->histogram);
    if (tokens == nullptr) return;
    for (int32_t i = 0; i < capacity && first + i < to->num_tokens; ++i)
        tokens[i] = o.tokens[int64_t{slot} * o.capacity + first + i];
}

}  // namespace kdt::engine
