// SPDX-License-Identifier: Apache-2.0
//
// The DFlash drafter (block diffusion): keys and values of committed tokens from the target's features, and one forward
// that predicts a whole block. Layout and order of operations are those of SGLang's DFLASH draft model.
#ifndef KDT_ENGINE_DRAFTER_H
#define KDT_ENGINE_DRAFTER_H

#include <cstddef>
#include <cstdint>

#include "engine/config.h"
#include "engine/ops.h"
#include "engine/rope_table.h"
#include "engine/weights.h"
#include "engine/workspaces.h"

namespace kdt::engine {

class Drafter {
  public:
    // max_context_rows: the most that one context() is given, over all requests.
    Drafter(Queue& queue, const Config& config, DrafterWeights weights, Workspaces& workspaces,
            int32_t max_context_rows);

    void reserve(int32_t batch, int32_t block);
    // Features of tokens at positions starts[b] + i, i < counts[b], to the cache. features: act [batch * max_rows,
    // feature width]. first_slot: whose cache request 0 has.
    void context(const void* features, const int32_t* starts, const int32_t* counts, int32_t first_slot, int32_t batch,
                 int32_t max_rows);
    // Hidden rows act [batch * (block - 1), hidden] for the target's head: of the positions behind roots.
    const void* block(const int32_t* roots, const int32_t* seq_lens, const void* embedding, int32_t batch,
                      int32_t block);

    const Memory& cache() const { return cache_; }
    size_t cache_bytes() const { return cache_.bytes(); }
    size_t scratch_bytes() const;

  private:
    int64_t cache_slot_values() const;

    Queue& queue_;
    const Config& config_;
    const DrafterWeights weights_;
    Workspaces& workspaces_;
    const RopeTable rope_;
    const Dtype dtype_;
    const int32_t hidden_size_;
    const DraftHeads heads_;
    Memory cache_;  // act [layers, max_batch, context_capacity, 2, num_kv_heads, head_dim]
    Memory projected_, context_, context_kv_;
    Memory residual_, next_residual_, hidden_, delta_, qkv_, attended_, gate_up_, product_;
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_DRAFTER_H
