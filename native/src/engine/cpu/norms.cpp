// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm, alone and behind the residual's sum.
#include <algorithm>
#include <cmath>

#include "cpu/simd.h"
#include "engine/cpu/rows.h"
#include "engine/ops.h"

namespace kdt::engine {
namespace {

float inverse_rms(const float* x, int32_t count, float eps) {
    return 1.0f / std::sqrt(sum_of_squares(x, count) / static_cast<float>(count) + eps);
}

KDT_CLONES void scale(const float* x, float factor, const float* weight, int32_t count, float* out) {
    for (int32_t i = 0; i < count; ++i) out[i] = x[i] * factor * weight[i];
}

KDT_CLONES void add(const float* a, const float* b, int32_t count, float* sum) {
    for (int32_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

std::vector<float> widened(Dtype dtype, const void* weight, int32_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    read_values(dtype, weight, 0, count, values.data());
    return values;
}

}  // namespace

void rmsnorm(Queue&, Dtype dtype, const void* x, int64_t x_stride, const void* weight, float eps, void* out,
             int32_t rows, int32_t hidden) {
    const std::vector<float> w = widened(dtype, weight, hidden);
    for_rows(rows, 2 * int64_t{hidden}, 1.0 * hidden, [&](int64_t r, float* scratch) {
        const float* const row = load(dtype, x, r * x_stride, hidden, scratch);
        float* const normed = place(dtype, out, r * hidden, scratch + hidden);
        scale(row, inverse_rms(row, hidden, eps), w.data(), hidden, normed);
        store(dtype, normed, out, r * hidden, hidden);
    });
}

void add_rmsnorm(Queue&, Dtype dtype, void* residual, const void* delta, void* feature, int64_t feature_stride,
                 const void* weight, float eps, void* out, int32_t rows, int32_t hidden) {
    const std::vector<float> w = out != nullptr ? widened(dtype, weight, hidden) : std::vector<float>();
    for_rows(rows, 3 * int64_t{hidden}, 1.5 * hidden, [&](int64_t r, float* scratch) {
        float* const row = scratch;
        read_values(dtype, residual, r * hidden, hidden, row);
        if (delta != nullptr) {
            add(row, load(dtype, delta, r * hidden, hidden, scratch + hidden), hidden, row);
            write_values(dtype, row, residual, r * hidden, hidden);
            read_values(dtype, residual, r * hidden, hidden, row);  // as rounded
        }
        if (feature != nullptr) write_values(dtype, row, feature, r * feature_stride, hidden);
        if (out == nullptr) return;
        float* const normed = place(dtype, out, r * hidden, scratch + 2 * int64_t{hidden});
        scale(row, inverse_rms(row, hidden, eps), w.data(), hidden, normed);
        store(dtype, normed, out, r * hidden, hidden);
    });
}

void block_norm(Queue&, Dtype dtype, const void* residual, const void* delta, const void* weight, float eps, void* out,
                int32_t batch, int32_t block, int32_t hidden) {
    const std::vector<float> w = widened(dtype, weight, hidden);
    const int64_t per_request = block - 1;
    for_rows(batch * per_request, 3 * int64_t{hidden}, 1.5 * hidden, [&](int64_t r, float* scratch) {
        const int64_t from = (r / per_request * block + r % per_request + 1) * hidden;
        float* const row = scratch;
        read_values(dtype, residual, from, hidden, row);
        add(row, load(dtype, delta, from, hidden, scratch + hidden), hidden, row);
        if (dtype == KDT_BF16)
            for (int32_t i = 0; i < hidden; ++i) row[i] = float_from_bf16(bf16_from_float(row[i]));
        float* const normed = place(dtype, out, r * hidden, scratch + 2 * int64_t{hidden});
        scale(row, inverse_rms(row, hidden, eps), w.data(), hidden, normed);
        store(dtype, normed, out, r * hidden, hidden);
    });
}

}  // namespace kdt::engine
