// SPDX-License-Identifier: Apache-2.0
//
// What the engine asks of a backend beyond the kernels of kdtree.h: memory, order, and the small operators of a
// transformer. Implemented once in src/engine/cpu/ and once in src/engine/cuda/; the engine above knows neither.
//
// Tensors are row-major device memory (host memory on the CPU); `rows` are tokens. Values of type "act" are of the
// engine's dtype, f32 or bf16; sums inside an operator are f32, and only what is stored is rounded. Nothing here
// allocates but Memory, SharedMemory, Queue and Recording, and everything that takes a Queue may be captured, upload,
// download and wait excepted. Strides count elements.
//
// A row's result never depends on the other rows nor, on the CPU, on how many there are: that is what makes tree
// decoding equal plain decoding bit for bit there. Ids, positions and lengths come from device memory and are not
// checked by the host: an operator stays inside its buffers whatever they are.
#ifndef KDT_ENGINE_OPS_H
#define KDT_ENGINE_OPS_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "kdtree/kdtree.h"

namespace kdt::engine {

inline size_t size_of(kdt_dtype dtype) {
    return dtype == KDT_F32 ? 4 : 2;
}

// Device memory with one owner; zeroed when made, aligned to 256 bytes. Throws Error(KDT_INTERNAL) with the number of
// bytes when there is none.
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
    T* as() const {
        return static_cast<T*>(data_);
    }

  private:
    void* data_ = nullptr;
    size_t bytes_ = 0;
};

// Host memory that the device may write and the host may read meanwhile (mapped, pinned; ordinary on the CPU). Zeroed.
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
    void* stream() const;           // for the params of kdtree.h
    const char* blas_name() const;  // which GEMM library this is, for kdt_engine_info()

    struct Impl;
    Impl* impl() const { return impl_.get(); }

  private:
    std::unique_ptr<Impl> impl_;
};

