// SPDX-License-Identifier: Apache-2.0
//
// One round of decoding, for all slots at once: draft, tree_build, verify, tree_accept, commit. What it does is fixed
// by its plan; everything else it reads from device memory, so that it can be recorded once and replayed.
#ifndef KDT_ENGINE_ROUND_H
#define KDT_ENGINE_ROUND_H

#include <cstddef>
#include <cstdint>

#include "engine/config.h"
#include "engine/drafter.h"
#include "engine/ops.h"
#include "engine/slots.h"
#include "engine/target.h"
#include "engine/workspaces.h"
#include "kdtree/engine.h"

namespace kdt::engine {

struct Plan {
    int32_t max_nodes;  // N
    int32_t horizon;    // D; 0: no drafter, no tree
    int32_t topk;
    float simulated_accept;
    int32_t profile;  // as of kdt_engine_rounds

    bool drafts() const { return horizon > 0; }
    bool operator==(const Plan& other) const {
        return max_nodes == other.max_nodes && horizon == other.horizon && topk == other.topk &&
               simulated_accept == other.simulated_accept && profile == other.profile;
    }
};

// Stamps of a round: before each stage and before draft_topk, which belongs to stage draft; behind the last; and one
// more, for what a stamp itself takes.
enum StageStamp : int32_t {
    at_draft,
    at_draft_topk,
    at_tree_build,
    at_verify,
    at_tree_accept,
    at_commit,
    at_end,
    after_end
};
static_assert(after_end + 1 == kStamps, "a place for each stamp");

// Throws, naming the field, when the rounds are none that this engine can run.
Plan make_plan(const kdt_engine_rounds& rounds, const Config& config);

class Round {
  public:
    // drafter: NULL without one.
    Round(Queue& queue, const Config& config, Target& target, Drafter* drafter, SlotTable& slots,
          Workspaces& workspaces);

    void reserve(const Plan& plan);
    // Enqueues one round.
    void run(const Plan& plan);
    // Nothing that happened up to now shall count as part of a gap between rounds.
    void forget_last_end();
    // The stamps since the last call; waits. `stages` of the rounds with profile 1, `whole` of those with 2.
    void read_stamps(Stamps* stages, Stamps* whole);

    float* logits() const { return logits_.as<float>(); }
    void* features() const { return features_.data(); }  // act [rows of one forward, feature width], or NULL
    size_t scratch_bytes() const;

  private:
    void draft(const Plan& plan);
    void build(const Plan& plan);
    void verify(const Plan& plan);
    void accept(const Plan& plan);
    void compact(const Plan& plan);
    void commit_round(const Plan& plan);
    void stamp_stage(const Plan& plan, int32_t index);
    void take_stamps(const Memory& memory, Stamps* to);

    kdt_draft_topk_params draft_topk_params(const Plan& plan) const;
    kdt_tree_build_params tree_build_params(const Plan& plan) const;
    kdt_tree_accept_params tree_accept_params(const Plan& plan) const;
    kdt_kv_compact_params kv_compact_params(const Plan& plan) const;
    int32_t context_rows() const { return config_.drafter.block_size; }

    Queue& queue_;
    const Config& config_;
    Target& target_;
    Drafter* const drafter_;
    SlotTable& slots_;
    Workspaces& workspaces_;
    const int32_t batch_;

    Memory logits_;              // f32 [rows, vocab]: of the draft, then of the nodes
    Memory features_, context_;  // act [B * N, width], [B, block_size, width]
    Memory log_probs_, draft_ids_, draft_status_;
    Memory token_ids_, parents_, depths_, positions_, first_child_, next_sibling_, tree_mask_, scores_, num_nodes_;
    Memory target_tokens_, accepted_path_, acceptance_length_, bonus_tokens_;
    Memory build_status_, verify_status_, accept_status_, compact_status_;
    Memory stage_stamps_, whole_stamps_;  // Stamps
    Memory single_mask_, zeros_, ones_;   // the tree of one node, the same for every slot
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_ROUND_H
