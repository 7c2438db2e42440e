// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of verify_mla: a product with a head's weights, and attention of a query row over one tile of slots
// that have been gathered, projected and widened. `slots` lists the rows of the tile that a query row sees; the others
// are never read.
#ifndef KDTREE_CPU_VERIFY_MLA_LOOPS_H
#define KDTREE_CPU_VERIFY_MLA_LOOPS_H

#include <cstdint>

#include "kdtree/kdtree.h"

namespace kdt {

constexpr int32_t kMlaNope = KDT_QK_NOPE_HEAD_DIM;
constexpr int32_t kMlaKey = KDT_QK_NOPE_HEAD_DIM + KDT_QK_ROPE_HEAD_DIM;
constexpr int32_t kMlaValue = KDT_V_HEAD_DIM;

using MlaKey = float[kMlaKey];
using MlaValue = float[kMlaValue];

// to[r] (width values) = from[r] (depth values) x weights [depth, width], for `count` <= 16 rows that follow one
// another at `from_stride` and `to_stride` values.
void project_rows(const float* from, int32_t from_stride, int32_t count, int32_t depth, const float* weights,
                  int32_t width, float* to, int32_t to_stride);

// f32 to bf16 and back, in place: what a store to a bf16 buffer does.
void round_to_bf16(float* values, int32_t count);

// f32 times `factor` to bf16.
void store_bf16(const float* from, int32_t count, float factor, uint16_t* to);

// scores[k] = query . keys[slots[k]].
void dot_keys(const float* query, const MlaKey* keys, const int32_t* slots, int32_t count, float* scores);

// total = total * decay + the sum over k of weights[k] * values[slots[k]].
void accumulate_values(const float* weights, const MlaValue* values, const int32_t* slots, int32_t count, float decay,
                       float* total);

}  // namespace kdt

#endif  // KDTREE_CPU_VERIFY_MLA_LOOPS_H