// A recorded piece of work: a CUDA graph; on the CPU the function itself, called again each time. Recording does not
// execute the work: only replay() does.
class Recording {
  public:
    Recording(Queue& queue, std::function<void()> work);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    void replay();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Sums of a round's stamps, in device memory, nanoseconds; all zero when new.
constexpr int32_t kStamps = 8;
struct Stamps {
    int64_t begin;           // when the round began
    int64_t last;            // the last stamp
    int64_t end;             // when the last round ended; 0: the next gap is none
    int64_t spans[kStamps];  // [i]: from the stamp before stamp i to it
    int64_t busy;            // begin to end
    int64_t idle;            // end to begin
    int64_t gaps;
    int64_t rounds;
};
// Reads the device's clock once all work before it is complete. Stamp 0 begins a round; with `ends` it is over.
void stamp(Queue&, Stamps* stamps, int32_t index, bool ends);

using Dtype = kdt_dtype;

// The mode of kdt_verify_mla that the engine asks for. CPU: always KDT_MLA_ABSORB, since another mode for other sizes
// would round differently. CUDA: KDT_MLA_AUTO.
kdt_mla_mode mla_mode();

// y[rows, out] = x[rows, in] * w[out, in]^T, x and w act, y act or f32 (y_dtype). x rows are x_stride apart.
void gemm(Queue&, Dtype dtype, const void* x, int64_t x_stride, const void* w, void* y, Dtype y_dtype, int32_t rows,
          int32_t in, int32_t out);
// Between f32 and bf16 (or a copy), both in device memory.
void convert(Queue&, const void* from, Dtype from_dtype, void* to, Dtype to_dtype, int64_t count);
// Normal values with this deviation, keyed on (seed, index): normal_value() of keyed_random.h.
void fill_normal(Queue&, void* to, Dtype dtype, int64_t count, float deviation, uint64_t seed);
void fill_constant(Queue&, void* to, Dtype dtype, int64_t count, float value);

// out[r] = table[ids[r]]; an id outside the table is row 0.
void embed(Queue&, Dtype, const int32_t* ids, const void* table, int32_t vocab, int32_t hidden, void* out,
           int32_t rows);
// The draft blocks [batch, block, hidden]: out[b, 0] = table[roots[b]], the others table[mask_token].
void embed_block(Queue&, Dtype, const int32_t* roots, int32_t mask_token, const void* table, int32_t vocab,
                 int32_t hidden, void* out, int32_t batch, int32_t block);
// out[r] = x[r] / rms(x[r]) * weight. x rows are x_stride apart.
void rmsnorm(Queue&, Dtype, const void* x, int64_t x_stride, const void* weight, float eps, void* out, int32_t rows,
             int32_t hidden);
// residual += delta (delta may be NULL: nothing is added), feature (may be NULL; rows feature_stride apart) = residual,
// out (may be NULL) = rmsnorm(residual) * weight, of the residual as it was stored: one pass.
void add_rmsnorm(Queue&, Dtype, void* residual, const void* delta, void* feature, int64_t feature_stride,
                 const void* weight, float eps, void* out, int32_t rows, int32_t hidden);
// out[r, i] = silu(x[r, i]) * x[r, half + i], x [rows, 2 half].
void silu_mul(Queue&, Dtype, const void* x, void* out, int32_t rows, int32_t half);

// The way into a pre-norm block: sum = residual + delta (delta NULL: the residual itself), kept in residual_out (apart
// from residual; not written without delta) and feature (may be NULL; rows feature_stride apart); then rmsnorm(sum) *
// norm, which may come by `hidden` [rows, in] on its way into the product.
struct NormInput {
    const void* residual;
    const void* delta;
    void* residual_out;
    void* feature;
    int64_t feature_stride;
    const void* norm;
    float eps;
    void* hidden;
};
// y[rows, out] = normed * w[out, in]^T, all act.
void norm_gemm(Queue&, Dtype, const NormInput& input, const void* w, void* y, int32_t rows, int32_t in, int32_t out);
// product[rows, intermediate] = silu(gate) * up of normed * gate_up[2 intermediate, in]^T, which may come by `both`
// [rows, 2 intermediate].
void norm_gate(Queue&, Dtype, const NormInput& input, const void* gate_up, void* both, void* product, int32_t rows,
               int32_t in, int32_t intermediate);

// out[b, i] = rmsnorm(residual[b, i + 1] + delta[b, i + 1]) * weight for i < block - 1: the rows of the draft blocks
// that predict, packed. residual is not written back.
void block_norm(Queue&, Dtype, const void* residual, const void* delta, const void* weight, float eps, void* out,
                int32_t batch, int32_t block, int32_t hidden);

// cos_sin: f32 [max_positions, pairs, 2], made on the host. A position outside the table takes its nearest row.
struct Rope {
    const float* cos_sin;
    int32_t max_positions;
    int32_t pairs;
};
// The target's queries for kdt_verify_mla: q act [rows, H, 128 + 64], rows q_stride apart -> q_nope bf16 [rows, H,
// 128], q_pe bf16 [rows, H, 64] with interleaved pairs (2i, 2i + 1) rotated at positions[r].
void mla_queries(Queue&, Dtype, const void* q, int64_t q_stride, const int32_t* positions, Rope, int32_t num_heads,
                 void* q_nope, void* q_pe, int32_t rows);
// kv act [B * N, 512 + 64], rows kv_stride apart -> latent (rmsnorm by weight) and rotated key, bf16, to logical slot
// seq_lens[b] + i of one layer's cache [num_pages, page_size, 576], for i < num_nodes[b]. Slots beyond the block table,
// and those whose page is outside [0, num_pages), are not written.
struct Pages {
    const int32_t* block_table;  // [B, max_pages_per_seq]
    int32_t max_pages_per_seq;
    int32_t page_size;
    int32_t num_pages;
};
void mla_store(Queue&, Dtype, const void* kv, int64_t kv_stride, const void* weight, float eps,
               const int32_t* positions, Rope, const int32_t* seq_lens, const int32_t* num_nodes, Pages,
               void* layer_cache, int32_t batch, int32_t max_nodes);
// All of the above: queries and cache from the first projection's rows [batch * max_nodes, width + 512 + 64], width =
// q_lora_rank or, without LoRA (0), num_heads * (128 + 64). With LoRA the query is q_b of rmsnorm(row) * q_norm; these
// may come by q_normed [rows, q_lora_rank] and q [rows, num_heads * (128 + 64)].
struct MlaInputs {
    const void* first;
    int32_t q_lora_rank;
    const void* q_norm;
    const void* q_b;
    const void* kv_norm;
    float eps;
    const int32_t* positions;
    Rope rope;
    const int32_t* seq_lens;
    const int32_t* num_nodes;
    Pages pages;
    void* layer_cache;
    int32_t num_heads;
    int32_t batch;
    int32_t max_nodes;
    void* q_normed;
    void* q;
    void* q_nope;
    void* q_pe;
};
void mla_inputs(Queue&, Dtype, const MlaInputs&);
// num_nodes[b] = 0 where active[b] is 0: kernels then refuse the slot and do no work for it.
void hide_idle(Queue&, const int32_t* active, int32_t* num_nodes, int32_t batch);

// DeepSeek-V3's router: experts i32 [rows, k] and weights f32 [rows, k] from logits f32 [rows, E] and bias f32 [E]
// (NULL: none). Per row: p = sigmoid or softmax of the logits; choice = p + bias; a group's score is the sum of its two
// best choices (sigmoid) or its best (softmax); of the topk_group best groups the k best choices, descending; weights
// their p, with norm_topk_prob over (their sum in that order + 1e-20), times routed_scaling_factor. Ties: lowest index.
struct Router {
    int32_t n_routed_experts, num_experts_per_tok, n_group, topk_group, norm_topk_prob, scores;
    float routed_scaling_factor;
};
void route(Queue&, const Router&, const float* logits, const float* bias, int32_t* experts, float* weights,
           int32_t rows);
// out[r] (act) += sum over k, in f32, of weights[r, k] * mlp_of_expert(x[r]); gate_up [E, 2 I, hidden], down
// [E, hidden, I].
size_t experts_workspace(Dtype, const Router&, int32_t hidden, int32_t intermediate, int32_t rows);
void experts_add(Queue&, Dtype, const Router&, const void* x, const int32_t* experts, const float* weights,
                 const void* gate_up, const void* down, void* out, int32_t rows, int32_t hidden, int32_t intermediate,
                 void* workspace);

// ---- the drafter
struct DraftHeads {
    int32_t num_heads, num_kv_heads, head_dim;
};
// A layer's cache of the drafter: act [B, capacity, 2, num_kv_heads, head_dim], keys (normed, rotated) then values.
// Context: kv act [B * M, L, 2, num_kv_heads, head_dim], M rows a request, of all L layers -> positions starts[b] + i
// of each layer's cache for i < counts[b]; k_norms act [L, head_dim]. Layers of the cache are layer_stride apart.
// Positions at or beyond the capacity are not written.
void draft_store(Queue&, Dtype, DraftHeads, const void* kv, int32_t num_layers, const void* k_norms, float eps, Rope,
                 const int32_t* starts, const int32_t* counts, void* cache, int64_t layer_stride, int32_t capacity,
                 int32_t batch, int32_t max_rows);
// Block: qkv act [B * S, (num_heads + 2 num_kv_heads) * head_dim], S block rows at positions seq_lens[b] + i, not
// normed nor rotated yet; every row attends the cached context [0, min(seq_lens[b], capacity)) and the whole block,
// scores scaled by 1 / sqrt(head_dim); out act [B * S, num_heads * head_dim]. The cache is not written.
size_t draft_attention_workspace(Dtype, DraftHeads, int32_t batch, int32_t block, int32_t capacity);
void draft_attention(Queue&, Dtype, DraftHeads, const void* qkv, const void* q_norm, const void* k_norm, float eps,
                     Rope, const int32_t* seq_lens, const void* cache, int32_t capacity, void* out, int32_t batch,
                     int32_t block, void* workspace);
// Simulated acceptance: log_probs f32 [B, D, K] and token_ids i32 [B, D, K] of draft_topk are overwritten. Depth d = 1
// .. D stands at position seq_lens[b] + d; g = golden[b, position - golden_starts[b]], spoilt = 1 when
// uniform(word(seed ^ kSpoilKey, position)) >= accept (keyed_random.h); beyond golden_counts[b], or before the start, g
// = 0 and spoilt = 1. Rank k: token (g + spoilt + k) % vocab, log-prob -0.6931472f * (k + 1).
struct Golden {
    const int32_t* tokens;  // [B, stride]
    const int32_t* counts;  // [B]
    const int32_t* starts;  // [B]
    int32_t stride;
};
void simulate_draft(Queue&, Golden, const int32_t* seq_lens, const uint64_t* seeds, float accept, int32_t vocab,
                    float* log_probs, int32_t* token_ids, int32_t batch, int32_t horizon, int32_t topk);

// ---- draws and commit
// target_tokens[r]: argmax of logits, or with a temperature of at least 1e-5 of logits / temperature + gumbel(seed,
// position of the token drawn = positions[r] + 1, token id), see keyed_random.h; equal values by lowest id, a NaN never
// wins, 0 when there is nothing above -inf. Per request b = r / rows_per_request: temperatures, seeds.
void draw(Queue&, const float* logits, int32_t vocab, const int32_t* positions, const float* temperatures,
          const uint64_t* seeds, int32_t rows_per_request, int32_t* target_tokens, int32_t rows);

// State of the slots, all device memory.
struct Slots {
    int32_t* roots;              // [B]
    int32_t* seq_lens;           // [B] committed tokens in the cache; 0 for an empty slot
    int32_t* active;             // [B] 1: decoding
    int32_t* remaining;          // [B] tokens still allowed
    const int32_t* stop_tokens;  // [B, 8], -1 filled
    int32_t* context_starts;     // [B] for the next draft_store
    int32_t* context_counts;     // [B]
    int32_t* round;              // [1]
};
// Host-visible outputs of the slots.
struct Outputs {
    int32_t* tokens;       // [B, capacity]
    int32_t* num_tokens;   // [B] written after the tokens
    int32_t* finished;     // [B] written after num_tokens
    int32_t* rounds;       // [B]
    int64_t* accepted;     // [B]
    int32_t* status;       // [B]
    int32_t* histogram;    // [B, KDT_MAX_DRAFT_HORIZON + 2]
    int32_t* rounds_done;  // [1] written last
    int32_t capacity;
};
// What a round came to, for commit.
struct Accepted {
    const int32_t* token_ids;          // [B, N]
    const int32_t* accepted_path;      // [B, horizon + 1]
    const int32_t* acceptance_length;  // [B]
    const int32_t* bonus_tokens;       // [B]
    int32_t max_nodes;                 // N
    int32_t horizon;
    const int32_t* statuses[4];  // [B] each, to be or-ed into Outputs::status
    int32_t num_statuses;
};
// Features of the accepted nodes, for the next round's draft_store.
struct Context {
    const void* features;  // act [B * N, width]; NULL: nothing to gather
    void* rows;            // act [B, max_rows, width]
    int64_t width;
    int32_t max_rows;
};
// After tree_accept and kv_compact. For an active slot: emits token_ids[path[1:]] and the bonus, cut behind the first
// stop token (a token >= 0 that equals one of the slot's) and at `remaining`, to tokens[num_tokens ...]; remaining -=
// what was emitted; num_tokens, rounds, accepted, histogram, status; finished = 1 and active = 0 after a stop token or
// when remaining is 0; features row path[i] to context row i for i < acceptance_length; context_starts = seq_lens and
// context_counts = acceptance_length, then seq_lens += acceptance_length, roots = bonus. An acceptance_length outside
// 1 .. horizon + 1 finishes the slot and emits nothing. Slots that are not active: context_counts 0, and nothing else
// but their context rows, which nobody reads. Last of all round += 1 and rounds_done = round.
void commit(Queue&, Dtype, const Accepted&, const Context&, Slots, Outputs, int32_t batch);

}  // namespace kdt::engine

#endif  // KDT_ENGINE_OPS_H
