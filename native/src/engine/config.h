// SPDX-License-Identifier: Apache-2.0
//
// The engine's own copy of its configuration, checked, and the sizes that follow from it.
#ifndef KDT_ENGINE_CONFIG_H
#define KDT_ENGINE_CONFIG_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/ops.h"
#include "kdtree/engine.h"

namespace kdt::engine {

constexpr int32_t kLatent = KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM;         // values of a token in a layer's cache
constexpr int32_t kQueryHead = KDT_QK_NOPE_HEAD_DIM + KDT_QK_ROPE_HEAD_DIM;  // values of a query head
constexpr int32_t kValueHead = KDT_V_HEAD_DIM;
constexpr int32_t kMaxStopTokens = 8;

struct Config {
    kdt_target_config target;
    std::vector<float> target_frequencies;
    bool has_drafter;
    kdt_drafter_config drafter;  // zero without one
    std::vector<float> drafter_frequencies;

    Dtype dtype;
    int32_t max_batch;
    int32_t max_seq_len;
    int32_t max_tree_budget;
    int32_t page_size;
    int32_t num_pages;
    int32_t prefill_chunk;
    bool has_blas_library;
    std::string blas_library;

    const kdt_tensor* tensors;  // the caller's, only looked at while the engine is made; NULL: random weights
    int32_t num_tensors;
    uint64_t random_seed;

    const char* blas() const { return has_blas_library ? blas_library.c_str() : nullptr; }
    bool is_moe(int32_t layer) const { return layer >= target.first_dense_layers; }
    // Nodes of the largest round, root included.
    int32_t max_nodes() const;
    int32_t max_pages_per_seq() const;
    // Rows of a slot in the drafter's cache: a finished request's length may pass max_seq_len by one round's tokens.
    int32_t context_capacity() const { return max_seq_len + KDT_MAX_DRAFT_HORIZON + 1; }
    // Features of a token that the drafter is given; 0 without one.
    int64_t feature_width() const { return int64_t{drafter.num_features} * target.hidden_size; }
    // Values of keys and values of a token in all the drafter's layers.
    int64_t draft_kv_width() const { return int64_t{drafter.num_layers} * 2 * drafter.num_kv_heads * drafter.head_dim; }
    DraftHeads draft_heads() const { return {drafter.num_heads, drafter.num_kv_heads, drafter.head_dim}; }
    Router router() const;
};

// Throws Error(KDT_INVALID_ARGUMENT) with a sentence that names the field.
Config read_config(const kdt_engine_params* params);

}  // namespace kdt::engine

#endif  // KDT_ENGINE_CONFIG_H
