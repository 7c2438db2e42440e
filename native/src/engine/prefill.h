// SPDX-License-Identifier: Apache-2.0
//
// Runs a prompt through the target, and its features through the drafter, for one slot alone: pieces of the prompt are
// trees in the shape of a chain, over the slot's own row of the block table.
#ifndef KDT_ENGINE_PREFILL_H
#define KDT_ENGINE_PREFILL_H

#include <cstdint>

#include "engine/config.h"
#include "engine/drafter.h"
#include "engine/ops.h"
#include "engine/round.h"
#include "engine/slots.h"
#include "engine/target.h"

namespace kdt::engine {

class Prefill {
  public:
    Prefill(Queue& queue, const Config& config, Target& target, Drafter* drafter, SlotTable& slots, Round& round);

    // The prompt's latents and the drafter's context are in the caches; answers the first token. Waits. Its logits are
    // the first row of round.logits().
    int32_t run(int32_t slot, const int32_t* prompt, int32_t length);

  private:
    void piece(int32_t slot, const int32_t* tokens, int32_t first, int32_t count);

    Queue& queue_;
    const Config& config_;
    Target& target_;
    Drafter* const drafter_;
    SlotTable& slots_;
    Round& round_;
    Memory token_ids_, positions_, tree_mask_, start_, count_, status_, first_token_;
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_PREFILL_H
