// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_core.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/error.h"
#include "engine/tensors.h"

namespace kdt::engine {
namespace {

// Rows of the largest forward of the target.
int32_t forward_rows(const Config& config) {
    const int64_t rows = std::max<int64_t>(int64_t{config.max_batch} * config.max_nodes(), config.prefill_chunk);
    if (rows > (1 << 22))
        fail_argument("engine_create: max_batch times nodes is %lld, wanted at most %d", static_cast<long long>(rows),
                      1 << 22);
    return static_cast<int32_t>(rows);
}

}  // namespace

Engine::Engine(Config config)
    : config_(std::move(config)), queue_(config_.blas()), workspaces_(queue_), slots_(queue_, config_) {
    const int32_t rows = forward_rows(config_);
    TensorSource source(queue_, config_);
    target_ = std::make_unique<Target>(queue_, config_, load_target(queue_, config_, source), workspaces_, rows);
    if (config_.has_drafter)
        drafter_ =
            std::make_unique<Drafter>(queue_, config_, load_drafter(queue_, config_, source), workspaces_,
                                      std::max(config_.max_batch * config_.drafter.block_size, config_.prefill_chunk));
    source.finish();
    queue_.wait();
    weight_bytes_ = source.bytes();
    round_ = std::make_unique<Round>(queue_, config_, *target_, drafter_.get(), slots_, workspaces_);
    prefill_ = std::make_unique<Prefill>(queue_, config_, *target_, drafter_.get(), slots_, *round_);
}

Engine::~Engine() {
    try {
        queue_.wait();
    } catch (const Error&) {
        // What was under way has failed; there is nobody left to be told.
    }
}

void Engine::check_request(const kdt_engine_request& r) const {
    if (r.prompt == nullptr || r.prompt_length < 1)
        fail_argument("engine_admit: the prompt is empty, wanted at least one token");
    if (r.max_new_tokens < 1) fail_argument("engine_admit: max_new_tokens is %d, wanted at least 1", r.max_new_tokens);
    const int64_t tokens = int64_t{r.prompt_length} + r.max_new_tokens;
    if (tokens > config_.max_seq_len)
        fail_argument("engine_admit: prompt_length %d and max_new_tokens %d are %lld tokens, and max_seq_len is %d",
                      r.prompt_length, r.max_new_tokens, static_cast<long long>(tokens), config_.max_seq_len);
    const int64_t pages = (tokens + config_.max_nodes() + config_.page_size - 1) / config_.page_size;
    if (pages > config_.num_pages)
        fail_argument("engine_admit: the request needs %lld pages, and the engine has %d",
                      static_cast<long long>(pages), config_.num_pages);
    for (int32_t i = 0; i < r.prompt_length; ++i)
        if (r.prompt[i] < 0 || r.prompt[i] >= config_.target.vocab_size)
            fail_argument("engine_admit: prompt[%d] is %d, wanted 0 .. %d", i, r.prompt[i],
                          config_.target.vocab_size - 1);
    if (r.num_stop_tokens < 0 || r.num_stop_tokens > kMaxStopTokens)
        fail_argument("engine_admit: num_stop_tokens is %d, wanted 0 .. %d", r.num_stop_tokens, kMaxStopTokens);
    if (r.num_stop_tokens > 0 && r.stop_tokens == nullptr) fail_argument("engine_admit: stop_tokens is NULL");
    if (!(r.temperature >= 0.0f) || r.temperature > 1e6f)
        fail_argument("engine_admit: temperature is %g, wanted 0 .. 1e6", static_cast<double>(r.temperature));
    if (r.num_golden_tokens < 0) fail_argument("engine_admit: num_golden_tokens is %d", r.num_golden_tokens);
    if (r.num_golden_tokens > 0 && r.golden_tokens == nullptr) fail_argument("engine_admit: golden_tokens is NULL");
    for (int32_t i = 0; i < r.num_golden_tokens; ++i)
        if (r.golden_tokens[i] < 0 || r.golden_tokens[i] >= config_.target.vocab_size)
            fail_argument("engine_admit: golden_tokens[%d] is %d, wanted 0 .. %d", i, r.golden_tokens[i],
                          config_.target.vocab_size - 1);
}

int32_t Engine::admit(const kdt_engine_request& request) {
    check_request(request);
    round_->forget_last_end();
    const int32_t slot = slots_.occupy(request.prompt_length + request.max_new_tokens + config_.max_nodes());
    try {
        slots_.set_sampling(slot, request.temperature, request.seed);
        const int32_t first = prefill_->run(slot, request.prompt, request.prompt_length);
        slots_.activate(slot, request, first);
    } catch (...) {
        slots_.vacate(slot);
        throw;
    }
    logits_rows_ = 1;
    logits_slot_ = slot;
    return slot;
}

void Engine::release(int32_t slot) {
    slots_.check_occupied("engine_release", slot);
    queue_.wait();
    slots_.vacate(slot);
}

Recording& Engine::recording_of(const Plan& plan) {
    round_->reserve(plan);
    const int generation = workspaces_.generation();
    const auto stale = [&](const Recorded& r) { return r.generation != generation; };
    if (std::any_of(recorded_.begin(), recorded_.end(), stale)) {
        queue_.wait();
        recorded_.erase(std::remove_if(recorded_.begin(), recorded_.end(), stale), recorded_.end());
    }
    for (const Recorded& r : recorded_)
        if (r.plan == plan) return *r.recording;
    recorded_.push_back({plan, generation, std::make_unique<Recording>(queue_, [this, plan] { round_->run(plan); })});
    return *recorded_.back().recording;
}

void Engine::read_stamps() {
    constexpr double kNanosecond = 1e-9;
    constexpr StageStamp kEnds[KDT_NUM_STAGES] = {at_tree_build, at_verify, at_tree_accept, at_commit, at_end};
    Stamps stages = {};
    Stamps whole = {};
    round_->read_stamps(&stages, &whole);
    const auto seconds = [&](StageStamp at) { return static_cast<double>(stages.spans[at]) * kNanosecond; };
    for (int32_t stage = 0; stage < KDT_NUM_STAGES; ++stage)
        stage_seconds_[static_cast<size_t>(stage)] += seconds(kEnds[stage]);
    stage_seconds_[KDT_STAGE_DRAFT] += seconds(at_draft_topk);
    profiled_rounds_ += stages.rounds;
    clock_.draft_topk_seconds += seconds(at_tree_build);
    clock_.stamp_seconds += seconds(after_end);
    clock_.stage_rounds += stages.rounds;
    clock_.rounds += whole.rounds;
    clock_.gaps += whole.gaps;
    clock_.busy_seconds += static_cast<double>(whole.busy) * kNanosecond;
    clock_.idle_seconds += static_cast<double>(whole.idle) * kNanosecond;
}

void Engine::run(const kdt_engine_rounds& rounds) {
    const Plan plan = make_plan(rounds, config_);
    if (plan.drafts()) {
        const int32_t slot = slots_.slot_unknown_to_drafter();
        if (slot >= 0)
            fail_argument("engine_run: AR rounds have advanced slot %d, whose new tokens the drafter has not seen",
                          slot);
    }
    if (rounds.rounds == 0) return;
    Recording& recording = recording_of(plan);
    for (int32_t i = 0; i < rounds.rounds; ++i) recording.replay();
    if (!plan.drafts()) slots_.note_ar_rounds();
    logits_rows_ = plan.max_nodes;
    logits_slot_ = -1;
}

void Engine::progress(int32_t slot, bool wait, kdt_engine_progress* progress, int32_t* tokens, int32_t first,
                      int32_t capacity) {
    slots_.check_occupied("engine_progress_of", slot);
    if (tokens != nullptr && (first < 0 || capacity < 0))
        fail_argument("engine_progress_of: first is %d and capacity %d, wanted neither below 0", first, capacity);
    if (wait) queue_.wait();
    slots_.progress(slot, progress, tokens, first, capacity);
}

int64_t Engine::stage_seconds(double* seconds) {
    read_stamps();
    std::copy(stage_seconds_.begin(), stage_seconds_.end(), seconds);
    stage_seconds_.fill(0.0);
    return std::exchange(profiled_rounds_, 0);
}

void Engine::round_clock(kdt_round_clock* clock) {
    read_stamps();
    *clock = std::exchange(clock_, kdt_round_clock{});
}

int32_t Engine::logits(int32_t slot, float* logits, int64_t capacity) {
    slots_.check_occupied("engine_logits", slot);
    if (logits_rows_ == 0 || (logits_slot_ >= 0 && logits_slot_ != slot))
        fail_argument(
            "engine_logits: the logits at hand are not slot %d's: it was neither admitted last nor part of "
            "the last round",
            slot);
    const int64_t values = int64_t{logits_rows_} * config_.target.vocab_size;
    if (logits == nullptr) return logits_rows_;
    if (capacity < values)
        fail_argument("engine_logits: capacity is %lld values, and there are %lld", static_cast<long long>(capacity),
                      static_cast<long long>(values));
    const int64_t first = logits_slot_ >= 0 ? 0 : slot * values;
    queue_.download(logits, round_->logits() + first, static_cast<size_t>(values) * sizeof(float));
    return logits_rows_;
}

std::string Engine::info() const {
    const size_t scratch = workspaces_.total() + target_->scratch_bytes() + round_->scratch_bytes() +
                           (drafter_ ? drafter_->scratch_bytes() : 0);
    char text[512];
    std::snprintf(text, sizeof(text),
                  "{\"weight_bytes\": %lld, \"kv_cache_bytes\": %zu, \"draft_cache_bytes\": %zu, "
                  "\"scratch_bytes\": %zu, \"pages\": %d, \"pages_free\": %d, \"page_size\": %d, \"slots\": %d, "
                  "\"slots_in_use\": %d, \"recordings\": %zu, \"blas\": ",
                  static_cast<long long>(weight_bytes_), target_->cache_bytes(),
                  drafter_ ? drafter_->cache_bytes() : size_t{0}, scratch, slots_.pages().total(),
                  slots_.pages().free(), config_.page_size, config_.max_batch, slots_.num_occupied(), recorded_.size());
    std::string json = std::string(text) + "\"";
    for (const char* c = queue_.blas_name(); *c != '\0'; ++c) {
        if (*c == '"' || *c == '\\') json += '\\';
        json += static_cast<unsigned char>(*c) < 0x20 ? ' ' : *c;
    }
    return json + "\"}";
}

}  // namespace kdt::engine
