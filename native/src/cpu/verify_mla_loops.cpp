// SPDX-License-Identifier: Apache-2.0
#include "cpu/verify_mla_loops.h"

#include <algorithm>

#include "cpu/simd.h"

namespace kdt {

// Four weights a step for one reading and writing of the sums; the rows share the weights while those are in cache.
KDT_CLONES void project_rows(const float* from, int32_t from_stride, int32_t count, int32_t depth, const float* weights,
                             int32_t width, float* to, int32_t to_stride) {
    for (int32_t r = 0; r < count; ++r) std::fill_n(to + int64_t{r} * to_stride, width, 0.0f);
    for (int32_t k = 0; k < depth; k += 4) {
        const float* const w0 = weights + int64_t{k} * width;
        const float* const w1 = w0 + width;
        const float* const w2 = w1 + width;
        const float* const w3 = w2 + width;
        for (int32_t r = 0; r < count; ++r) {
            const float* const x = from + int64_t{r} * from_stride + k;
            const float x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];
            float* __restrict const row = to + int64_t{r} * to_stride;
            for (int32_t i = 0; i < width; ++i) row[i] += (x0 * w0[i] + x1 * w1[i]) + (x2 * w2[i] + x3 * w3[i]);
        }
    }
}

KDT_CLONES void round_to_bf16(float* values, int32_t count) {
    for (int32_t i = 0; i < count; ++i) values[i] = float_from_bf16(bf16_from_float(values[i]));
}

KDT_CLONES void store_bf16(const float* from, int32_t count, float factor, uint16_t* to) {
    for (int32_t i = 0; i < count; ++i) to[i] = bf16_from_float(from[i] * factor);
}

// Four slots share one reading of the query.
KDT_CLONES void dot_keys(const float* query, const MlaKey* keys, const int32_t* slots, int32_t count, float* scores) {
    int32_t k = 0;
    for (; k + 4 <= count; k += 4) {
        const float* const a = keys[slots[k]];
        const float* const b = keys[slots[k + 1]];
        const float* const c = keys[slots[k + 2]];
        const float* const d = keys[slots[k + 3]];
        float sa = 0.0f, sb = 0.0f, sc = 0.0f, sd = 0.0f;
#pragma omp simd reduction(+ : sa, sb, sc, sd)
        for (int32_t i = 0; i < kMlaKey; ++i) {
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
        const float* const a = keys[slots[k]];
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int32_t i = 0; i < kMlaKey; ++i) sum += query[i] * a[i];
        scores[k] = sum;
    }
}

KDT_CLONES void accumulate_values(const float* weights, const MlaValue* values, const int32_t* slots, int32_t count,
                                  float decay, float* __restrict total) {
    if (decay != 1.0f)
        for (int32_t i = 0; i < kMlaValue; ++i) total[i] *= decay;
    int32_t k = 0;
    for (; k + 4 <= count; k += 4) {
        const float* const a = values[slots[k]];
        const float* const b = values[slots[k + 1]];
        const float* const c = values[slots[k + 2]];
        const float* const d = values[slots[k + 3]];
        const float wa = weights[k], wb = weights[k + 1], wc = weights[k + 2], wd = weights[k + 3];
        for (int32_t i = 0; i < kMlaValue; ++i) total[i] += wa * a[i] + wb * b[i] + wc * c[i] + wd * d[i];
    }
    for (; k < count; ++k) {
        const float* const a = values[slots[k]];
        for (int32_t i = 0; i < kMlaValue; ++i) total[i] += weights[k] * a[i];
    }
}

}  // namespace kdt
