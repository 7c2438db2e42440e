// SPDX-License-Identifier: Apache-2.0
//
// convert, fills, embeddings and SwiGLU's product.
#include <algorithm>
#include <cstring>

#include "cpu/simd.h"
#include "engine/cpu/rows.h"
#include "engine/keyed_random.h"
#include "engine/ops.h"

namespace kdt::engine {
namespace {

constexpr int64_t kPiece = 4096;

// body(first, count, scratch of kPiece floats) over pieces of [0, count).
template <class Body>
void for_pieces(int64_t count, double value_ns, const Body& body) {
    for_rows((count + kPiece - 1) / kPiece, kPiece, value_ns * kPiece, [&](int64_t piece, float* scratch) {
        const int64_t first = piece * kPiece;
        body(first, static_cast<int32_t>(std::min(kPiece, count - first)), scratch);
    });
}

KDT_CLONES void silu_product(const float* gate, const float* up, int32_t count, float* out) {
    for (int32_t i = 0; i < count; ++i) {
        const float x = gate[i];
        const float e = exp_nonpositive(x < 0.0f ? x : -x);
        const float sigmoid = (x < 0.0f ? e : 1.0f) / (1.0f + e);
        out[i] = x * sigmoid * up[i];
    }
}

const char* table_row(Dtype dtype, const void* table, int32_t vocab, int32_t hidden, int32_t id) {
    const int64_t row = id >= 0 && id < vocab ? id : 0;
    return static_cast<const char*>(table) + row * hidden * static_cast<int64_t>(size_of(dtype));
}

}  // namespace

void convert(Queue&, const void* from, Dtype from_dtype, void* to, Dtype to_dtype, int64_t count) {
    for_pieces(count, 0.5, [&](int64_t first, int32_t n, float* scratch) {
        write_values(to_dtype, load(from_dtype, from, first, n, scratch), to, first, n);
    });
}

void fill_normal(Queue&, void* to, Dtype dtype, int64_t count, float deviation, uint64_t seed) {
    for_pieces(count, 40.0, [&](int64_t first, int32_t n, float* scratch) {
        float* const values = place(dtype, to, first, scratch);
        for (int32_t i = 0; i < n; ++i) values[i] = deviation * normal_value(seed, static_cast<uint64_t>(first + i));
        store(dtype, values, to, first, n);
    });
}

void fill_constant(Queue&, void* to, Dtype dtype, int64_t count, float value) {
    for_pieces(count, 0.5, [&](int64_t first, int32_t n, float* scratch) {
        float* const values = place(dtype, to, first, scratch);
        std::fill_n(values, n, value);
        store(dtype, values, to, first, n);
    });
}

void embed(Queue&, Dtype dtype, const int32_t* ids, const void* table, int32_t vocab, int32_t hidden, void* out,
           int32_t rows) {
    const size_t bytes = static_cast<size_t>(hidden) * size_of(dtype);
    for (int32_t r = 0; r < rows; ++r)
        std::memcpy(static_cast<char*>(out) + r * bytes, table_row(dtype, table, vocab, hidden, ids[r]), bytes);
}

void embed_block(Queue&, Dtype dtype, const int32_t* roots, int32_t mask_token, const void* table, int32_t vocab,
                 int32_t hidden, void* out, int32_t batch, int32_t block) {
    const size_t bytes = static_cast<size_t>(hidden) * size_of(dtype);
    char* to = static_cast<char*>(out);
    for (int32_t b = 0; b < batch; ++b)
        for (int32_t i = 0; i < block; ++i, to += bytes)
            std::memcpy(to, table_row(dtype, table, vocab, hidden, i == 0 ? roots[b] : mask_token), bytes);
}

void silu_mul(Queue&, Dtype dtype, const void* x, void* out, int32_t rows, int32_t half) {
    for_rows(rows, 3 * int64_t{half}, 2.0 * half, [&](int64_t r, float* scratch) {
        const float* const gate = load(dtype, x, 2 * r * half, 2 * half, scratch);
        float* const product = place(dtype, out, r * half, scratch + 2 * int64_t{half});
        silu_product(gate, gate + half, half, product);
        store(dtype, product, out, r * half, half);
    });
}

}  // namespace kdt::engine
