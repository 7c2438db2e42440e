// SPDX-License-Identifier: Apache-2.0
#include "cpu/verify_attn_loops.h"

#include <algorithm>

#include "cpu/simd.h"

namespace kdt {

KDT_CLONES void widen(const uint16_t* from, int32_t count, float* to) {
    for (int32_t i = 0; i < count; ++i) to[i] = float_from_bf16(from[i]);
}

KDT_CLONES void narrow(const float* from, float factor, uint16_t* to) {
    for (int32_t i = 0; i < kRank; ++i) to[i] = bf16_from_float(from[i] * factor);
}

// Four slots share one reading of the query. A last group that is not full repeats its last slot, so that every score
// comes from the same code and thus has the same bits wherever its slot stands.
KDT_CLONES void dot(const float* query, const TileRow* tile, const int32_t* slots, int32_t count, float* scores) {
    for (int32_t k = 0; k < count; k += 4) {
        const int32_t last = count - 1;
        const float* const a = tile[slots[k]];
        const float* const b = tile[slots[std::min(k + 1, last)]];
        const float* const c = tile[slots[std::min(k + 2, last)]];
        const float* const d = tile[slots[std::min(k + 3, last)]];
        float sa = 0.0f, sb = 0.0f, sc = 0.0f, sd = 0.0f;
#pragma omp simd reduction(+ : sa, sb, sc, sd)
        for (int32_t i = 0; i < kHeadDim; ++i) {
            sa += query[i] * a[i];
            sb += query[i] * b[i];
            sc += query[i] * c[i];
            sd += query[i] * d[i];
        }
        const float sums[4] = {sa, sb, sc, sd};
        for (int32_t r = 0; r < 4 && k + r < count; ++r) scores[k + r] = sums[r];
    }
}

// One slot after the other in every lane: the same chain of additions however the slots are cut into calls.
KDT_CLONES void accumulate(const float* weights, const TileRow* tile, const int32_t* slots, int32_t count,
                           float* __restrict total) {
    int32_t k = 0;
    for (; k + 4 <= count; k += 4) {
        const float* const a = tile[slots[k]];
        const float* const b = tile[slots[k + 1]];
        const float* const c = tile[slots[k + 2]];
        const float* const d = tile[slots[k + 3]];
        const float wa = weights[k], wb = weights[k + 1], wc = weights[k + 2], wd = weights[k + 3];
        for (int32_t i = 0; i < kRank; ++i) {
            float sum = total[i];
            sum += wa * a[i];
            sum += wb * b[i];
            sum += wc * c[i];
            sum += wd * d[i];
            total[i] = sum;
        }
    }
    for (; k < count; ++k) {
        const float* const a = tile[slots[k]];
        for (int32_t i = 0; i < kRank; ++i) total[i] += weights[k] * a[i];
    }
}

KDT_CLONES void decay(float factor, float* total) {
    for (int32_t i = 0; i < kRank; ++i) total[i] *= factor;
}

KDT_CLONES float exponentiate(float* scores, int32_t count, float maximum) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int32_t k = 0; k < count; ++k) {
        scores[k] = exp_nonpositive(scores[k] - maximum);
        sum += scores[k];
    }
    return sum;
}

}  // namespace kdt
