// SPDX-License-Identifier: Apache-2.0
#include "engine/round.h"

#include <algorithm>
#include <vector>

#include "core/checks.h"

namespace kdt::engine {
namespace {

Memory words(int64_t count) {
    return Memory(static_cast<size_t>(count) * sizeof(int32_t));
}

}  // namespace

Round::Round(Queue& queue, const Config& config, Target& target, Drafter* drafter, SlotTable& slots,
             Workspaces& workspaces)
    : queue_(queue),
      config_(config),
      target_(target),
      drafter_(drafter),
      slots_(slots),
      workspaces_(workspaces),
      batch_(config.max_batch) {
    const int64_t nodes = int64_t{batch_} * config.max_nodes();
    const int64_t drafted = int64_t{batch_} * std::max(config.drafter.block_size - 1, 0);
    logits_ = words(std::max(nodes, drafted) * config.target.vocab_size);
    target_tokens_ = words(nodes);
    verify_status_ = words(batch_);
    single_mask_ = Memory(static_cast<size_t>(batch_) * sizeof(uint64_t));
    stage_stamps_ = Memory(sizeof(Stamps));
    whole_stamps_ = Memory(sizeof(Stamps));
    zeros_ = words(batch_);
    ones_ = words(batch_);
    const std::vector<uint64_t> own_bit(static_cast<size_t>(batch_), 1);
    const std::vector<int32_t> ones(static_cast<size_t>(batch_), 1);
    queue.upload(single_mask_.data(), own_bit.data(), single_mask_.bytes());
    queue.upload(ones_.data(), ones.data(), ones_.bytes());
    if (drafter == nullptr) return;

    const size_t feature_bytes = static_cast<size_t>(config.feature_width()) * size_of(config.dtype);
    features_ = Memory(static_cast<size_t>(std::max<int64_t>(nodes, config.prefill_chunk)) * feature_bytes);
    context_ = Memory(static_cast<size_t>(batch_) * context_rows() * feature_bytes);
    const int64_t candidates = drafted * std::min(config.target.vocab_size, KDT_MAX_TOPK);
    log_probs_ = words(candidates);
    draft_ids_ = words(candidates);
    draft_status_ = words(drafted);
    for (Memory* const memory :
         {&token_ids_, &parents_, &depths_, &positions_, &first_child_, &next_sibling_, &scores_})
        *memory = words(nodes);
    tree_mask_ = Memory(static_cast<size_t>(nodes) * mask_words(config.max_nodes()) * sizeof(uint64_t));
    accepted_path_ = words(int64_t{batch_} * config.drafter.block_size);
    for (Memory* const memory :
         {&num_nodes_, &acceptance_length_, &bonus_tokens_, &build_status_, &accept_status_, &compact_status_})
        *memory = words(batch_);
}

size_t Round::scratch_bytes() const {
    size_t sum = 0;
    for (const Memory* memory :
         {&logits_, &features_, &context_, &log_probs_, &draft_ids_, &draft_status_, &token_ids_, &parents_, &depths_,
          &positions_, &first_child_, &next_sibling_, &tree_mask_, &scores_, &target_tokens_, &accepted_path_})
        sum += memory->bytes();
    return sum;
}

void Round::reserve(const Plan& plan) {
    target_.reserve(batch_, plan.max_nodes);
    if (!plan.drafts()) return;
    drafter_->reserve(batch_, plan.horizon + 1);
    workspaces_.reserve_for(Scratch::draft_topk, draft_topk_params(plan), kdt_draft_topk_workspace_size);
    workspaces_.reserve_for(Scratch::tree_build, tree_build_params(plan), kdt_tree_build_workspace_size);
    workspaces_.reserve_for(Scratch::tree_accept, tree_accept_params(plan), kdt_tree_accept_workspace_size);
    workspaces_.reserve_for(Scratch::kv_compact, kv_compact_params(plan), kdt_kv_compact_workspace_size);
}

void Round::stamp_stage(const Plan& plan, int32_t index) {
    if (plan.profile == 1) stamp(queue_, stage_stamps_.as<Stamps>(), index, index == at_end);
    if (plan.profile == 2 && (index == at_draft || index == at_end))
        stamp(queue_, whole_stamps_.as<Stamps>(), index, index == at_end);
}

void Round::run(const Plan& plan) {
    stamp_stage(plan, at_draft);
    if (plan.drafts())
        draft(plan);
    else
        stamp_stage(plan, at_draft_topk);
    stamp_stage(plan, at_tree_build);
    if (plan.drafts()) build(plan);
    stamp_stage(plan, at_verify);
    verify(plan);
    stamp_stage(plan, at_tree_accept);
    if (plan.drafts()) accept(plan);
    stamp_stage(plan, at_commit);
    if (plan.drafts()) compact(plan);
    commit_round(plan);
    stamp_stage(plan, at_end);
    stamp_stage(plan, after_end);
}

void Round::forget_last_end() {
    Stamps* const whole = whole_stamps_.as<Stamps>();
    queue_.zero(&whole->end, sizeof(whole->end));
}

void Round::take_stamps(const Memory& memory, Stamps* to) {
    queue_.download(to, memory.data(), sizeof(*to));
    queue_.zero(memory.data(), memory.bytes());
}

void Round::read_stamps(Stamps* stages, Stamps* whole) {
    take_stamps(stage_stamps_, stages);
    take_stamps(whole_stamps_, whole);
}

void Round::draft(const Plan& plan) {
    const Slots state = slots_.state();
    drafter_->context(context_.data(), state.context_starts, state.context_counts, 0, batch_, context_rows());
    const void* const hidden =
        drafter_->block(state.roots, state.seq_lens, target_.embedding(), batch_, plan.horizon + 1);
    target_.head_of(hidden, batch_ * plan.horizon, logits());
    stamp_stage(plan, at_draft_topk);
    workspaces_.call(Scratch::draft_topk, draft_topk_params(plan), kdt_draft_topk);
    if (plan.simulated_accept > 0.0f)
        simulate_draft(queue_, slots_.golden(), state.seq_lens, slots_.seeds(), plan.simulated_accept,
                       config_.target.vocab_size, log_probs_.as<float>(), draft_ids_.as<int32_t>(), batch_,
                       plan.horizon, plan.topk);
}

void Round::build(const Plan& plan) {
    workspaces_.call(Scratch::tree_build, tree_build_params(plan), kdt_tree_build);
    hide_idle(queue_, slots_.state().active, num_nodes_.as<int32_t>(), batch_);
}

// Without a drafter the tree is its root, whose arrays are the slots' own.
void Round::verify(const Plan& plan) {
    const Slots state = slots_.state();
    Trees trees = {};
    trees.token_ids = plan.drafts() ? token_ids_.as<int32_t>() : state.roots;
    trees.positions = plan.drafts() ? positions_.as<int32_t>() : state.seq_lens;
    trees.num_nodes = plan.drafts() ? num_nodes_.as<int32_t>() : state.active;
    trees.tree_mask = plan.drafts() ? tree_mask_.as<uint64_t>() : single_mask_.as<uint64_t>();
    trees.seq_lens = state.seq_lens;
    trees.block_table = slots_.block_table();
    trees.status = verify_status_.as<int32_t>();
    trees.batch = batch_;
    trees.max_nodes = plan.max_nodes;
    target_.forward(trees, plan.drafts() ? features_.data() : nullptr);
    target_.head(0, batch_ * plan.max_nodes, logits());
    engine::draw(queue_, logits(), config_.target.vocab_size, trees.positions, slots_.temperatures(), slots_.seeds(),
                 plan.max_nodes, target_tokens_.as<int32_t>(), batch_ * plan.max_nodes);
}

void Round::accept(const Plan& plan) {
    workspaces_.call(Scratch::tree_accept, tree_accept_params(plan), kdt_tree_accept);
}

void Round::compact(const Plan& plan) {
    workspaces_.call(Scratch::kv_compact, kv_compact_params(plan), kdt_kv_compact);
}

void Round::commit_round(const Plan& plan) {
    Accepted accepted = {};
    accepted.max_nodes = plan.max_nodes;
    accepted.horizon = plan.horizon;
    accepted.statuses[0] = verify_status_.as<int32_t>();
    accepted.num_statuses = 1;
    Context context = {};
    if (plan.drafts()) {
        accepted.token_ids = token_ids_.as<int32_t>();
        accepted.accepted_path = accepted_path_.as<int32_t>();
        accepted.acceptance_length = acceptance_length_.as<int32_t>();
        accepted.bonus_tokens = bonus_tokens_.as<int32_t>();
        accepted.statuses[1] = build_status_.as<int32_t>();
        accepted.statuses[2] = accept_status_.as<int32_t>();
        accepted.statuses[3] = compact_status_.as<int32_t>();
        accepted.num_statuses = 4;
        context = {features_.data(), context_.data(), config_.feature_width(), context_rows()};
    } else {
        accepted.token_ids = slots_.state().roots;
        accepted.accepted_path = zeros_.as<int32_t>();
        accepted.acceptance_length = ones_.as<int32_t>();
        accepted.bonus_tokens = target_tokens_.as<int32_t>();
    }
    engine::commit(queue_, config_.dtype, accepted, context, slots_.state(), slots_.outputs(), batch_);
}

kdt_draft_topk_params Round::draft_topk_params(const Plan& plan) const {
    kdt_draft_topk_params p = {};
    p.struct_size = sizeof(p);
    p.logits = logits_.data();
    p.topk_log_probs = log_probs_.as<float>();
    p.topk_token_ids = draft_ids_.as<int32_t>();
    p.status = draft_status_.as<int32_t>();
    p.rows = batch_ * plan.horizon;
    p.vocab_size = config_.target.vocab_size;
    p.topk = plan.topk;
    p.logits_dtype = KDT_F32;
    p.stream = queue_.stream();
    return p;
}

kdt_tree_build_params Round::tree_build_params(const Plan& plan) const {
    const Slots state = slots_.state();
    kdt_tree_build_params p = {};
    p.struct_size = sizeof(p);
    p.topk_log_probs = log_probs_.as<float>();
    p.topk_token_ids = draft_ids_.as<int32_t>();
    p.root_token_ids = state.roots;
    p.seq_lens = state.seq_lens;
    p.token_ids = token_ids_.as<int32_t>();
    p.parents = parents_.as<int32_t>();
    p.depths = depths_.as<int32_t>();
    p.positions = positions_.as<int32_t>();
    p.first_child = first_child_.as<int32_t>();
    p.next_sibling = next_sibling_.as<int32_t>();
    p.tree_mask = tree_mask_.as<uint64_t>();
    p.scores = scores_.as<float>();
    p.num_nodes = num_nodes_.as<int32_t>();
    p.status = build_status_.as<int32_t>();
    p.batch = batch_;
    p.draft_horizon = plan.horizon;
    p.topk = plan.topk;
    p.tree_budget = plan.max_nodes - 1;
    p.stream = queue_.stream();
    return p;
}

kdt_tree_accept_params Round::tree_accept_params(const Plan& plan) const {
    kdt_tree_accept_params p = {};
    p.struct_size = sizeof(p);
    p.token_ids = token_ids_.as<int32_t>();
    p.parents = parents_.as<int32_t>();
    p.num_nodes = num_nodes_.as<int32_t>();
    p.target_tokens = target_tokens_.as<int32_t>();
    p.accepted_path = accepted_path_.as<int32_t>();
    p.acceptance_length = acceptance_length_.as<int32_t>();
    p.bonus_token = bonus_tokens_.as<int32_t>();
    p.status = accept_status_.as<int32_t>();
    p.batch = batch_;
    p.max_nodes = plan.max_nodes;
    p.draft_horizon = plan.horizon;
    p.stream = queue_.stream();
    return p;
}

kdt_kv_compact_params Round::kv_compact_params(const Plan& plan) const {
    kdt_kv_compact_params p = {};
    p.struct_size = sizeof(p);
    p.kv_cache = target_.kv_cache();
    p.block_table = slots_.block_table();
    p.seq_lens = slots_.state().seq_lens;
    p.accepted_path = accepted_path_.as<int32_t>();
    p.status = compact_status_.as<int32_t>();
    p.batch = batch_;
    p.draft_horizon = plan.horizon;
    p.num_layers = config_.target.num_layers;
    p.num_pages = config_.num_pages;
    p.page_size = config_.page_size;
    p.max_pages_per_seq = config_.max_pages_per_seq();
    p.row_bytes = kLatent * 2;
    p.stream = queue_.stream();
    return p;
}

}  // namespace kdt::engine
