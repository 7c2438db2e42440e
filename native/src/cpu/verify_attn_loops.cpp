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

// Eight sums side by side, at any address; compilers without AVX take them apart.
using Lanes = float __attribute__((vector_size(32)));
using LanesAnywhere = float __attribute__((vector_size(32), aligned(4)));

// Slots that share one reading of the query. A score is the sum of sixteen sums, each over every sixteenth product: the
// order is the source's and not the compiler's, so that a score has the same bits whoever shares its reading.
template <int kShared>
__attribute__((always_inline)) inline void dot_shared(const float* query, const TileRow* tile, const int32_t* slots,
                                                      float* scores) {
    static_assert(kHeadDim % 16 == 0, "no rest");
    const float* rows[kShared];
    for (int k = 0; k < kShared; ++k) rows[k] = tile[slots[k]];
    Lanes even[kShared] = {}, odd[kShared] = {};
    for (int32_t i = 0; i < kHeadDim; i += 16) {
        const Lanes left = *reinterpret_cast<const LanesAnywhere*>(query + i);
        const Lanes right = *reinterpret_cast<const LanesAnywhere*>(query + i + 8);
        for (int k = 0; k < kShared; ++k) {
            even[k] += left * *reinterpret_cast<const LanesAnywhere*>(rows[k] + i);
            odd[k] += right * *reinterpret_cast<const LanesAnywhere*>(rows[k] + i + 8);
        }
    }
    for (int k = 0; k < kShared; ++k) {
        const Lanes sum = even[k] + odd[k];
        scores[k] = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
    }
}

KDT_CLONES void dot(const float* query, const TileRow* tile, const int32_t* slots, int32_t count, float* scores) {
    int32_t k = 0;
    for (; k + 4 <= count; k += 4) dot_shared<4>(query, tile, slots + k, scores + k);
    for (; k < count; ++k) dot_shared<1>(query, tile, slots + k, scores + k);
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
