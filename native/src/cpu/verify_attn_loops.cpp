// SPDX-License-Identifier: Apache-2.0
#include "cpu/verify_attn_loops.h"

#include "cpu/simd.h"

namespace kdt {

KDT_CLONES void widen(const uint16_t* from, int32_t count, float* to) {
    for (int32_t i = 0; i < count; ++i) to[i] = float_from_bf16(from[i]);
}

KDT_CLONES void narrow(const float* from, float factor, uint16_t* to) {
    for (int32_t i = 0; i < kRank; ++i) to[i] = bf16_from_float(from[i] * factor);
}

// Four slots share one reading of the query.
KDT_CLONES void dot(const float* query, const TileRow* tile, const int32_t* slots, int32_t count, float* scores) {
    int32_t k = 0;
    for (; k + 4 <= count; k += 4) {
        const float* const a = tile[slots[k]];
        const float* const b = tile[slots[k + 1]];
        const float* const c = tile[slots[k + 2]];
        const float* const d = tile[slots[k + 3]];
        float sa = 0.0f, sb = 0.0f, sc = 0.0f, sd = 0.0f;
#pragma omp simd reduction(+ : sa, sb, sc, sd)
        for (int32_t i = 0; i < kHeadDim; ++i) {
            sa += query[i] * a[i];
            sb += query[i] * b[i];
            sc += query[i] * c[i];
            sd += query[i] * d[i];
        }
        scores[k] = sa;
        scores[k + 1] = sb;
        scores[k + 2] = sc;
        scores[k + 3] = sd;
    }
    for (; k < count; ++k) {
        const float* const a = tile[slots[k]];
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int32_t i = 0; i < kHeadDim; ++i) sum += query[i] * a[i];
        scores[k] = sum;
    }
}

KDT_CLONES void accumulate(const float* weights, const TileRow* tile, const int32_t* slots, int32_t count, float decay,
                           float* __restrict total) {
    if (decay != 1.0f)
        for (int32_t i = 0; i < kRank; ++i) total[i] *= decay;
    int32_t k = 0;
    for (; k + 4 <= count; k += 4) {
        const float* const a = tile[slots[k]];
        const float* const b = tile[slots[k + 1]];
        const float* const c = tile[slots[k + 2]];
        const float* const d = tile[slots[k + 3]];
        const float wa = weights[k], wb = weights[k + 1], wc = weights[k + 2], wd = weights[k + 3];
        for (int32_t i = 0; i < kRank; ++i) total[i] += wa * a[i] + wb * b[i] + wc * c[i] + wd * d[i];
    }
    for (; k < count; ++k) {
        const float* const a = tile[slots[k]];
        for (int32_t i = 0; i < kRank; ++i) total[i] += weights[k] * a[i];
    }
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
