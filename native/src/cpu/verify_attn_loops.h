// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of verify_attn over one tile of gathered, widened slots. `slots` lists the rows of the tile that a
// query row sees; the others are never read.
#ifndef KDTREE_CPU_VERIFY_ATTN_LOOPS_H
#define KDTREE_CPU_VERIFY_ATTN_LOOPS_H

#include <cstdint>

#include "kdtree/kdtree.h"

namespace kdt {

constexpr int32_t kRank = KDT_KV_LORA_RANK;
constexpr int32_t kRope = KDT_QK_ROPE_HEAD_DIM;
constexpr int32_t kHeadDim = kRank + kRope;
constexpr int32_t kTile = 8;  // 18 KB widened: it stays in the first-level cache while the rows of a block use it

using TileRow = float[kHeadDim];

// bf16 to f32.
void widen(const uint16_t* from, int32_t count, float* to);

// kRank sums times `factor`, rounded to bf16.
void narrow(const float* from, float factor, uint16_t* to);

// scores[k] = query . tile[slots[k]].
void dot(const float* query, const TileRow* tile, const int32_t* slots, int32_t count, float* scores);

// In place: scores become weights e^(score - maximum). Returns their sum, whose last bits depend on `count`.
float exponentiate(float* scores, int32_t count, float maximum);

// total *= factor.
void decay(float factor, float* total);

// total += the sum over k of weights[k] * latent of tile[slots[k]], slot after slot.
void accumulate(const float* weights, const TileRow* tile, const int32_t* slots, int32_t count, float* total);

}  // namespace kdt

#endif  // KDTREE_CPU_VERIFY_ATTN_LOOPS_H
