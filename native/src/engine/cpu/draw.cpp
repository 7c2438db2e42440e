// SPDX-License-Identifier: Apache-2.0
//
// The target's tokens: argmax, or a keyed Gumbel draw. Compiled without contraction of products and sums, since the
// noise is defined to the bit.
#include <limits>

#include "engine/cpu/rows.h"
#include "engine/keyed_random.h"
#include "engine/ops.h"

namespace kdt::engine {
namespace {

// The lowest index of the largest value of value(v), v < count; NaN never wins.
template <class Value>
int32_t lowest_argmax(int32_t count, const Value& value) {
    float best = -std::numeric_limits<float>::infinity();
    int32_t index = 0;
    for (int32_t v = 0; v < count; ++v) {
        const float x = value(v);
        if (x > best) {
            best = x;
            index = v;
        }
    }
    return index;
}

}  // namespace

void draw(Queue&, const float* logits, int32_t vocab, const int32_t* positions, const float* temperatures,
          const uint64_t* seeds, int32_t rows_per_request, int32_t* target_tokens, int32_t rows) {
    // Noise costs two logarithms a token; whether it is wanted is known by request only.
    double work_ns = 1.0;
    for (int32_t b = 0; b < rows / rows_per_request; ++b)
        if (temperatures[b] >= kGreedyBelow) work_ns = 40.0;
    for_rows(rows, 0, work_ns * vocab, [&](int64_t r, float*) {
        const int64_t b = r / rows_per_request;
        const float* const row = logits + r * vocab;
        const float temperature = temperatures[b];
        if (!(temperature >= kGreedyBelow)) {
            target_tokens[r] = lowest_argmax(vocab, [&](int32_t v) { return row[v]; });
            return;
        }
        const uint64_t key = word(seeds[b], static_cast<uint64_t>(int64_t{positions[r]} + 1));
        target_tokens[r] = lowest_argmax(
            vocab, [&](int32_t v) { return row[v] / temperature + gumbel(key, static_cast<uint64_t>(v)); });
    });
}

}  // namespace kdt::engine
