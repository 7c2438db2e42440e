// SPDX-License-Identifier: Apache-2.0
//
// The drafter's cache, its attention over context and block, and drafts that are simulated.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/simd.h"
#include "engine/cpu/rows.h"
#include "engine/keyed_random.h"
#include "engine/ops.h"

namespace kdt::engine {
namespace {

// A head's row: normed with its weight, then rotated in halves.
void norm_and_rotate(float* head, const float* norm, int32_t dim, float eps, const float* cos_sin) {
    const float factor = 1.0f / std::sqrt(sum_of_squares(head, dim) / static_cast<float>(dim) + eps);
    for (int32_t i = 0; i < dim; ++i) head[i] = head[i] * factor * norm[i];
    rotate(head, dim, cos_sin, false);
}

KDT_CLONES float dot(const float* a, const float* b, int32_t count) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int32_t i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
}

KDT_CLONES void add_scaled(const float* from, float factor, int32_t count, float* to) {
    for (int32_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

std::vector<float> widened(Dtype dtype, const void* from, int64_t offset, int32_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    read_values(dtype, from, offset, count, values.data());
    return values;
}

struct Block {
    Dtype dtype;
    DraftHeads heads;
    const void* qkv;
    const void* q_norm;
    const void* k_norm;
    float eps;
    Rope rope;
    const void* cache;
    int32_t capacity;
    void* out;
    int32_t block;

    int32_t token_values() const { return 2 * heads.num_kv_heads * heads.head_dim; }
    int32_t row_values() const { return heads.num_heads * heads.head_dim + token_values(); }
};

// All queries of one KV head of request b, over context and block.
void attend(const Block& p, int64_t b, int32_t kv_head, int32_t length) {
    const int32_t dim = p.heads.head_dim, group = p.heads.num_heads / p.heads.num_kv_heads;
    const int32_t context = std::min(std::max(length, 0), p.capacity), slots = context + p.block;
    const int64_t kv_width = int64_t{p.heads.num_kv_heads} * dim;
    std::vector<float> keys(static_cast<size_t>(slots) * dim), values(keys.size()), query(static_cast<size_t>(dim)),
        scores(static_cast<size_t>(slots)), sum(static_cast<size_t>(dim));
    const std::vector<float> q_norm = widened(p.dtype, p.q_norm, 0, dim), k_norm = widened(p.dtype, p.k_norm, 0, dim);
    for (int64_t t = 0; t < context; ++t) {
        const int64_t at = (b * p.capacity + t) * p.token_values() + int64_t{kv_head} * dim;
        read_values(p.dtype, p.cache, at, dim, keys.data() + t * dim);
        read_values(p.dtype, p.cache, at + kv_width, dim, values.data() + t * dim);
    }
    for (int64_t i = 0; i < p.block; ++i) {
        const int64_t at = (b * p.block + i) * p.row_values() + (int64_t{p.heads.num_heads} + kv_head) * dim;
        float* const key = keys.data() + (context + i) * dim;
        read_values(p.dtype, p.qkv, at, dim, key);
        norm_and_rotate(key, k_norm.data(), dim, p.eps, row_of(p.rope, length + i));
        read_values(p.dtype, p.qkv, at + kv_width, dim, values.data() + (context + i) * dim);
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    for (int64_t i = 0; i < p.block; ++i)
        for (int32_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
            read_values(p.dtype, p.qkv, (b * p.block + i) * p.row_values() + int64_t{h} * dim, dim, query.data());
            norm_and_rotate(query.data(), q_norm.data(), dim, p.eps, row_of(p.rope, length + i));
            for (int32_t t = 0; t < slots; ++t)
                scores[static_cast<size_t>(t)] = scale * dot(query.data(), keys.data() + int64_t{t} * dim, dim);
            const float maximum = *std::max_element(scores.begin(), scores.end());
            std::fill(sum.begin(), sum.end(), 0.0f);
            float total = 0.0f;
            for (int32_t t = 0; t < slots; ++t) {
                const float weight = exp_nonpositive(scores[static_cast<size_t>(t)] - maximum);
                total += weight;
                add_scaled(values.data() + int64_t{t} * dim, weight, dim, sum.data());
            }
            for (float& value : sum) value /= total;
            write_values(p.dtype, sum.data(), p.out, ((b * p.block + i) * p.heads.num_heads + h) * dim, dim);
        }
}

}  // namespace

void draft_store(Queue&, Dtype dtype, DraftHeads heads, const void* kv, int32_t num_layers, const void* k_norms,
                 float eps, Rope rope, const int32_t* starts, const int32_t* counts, void* cache, int64_t layer_stride,
                 int32_t capacity, int32_t batch, int32_t max_rows) {
    const int32_t dim = heads.head_dim, token_values = 2 * heads.num_kv_heads * dim;
    const std::vector<float> norms = widened(dtype, k_norms, 0, num_layers * dim);
    for_rows(int64_t{batch} * max_rows, token_values, 2.0 * num_layers * token_values, [&](int64_t r, float* row) {
        const int64_t b = r / max_rows, i = r % max_rows;
        const int64_t position = int64_t{starts[b]} + i;
        if (i >= counts[b] || position < 0 || position >= capacity) return;
        for (int32_t layer = 0; layer < num_layers; ++layer) {
            read_values(dtype, kv, (r * num_layers + layer) * token_values, token_values, row);
            for (int32_t h = 0; h < heads.num_kv_heads; ++h)
                norm_and_rotate(row + int64_t{h} * dim, norms.data() + int64_t{layer} * dim, dim, eps,
                                row_of(rope, position));
            write_values(dtype, row, cache, layer * layer_stride + (b * capacity + position) * token_values,
                         token_values);
        }
    });
}

size_t draft_attention_workspace(Dtype, DraftHeads, int32_t, int32_t, int32_t) {
    return 0;
}

void draft_attention(Queue&, Dtype dtype, DraftHeads heads, const void* qkv, const void* q_norm, const void* k_norm,
                     float eps, Rope rope, const int32_t* seq_lens, const void* cache, int32_t capacity, void* out,
                     int32_t batch, int32_t block, void*) {
    const Block p = {dtype, heads, qkv, q_norm, k_norm, eps, rope, cache, capacity, out, block};
    double slots = 0.0;
    for (int32_t b = 0; b < batch; ++b) slots += std::max(seq_lens[b], 0) + block;
    const int64_t items = int64_t{batch} * heads.num_kv_heads;
    const int threads = plan_threads(items, 0.2 * slots * block * heads.num_heads * heads.head_dim);
    parallel_for(items, threads, [&](int64_t item, int) {
        const int64_t b = item / heads.num_kv_heads;
        attend(p, b, static_cast<int32_t>(item % heads.num_kv_heads), seq_lens[b]);
    });
}

void simulate_draft(Queue&, Golden golden, const int32_t* seq_lens, const uint64_t* seeds, float accept, int32_t vocab,
                    float* log_probs, int32_t* token_ids, int32_t batch, int32_t horizon, int32_t topk) {
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t d = 1; d <= horizon; ++d) {
            const int64_t position = seq_lens[b] + d, index = position - golden.starts[b];
            const bool known = index >= 0 && index < golden.counts[b];
            const int64_t token = known ? golden.tokens[b * golden.stride + index] : 0;
            const bool spoilt =
                !known || uniform(word(seeds[b] ^ kSpoilKey, static_cast<uint64_t>(position))) >= accept;
            const int64_t row = (b * horizon + d - 1) * topk;
            for (int32_t k = 0; k < topk; ++k) {
                token_ids[row + k] = static_cast<int32_t>((token + (spoilt ? 1 : 0) + k) % vocab);
                log_probs[row + k] = -0.6931472f * static_cast<float>(k + 1);
            }
        }
}

}  // namespace kdt::engine
