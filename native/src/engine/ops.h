// SPDX-License-Identifier: Apache-2.0
//
// What the engine asks of a backend beyond the kernels of kdtree.h: memory, order, and the small operators of a
// transformer. Implemented once in src/engine/cpu/ and once in src/engine/cuda/; the engine above knows neither.
//
// Tensors are row-major device memory (host memory on the CPU); `rows` are tokens. Values of type "act" are of the
// engine's dtype, f32 or bf16; sums inside an operator are f32. Nothing here allocates but Memory, and everything that
// takes a Queue may be captured.
#ifndef KDT_ENGINE_OPS_H
#define KDT_ENGINE_OPS_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "kdtree/kdtree.h"

namespace kdt::engine {

// Device memory with one owner; zeroed when made. Throws Error(KDT_INTERNAL...) with the number of bytes when there is none.
class Memory {
public:
    Memory() = default;
    explicit Memory(size_t bytes);
    Memory(Memory&&) noexcept;
    Memory& operator=(Memory&&) noexcept;
    ~Memory();
    void* data() const { return data_; }
    size_t bytes() const { return bytes_; }
    template <class T>
    T* as() const { return static_cast<T*>(data_); }

private:
    void* data_ = nullptr;
    size_t bytes_ = 0;
};

// Host memory that the device may write and the host may read meanwhile (mapped, pinned; ordinary on the CPU).
class SharedMemory {
public:
    SharedMemory() = default;
    explicit SharedMemory(size_t bytes);
    SharedMemory(SharedMemory&&) noexcept;
    SharedMemory& operator=(SharedMemory&&) noexcept;
    ~SharedMemory();
    void* host() const { return host_; }
    void* device() const { return device_; }

private:
    void* host_ = nullptr;
    void* device_ = nullptr;
};

// An order of work on the device, with its GEMM library's handle. On the CPU everything runs at once, in the caller.
class Queue {
public:
    explicit Queue(const char* blas_library);
    ~Queue();
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;

    void upload(void* to, const void* from, size_t bytes);    // host to device; `from` may be reused on return
    void download(void* to, const void* from, size_t bytes);  // device to host, waits
    void copy(void* to, const void* from, size_t bytes);      // on the device
    void zero(void* to, size_t bytes);
    void wait();
    void* stream() const;      // for the params of kdtree.h
    double mark(int32_t mark);  // records mark 0 .. 15; answers nothing
    double seconds_between(int32_t from, int32_t to);  // of two marks, after wait()
    const char* blas_name() const;

