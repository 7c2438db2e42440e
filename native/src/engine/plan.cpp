// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "engine/round.h"

namespace kdt::engine {
namespace {

void check_range(const char* name, int32_t value, int32_t low, int32_t high) {
    if (value < low || value > high) fail_argument("engine_run: %s is %d, wanted %d .. %d", name, value, low, high);
}

}  // namespace

Plan make_plan(const kdt_engine_rounds& rounds, const Config& config) {
    check_range("rounds", rounds.rounds, 0, 1 << 30);
    check_range("mode", rounds.mode, KDT_DECODE_AR, KDT_DECODE_DDTREE);
    check_range("profile", rounds.profile, 0, 2);
    if (rounds.mode == KDT_DECODE_AR) return {1, 0, 0, 0.0f, rounds.profile};

    if (!config.has_drafter) fail_argument("engine_run: the mode needs a drafter, and this engine has none");
    if (rounds.block_size != 0) check_range("block_size", rounds.block_size, 2, config.drafter.block_size);
    if (!(rounds.simulated_accept >= 0.0f && rounds.simulated_accept <= 1.0f))
        fail_argument("engine_run: simulated_accept is %g, wanted 0 .. 1",
                      static_cast<double>(rounds.simulated_accept));
    Plan plan = {};
    const int32_t block = rounds.block_size != 0 ? rounds.block_size : config.drafter.block_size;
    plan.horizon = block - 1;
    plan.simulated_accept = rounds.simulated_accept;
    plan.profile = rounds.profile;
    if (rounds.mode == KDT_DECODE_CHAIN) {
        plan.max_nodes = block;
        plan.topk = 1;
        return plan;
    }
    check_range("tree_budget", rounds.tree_budget, 1, config.max_tree_budget);
    const int32_t widest = std::min(config.target.vocab_size, KDT_MAX_TOPK);
    if (rounds.topk != 0) check_range("topk", rounds.topk, 1, widest);
    plan.max_nodes = rounds.tree_budget + 1;
    plan.topk = rounds.topk != 0 ? rounds.topk : std::min(rounds.tree_budget, widest);
    return plan;
}

}  // namespace kdt::engine
