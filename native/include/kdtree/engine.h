// SPDX-License-Identifier: Apache-2.0
//
// The C ABI of the decode engine: a DeepSeek-V3 / Kimi-K2 target, a DFlash drafter, and the whole DDTree loop
// (arXiv 2604.12989) over the kernels of kdtree.h. Exported by libkdtree_cpu.so and libkdtree_cuda.so alike.
//
// Unlike a kernel an engine owns memory: weights, caches, outputs. One thread at a time may call a given engine;
// engines are independent. Every call answers a kdt_status, with a sentence in kdt_last_error().
//
// Words: a slot holds one request, 0 <= slot < max_batch. A round drafts, verifies and commits for all slots at once;
// those that are empty or finished run along and change nothing. The root is the last emitted token, whose latent is
// not in the cache yet. Symbols as in kdtree.h; D = block_size - 1 of the round, N = tree_budget + 1.
#ifndef KDTREE_ENGINE_H
#define KDTREE_ENGINE_H

#include "kdtree/kdtree.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KDT_MAX_TARGET_FEATURES 16

typedef struct kdt_engine kdt_engine;

// One weight, in host memory, row-major. It is copied by kdt_engine_create().
typedef struct kdt_tensor {
    const char*
        name;  // Hugging Face's, e.g. "model.layers.0.self_attn.o_proj.weight"; drafter's own: "drafter." + name
    const void* data;  // may be NULL for an engine of random weights
    int32_t dtype;     // kdt_dtype
    int32_t rank;      // 1 .. 2
    int64_t shape[2];
} kdt_tensor;

typedef enum kdt_expert_scores { KDT_SCORES_SIGMOID = 0, KDT_SCORES_SOFTMAX = 1 } kdt_expert_scores;

typedef struct kdt_target_config {
    uint32_t struct_size;
    int32_t vocab_size;
    int32_t hidden_size;
    int32_t num_layers;
    int32_t num_heads;            // H, 1 .. 128
    int32_t q_lora_rank;          // 0: q_proj instead of q_a_proj, q_a_layernorm, q_b_proj
    int32_t intermediate_size;    // of the dense layers
    int32_t tie_word_embeddings;  // 0 or 1: 1 takes the embedding as lm_head
    float rms_norm_eps;
    float softmax_scale;         // of attention, YaRN's factor included
    float rope_scale;            // factor on cos and sin (YaRN's mscale / mscale_all_dim), else 1
    const float* inv_freq;       // [32] of the interleaved RoPE pairs, YaRN included
    int32_t first_dense_layers;  // layers below are dense, from here on mixtures of experts; num_layers: all dense
    int32_t n_routed_experts;    // 0 without experts, as are the following
    int32_t num_experts_per_tok;
    int32_t n_shared_experts;
    int32_t moe_intermediate_size;
    int32_t n_group;
    int32_t topk_group;
    int32_t norm_topk_prob;
    int32_t expert_scores;  // kdt_expert_scores
    float routed_scaling_factor;
} kdt_target_config;

typedef struct kdt_drafter_config {
    uint32_t struct_size;
    int32_t num_layers;
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;  // a multiple of 32, at most 128
    int32_t intermediate_size;
    int32_t block_size;  // 2 .. KDT_MAX_DRAFT_HORIZON + 1, as trained
    int32_t mask_token_id;
    int32_t num_features;                               // 1 .. KDT_MAX_TARGET_FEATURES
    int32_t target_layer_ids[KDT_MAX_TARGET_FEATURES];  // ascending; the residual stream after that layer
    float rms_norm_eps;
    float rope_scale;
    const float* inv_freq;  // [head_dim / 2] of the RoPE pairs (i, i + head_dim / 2)
} kdt_drafter_config;

typedef struct kdt_engine_params {
    uint32_t struct_size;
    const kdt_target_config* target;
    const kdt_drafter_config* drafter;  // NULL: only KDT_DECODE_AR
    const kdt_tensor* tensors;          // [num_tensors]
    int32_t num_tensors;
    int32_t dtype;             // kdt_dtype of weights and activations; the latents in the cache are always bf16
    int32_t max_batch;         // slots, >= 1
    int32_t max_seq_len;       // tokens a request may have, prompt and output together
    int32_t max_tree_budget;   // 1 .. KDT_MAX_TREE_BUDGET
    int32_t page_size;         // >= 1
    int32_t num_pages;         // >= 1, of all slots together
    int32_t prefill_chunk;     // tokens a prefill forward takes at once, 1 .. KDT_MAX_TREE_BUDGET + 1
    const char* blas_library;  // CPU: file of a CBLAS with 32-bit integers; CUDA: of cuBLAS; NULL: the default's name
    uint64_t random_seed;      // with tensors NULL: random weights of this seed, made where they are used
} kdt_engine_params;

// A request is admitted as a whole or not at all: pages for prompt, output and one tree are set aside, the prompt is
// run, and the first token is drawn. KDT_UNSUPPORTED: no free slot, or not enough free pages, now; another time it may
// fit. KDT_INVALID_ARGUMENT: it can never fit.
typedef struct kdt_engine_request {
    uint32_t struct_size;
    const int32_t* prompt;       // [prompt_length], 0 <= id < vocab_size
    int32_t prompt_length;       // >= 1
    int32_t max_new_tokens;      // >= 1
    const int32_t* stop_tokens;  // [num_stop_tokens]; generation ends behind the first of them
    int32_t num_stop_tokens;     // 0 .. 8
    float temperature;           // below 1e-5: greedy
    uint64_t seed;
    const int32_t* golden_tokens;  // [num_golden_tokens] for simulated_accept: what the target will say, the first
                                   // token included; may be NULL
    int32_t num_golden_tokens;
} kdt_engine_request;

