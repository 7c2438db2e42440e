// SPDX-License-Identifier: Apache-2.0
//
// The target's forward over a batch of trees. A tree of one node is plain decoding, one shaped like a chain a piece of
// a prompt: there is no other forward.
#ifndef KDT_ENGINE_TARGET_H
#define KDT_ENGINE_TARGET_H

#include <cstddef>
#include <cstdint>

#include "engine/config.h"
#include "engine/ops.h"
#include "engine/rope_table.h"
#include "engine/weights.h"
#include "engine/workspaces.h"

namespace kdt::engine {

// Device memory of the rows of one forward: B trees of at most N nodes.
struct Trees {
    const int32_t* token_ids;    // [B, N]
    const int32_t* positions;    // [B, N]
    const int32_t* seq_lens;     // [B]
    const int32_t* num_nodes;    // [B]
    const uint64_t* tree_mask;   // [B, N, ceil(N / 64)]
    const int32_t* block_table;  // [B, max_pages_per_seq]
    int32_t* status;             // [B]
    int32_t batch;
    int32_t max_nodes;
};

class Target {
  public:
    Target(Queue& queue, const Config& config, TargetWeights weights, Workspaces& workspaces, int32_t max_rows);

    // Scratch for forwards of this many trees and nodes: to be called before one is recorded.
    void reserve(int32_t batch, int32_t max_nodes);
    // Leaves the normed output rows in hidden(). Latents go to slots seq_lens[b] + i. features: act [B * N, feature
    // width], or NULL.
    void forward(const Trees& trees, void* features);
    // logits f32 [rows, vocab] of `rows` rows of the last forward, from `first_row` on.
    void head(int32_t first_row, int32_t rows, float* logits);
    void head_of(const void* hidden, int32_t rows, float* logits);

    void* hidden() const { return hidden_.data(); }
    const void* embedding() const { return weights_.embedding.data(); }
    char* kv_cache() const { return cache_.as<char>(); }
    size_t cache_bytes() const { return cache_.bytes(); }
    size_t scratch_bytes() const;

  private:
    kdt_verify_mla_params attention(const Trees& trees, const TargetLayer& layer, int32_t index) const;
    void attend(const Trees& trees, const TargetLayer& layer, int32_t index);
    void feed_forward(const TargetLayer& layer, int32_t rows);
    NormInput norm_input(const Memory& norm, const void* delta);
    void turn_residual();
    void mixture(const MoeWeights& moe, int32_t rows);

    Queue& queue_;
    const Config& config_;
    const TargetWeights weights_;
    Workspaces& workspaces_;
    const RopeTable rope_;
    const Dtype dtype_;
    const int32_t hidden_size_;
    const int32_t query_width_;  // of what the first projection gives: q_lora_rank, or all heads' queries
    Memory cache_;               // bf16 [layers, num_pages, page_size, 576]
    Memory residual_, next_residual_, hidden_, delta_, first_, q_normed_, q_, q_nope_, q_pe_, attended_, attended_act_,
        lse_;
    Memory gate_up_, product_, router_logits_, experts_, expert_weights_;
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_TARGET_H