    struct Impl;
    Impl* impl() const { return impl_.get(); }

private:
    std::unique_ptr<Impl> impl_;
};

// A recorded piece of work: a CUDA graph; on the CPU the function itself, called again each time.
class Recording {
public:
    Recording(Queue& queue, std::function<void()> work);  // warms up GEMM plans by itself if it must
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    void replay();

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

using Dtype = kdt_dtype;

// y[rows, out] = x[rows, in] * w[out, in]^T, x and w act, y act or f32. x rows are x_stride elements apart. A row of y has the
// same bits whatever `rows` is, on the CPU.
void gemm(Queue&, Dtype dtype, const void* x, int64_t x_stride, const void* w, void* y, Dtype y_dtype, int32_t rows,
          int32_t in, int32_t out);
// act from f32 or bf16 host weights; Python's bf16 are uint16.
void convert(Queue&, const void* from, Dtype from_dtype, void* to, Dtype to_dtype, int64_t count);
// Normal values with this deviation, keyed on (seed, index): equal on both backends but for the last bits.
void fill_normal(Queue&, void* to, Dtype dtype, int64_t count, float deviation, uint64_t seed);
void fill_constant(Queue&, void* to, Dtype dtype, int64_t count, float value);

// out[r] = table[ids[r]]; an id outside the table is row 0 (its request's status says so elsewhere).
void embed(Queue&, Dtype, const int32_t* ids, const void* table, int32_t vocab, int32_t hidden, void* out, int32_t rows);
// out[r] = x[r] / rms(x[r]) * weight. x rows are x_stride apart.
void rmsnorm(Queue&, Dtype, const void* x, int64_t x_stride, const void* weight, float eps, void* out, int32_t rows,
             int32_t hidden);
// residual += delta (delta may be NULL: nothing is added), feature (may be NULL; rows feature_stride apart) = residual,
// out (may be NULL) = rmsnorm(residual) * weight: one pass.
void add_rmsnorm(Queue&, Dtype, void* residual, const void* delta, void* feature, int64_t feature_stride,
                 const void* weight, float eps, void* out, int32_t rows, int32_t hidden);
// out[r, i] = silu(x[r, i]) * x[r, half + i], x [rows, 2 half].
void silu_mul(Queue&, Dtype, const void* x, void* out, int32_t rows, int32_t half);

// cos_sin: f32 [max_positions, pairs, 2], made on the host.
struct Rope {
    const float* cos_sin;
    int32_t max_positions;
    int32_t pairs;
};
// The target's queries for kdt_verify_mla: q act [rows, H, 128 + 64] -> q_nope bf16 [rows, H, 128], q_pe bf16 [rows, H, 64]
// with interleaved pairs (2i, 2i + 1) rotated at positions[r].
void mla_queries(Queue&, Dtype, const void* q, const int32_t* positions, Rope, int32_t num_heads, void* q_nope,
                 void* q_pe, int32_t rows);
// kv act [B * N, 512 + 64] -> latent (rmsnorm by weight) and rotated key, bf16, to logical slot seq_lens[b] + i of one
// layer's cache [num_pages, page_size, 576], for i < num_nodes[b]. Slots beyond the block table are not written.
struct Pages {
    const int32_t* block_table;  // [B, max_pages_per_seq]
    int32_t max_pages_per_seq;
    int32_t page_size;
    int32_t num_pages;
};
void mla_store(Queue&, Dtype, const void* kv, const void* weight, float eps, const int32_t* positions, Rope,
               const int32_t* seq_lens, const int32_t* num_nodes, Pages, void* layer_cache, int32_t batch,
               int32_t max_nodes);

// DeepSeek-V3's router: experts i32 [rows, k] and weights f32 [rows, k] from logits f32 [rows, E] and bias f32 [E] (NULL: none).
struct Router {
    int32_t n_routed_experts, num_experts_per_tok, n_group, topk_group, norm_topk_prob, scores;
    float routed_scaling_factor;
};
void route(Queue&, const Router&, const float* logits, const float* bias, int32_t* experts, float* weights, int32_t rows);
// out[r] (act) += sum over k of weights[r, k] * mlp_of_expert(x[r]); gate_up [E, 2 I, hidden], down [E, hidden, I].
size_t experts_workspace(Dtype, const Router&, int32_t hidden, int32_t intermediate, int32_t rows);
void experts_add(Queue&, Dtype, const Router&, const void* x, const int32_t* experts, const float* weights,
                 const void* gate_up, const void* down, void* out, int32_t rows, int32_t hidden, int32_t intermediate,
                 void* workspace);

// ---- the drafter
struct DraftHeads {
    int32_t num_heads, num_kv_heads, head_dim;
};
// A layer's cache of the drafter: act [B, max_seq_len, 2, num_kv_heads, head_dim], keys (normed, rotated) then values.
// Context: kv act [B * M, 2 * num_kv_heads * head_dim] of M rows a request -> positions starts[b] + i for i < counts[b].
void draft_store(Queue&, Dtype, DraftHeads, const void* kv, const void* k_norm, float eps, Rope, const int32_t* starts,
                 const int32_t* counts, void* cache, int32_t max_seq_len, int32_t batch, int32_t max_rows);
// Block: qkv act [B * S, (num_heads + 2 num_kv_heads) * head_dim], S block rows at positions seq_lens[b] + i; every row attends the
// cached context [0, seq_lens[b]) and the whole block; out act [B * S, num_heads * head_dim]. The cache is not written.
size_t draft_attention_workspace(Dtype, DraftHeads, int32_t batch, int32_t block, int32_t max_seq_len);
void draft_attention(Queue&, Dtype, DraftHeads, const void* qkv, const void* q_norm, const void* k_norm, float eps, Rope,
                     const int32_t* seq_lens, const void* cache, int32_t max_seq_len, void* out, int32_t batch,
                     int32_t block, void* workspace);
// ids i32 [B, S] = root, then mask.
void draft_block_ids(Queue&, const int32_t* roots, int32_t mask_token, int32_t* ids, int32_t batch, int32_t block);
// Simulated acceptance: log_probs f32 [B, D, K] and token_ids i32 [B, D, K] of draft_topk are overwritten: rank 0 of depth d is
// golden[b, position - golden_start[b]] of the token at position seq_lens[b] + d, or where it is spoilt (keyed on
// (seed, position), probability 1 - accept) or beyond golden_counts[b] another token; ranks fall by a fixed law.
void simulate_draft(Queue&, const int32_t* golden, const int32_t* golden_counts, const int32_t* golden_starts, int32_t golden_stride,
                    const int32_t* seq_lens, const uint64_t* seeds, float accept, int32_t vocab, float* log_probs,
                    int32_t* token_ids, int32_t batch, int32_t horizon, int32_t topk);

// ---- draws and commit
// target_tokens[r]: argmax, or argmax of logits / temperature + Gumbel noise keyed on (seed, position of the token drawn =
// positions[r] + 1, token id); equal values by lowest id. Per request b = r / rows_per_request: temperatures, seeds.
void draw(Queue&, const float* logits, int32_t vocab, const int32_t* positions, const float* temperatures,
          const uint64_t* seeds, int32_t rows_per_request, int32_t* target_tokens, int32_t rows);

// State of the slots, all device memory.
struct Slots {
    int32_t* roots;           // [B]
    int32_t* seq_lens;        // [B] committed tokens in the cache; 0 for an empty slot
    int32_t* active;          // [B] 1: decoding
    int32_t* remaining;       // [B] tokens still allowed
    const int32_t* stop_tokens;  // [B, 8], -1 filled
    int32_t* context_starts;  // [B] for the next draft_store
    int32_t* context_counts;  // [B]
    int32_t* round;           // [1]
};
// Host-visible outputs of the slots.
struct Outputs {
    int32_t* tokens;      // [B, capacity]
    int32_t* num_tokens;  // [B] written after the tokens
    int32_t* finished;    // [B]
    int32_t* rounds;      // [B]
    int64_t* accepted;    // [B]
    int32_t* status;      // [B]
    int32_t* histogram;   // [B, KDT_MAX_DRAFT_HORIZON + 2]
    int32_t* rounds_done;  // [1] written last
    int32_t capacity;
};
// After tree_accept and kv_compact. For an active slot: emits token_ids[path[1:]] and bonus, cut behind the first stop token
// and at `remaining`; counts; features of the accepted rows gather to context [B, D + 1, width] (act; NULL without
// drafter); seq_lens += acceptance_length, roots = bonus, context_starts/_counts = what was accepted. Others: nothing,
// context_counts 0. `statuses`: `num_statuses` arrays [B] to be or-ed into Outputs::status.
void commit(Queue&, Dtype, const int32_t* token_ids, const int32_t* accepted_path, const int32_t* acceptance_length,
            const int32_t* bonus, const void* features, int64_t width, void* context, const int32_t* const* statuses,
            int32_t num_statuses, Slots, Outputs, int32_t batch, int32_t max_nodes, int32_t horizon);

}  // namespace kdt::engine

#endif  // KDT_ENGINE_OPS_H