typedef enum kdt_decode_mode {
    KDT_DECODE_AR = 0,     // one token a round, no drafter
    KDT_DECODE_CHAIN = 1,  // DFlash: the drafter's best token at each position, a chain of block_size nodes
    KDT_DECODE_DDTREE = 2
} kdt_decode_mode;

typedef struct kdt_engine_rounds {
    uint32_t struct_size;
    int32_t rounds;       // to run; on CUDA they are enqueued, and the call does not wait
    int32_t mode;         // kdt_decode_mode
    int32_t tree_budget;  // of KDT_DECODE_DDTREE, 1 .. max_tree_budget
    int32_t topk;         // of KDT_DECODE_DDTREE, 1 .. min(vocab_size, KDT_MAX_TOPK); 0 is min(tree_budget, those)
    int32_t block_size;   // 2 .. the drafter's; 0 is the drafter's
    // Simulated acceptance: the drafter runs, and its proposal is replaced by the request's golden tokens, of which
    // each position is spoilt with probability 1 - simulated_accept, keyed on (seed, position). 0: off.
    float simulated_accept;
    // Time stamps of the device in the round, which nobody waits for: 1 at every stage, which keeps neighbouring
    // kernels from overlapping there, 2 at its begin and its end only.
    int32_t profile;
} kdt_engine_rounds;

// Counts of one slot since its admission.
typedef struct kdt_engine_progress {
    uint32_t struct_size;
    int32_t finished;     // 0, or 1: a stop token, or max_new_tokens
    int32_t num_tokens;   // emitted, the first one included
    int32_t rounds;       // rounds that emitted for this slot = target forwards of its decoding
    int32_t rounds_done;  // of the engine, finished since its creation: how far the device is
    int64_t accepted;     // sum of acceptance_length over these rounds, tokens behind a stop included
    int32_t status;       // request status flags of all kernels, or-ed; a chain's tree (topk 1) is always truncated
    int32_t histogram[KDT_MAX_DRAFT_HORIZON + 2];  // [i] rounds with acceptance_length i
} kdt_engine_progress;

typedef enum kdt_stage {
    KDT_STAGE_DRAFT = 0,  // context features, block forward, lm_head, draft_topk
    KDT_STAGE_TREE_BUILD = 1,
    KDT_STAGE_VERIFY = 2,  // the target's forward, its lm_head and its draws
    KDT_STAGE_TREE_ACCEPT = 3,
    KDT_STAGE_COMMIT = 4,
    KDT_NUM_STAGES = 5
} kdt_stage;

// Where the device's time went in rounds with profile, by the device's own clock.
typedef struct kdt_round_clock {
    uint32_t struct_size;
    int64_t rounds;             // run with profile 2
    int64_t gaps;               // between two of them in a row, none of which an admission has interrupted
    double busy_seconds;        // sum over the rounds, from begin to end
    double idle_seconds;        // sum over the gaps, from the end of one round to the begin of the next
    int64_t stage_rounds;       // run with profile 1
    double draft_topk_seconds;  // sum over these: the part of stage draft that draft_topk takes
    double stamp_seconds;       // sum over these: between two stamps with nothing between, which each stage contains
} kdt_round_clock;

KDT_API kdt_status kdt_engine_create(const kdt_engine_params* params, kdt_engine** engine);
KDT_API void kdt_engine_destroy(kdt_engine* engine);

KDT_API kdt_status kdt_engine_admit(kdt_engine* engine, const kdt_engine_request* request, int32_t* slot);
// Frees slot and pages; waits for rounds under way. Any time: a request may be given up before it has finished.
KDT_API kdt_status kdt_engine_release(kdt_engine* engine, int32_t slot);

// Chain and tree need a drafter that has seen all of a request's tokens: they are refused while there is a request that
// AR rounds have advanced and that has not finished. The other way round is fine.
KDT_API kdt_status kdt_engine_run(kdt_engine* engine, const kdt_engine_rounds* rounds);
// What is known now; with wait, after all rounds asked for. tokens: [capacity], may be NULL; those from `first` on, as
// many as num_tokens - first and the capacity allow.
KDT_API kdt_status kdt_engine_progress_of(kdt_engine* engine, int32_t slot, int32_t wait, kdt_engine_progress* progress,
                                          int32_t* tokens, int32_t first, int32_t capacity);
// Seconds a stage took since the last call, over the rounds run with profile 1, and their number; waits.
KDT_API kdt_status kdt_engine_stage_seconds(kdt_engine* engine, double seconds[KDT_NUM_STAGES], int64_t* rounds);
// What has been summed up since the last call; waits.
KDT_API kdt_status kdt_engine_round_clock(kdt_engine* engine, kdt_round_clock* clock);
// Logits of the last admission's last token (1 row, of its slot only) or of the last round's nodes (N rows, pads
// included), for tests: f32 [rows, vocab_size], host memory; waits. `capacity` counts values; logits NULL: only *rows.
KDT_API kdt_status kdt_engine_logits(kdt_engine* engine, int32_t slot, float* logits, int64_t capacity, int32_t* rows);
// One JSON object: bytes of weights, caches and scratch, pages free and in use, slots in use, the BLAS.
KDT_API kdt_status kdt_engine_info(kdt_engine* engine, char* text, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif  // KDTREE_ENGINE_H
