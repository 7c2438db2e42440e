// SPDX-License-Identifier: Apache-2.0
//
// The end of a round: what was accepted becomes output, context and state.
#include <algorithm>
#include <cstring>

#include "engine/ops.h"

namespace kdt::engine {
namespace {

constexpr int32_t kStops = 8;
constexpr int32_t kHistogram = KDT_MAX_DRAFT_HORIZON + 2;

bool is_stop(const int32_t* stop_tokens, int32_t token) {
    return token >= 0 && std::find(stop_tokens, stop_tokens + kStops, token) != stop_tokens + kStops;
}

// The host may read meanwhile: what stands before is visible when this is.
void publish(int32_t* flag, int32_t value) {
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

class Commit {
  public:
    Commit(Dtype dtype, const Accepted& accepted, const Context& context, const Slots& slots, const Outputs& outputs,
           int64_t b)
        : dtype_(dtype),
          accepted_(accepted),
          context_(context),
          slots_(slots),
          outputs_(outputs),
          b_(b),
          path_(accepted.accepted_path + b * (accepted.horizon + 1)) {}

    void run() {
        if (slots_.active[b_] == 0) {
            slots_.context_counts[b_] = 0;
            return;
        }
        for (int32_t i = 0; i < accepted_.num_statuses; ++i) outputs_.status[b_] |= accepted_.statuses[i][b_];
        const int32_t length = accepted_.acceptance_length[b_];
        if (!well_formed(length)) {
            slots_.context_counts[b_] = 0;
            finish();
            return;
        }
        ++outputs_.rounds[b_];
        outputs_.accepted[b_] += length;
        ++outputs_.histogram[b_ * kHistogram + length];
        const bool stopped = emit(length);
        gather(length);
        slots_.context_starts[b_] = slots_.seq_lens[b_];
        slots_.context_counts[b_] = length;
        slots_.seq_lens[b_] += length;
        slots_.roots[b_] = accepted_.bonus_tokens[b_];
        if (stopped) finish();
    }

  private:
    bool well_formed(int32_t length) const {
        if (length < 1 || length > accepted_.horizon + 1) return false;
        return std::all_of(path_, path_ + length, [&](int32_t i) { return i >= 0 && i < accepted_.max_nodes; });
    }

    // Whether the request has come to its end.
    bool emit(int32_t length) {
        int32_t count = outputs_.num_tokens[b_];
        int32_t& remaining = slots_.remaining[b_];
        bool stopped = false;
        for (int32_t i = 1; i <= length && remaining > 0 && !stopped; ++i) {
            const int32_t token =
                i < length ? accepted_.token_ids[b_ * accepted_.max_nodes + path_[i]] : accepted_.bonus_tokens[b_];
            if (count < outputs_.capacity) outputs_.tokens[b_ * outputs_.capacity + count++] = token;
            --remaining;
            stopped = is_stop(slots_.stop_tokens + b_ * kStops, token);
        }
        publish(outputs_.num_tokens + b_, count);
        return stopped || remaining <= 0;
    }

    void gather(int32_t length) const {
        if (context_.features == nullptr) return;
        const size_t bytes = static_cast<size_t>(context_.width) * size_of(dtype_);
        for (int32_t i = 0; i < std::min(length, context_.max_rows); ++i)
            std::memcpy(static_cast<char*>(context_.rows) + (b_ * context_.max_rows + i) * bytes,
                        static_cast<const char*>(context_.features) + (b_ * accepted_.max_nodes + path_[i]) * bytes,
                        bytes);
    }

    void finish() {
        slots_.active[b_] = 0;
        publish(outputs_.finished + b_, 1);
    }

    const Dtype dtype_;
    const Accepted& accepted_;
    const Context& context_;
    const Slots& slots_;
    const Outputs& outputs_;
    const int64_t b_;
    const int32_t* const path_;
};

}  // namespace

void commit(Queue&, Dtype dtype, const Accepted& accepted, const Context& context, Slots slots, Outputs outputs,
            int32_t batch) {
    for (int64_t b = 0; b < batch; ++b) Commit(dtype, accepted, context, slots, outputs, b).run();
    publish(outputs.rounds_done, ++*slots.round);
}

}  // namespace kdt::engine
