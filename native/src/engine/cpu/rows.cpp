// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/rows.h"

#include <algorithm>

#include "cpu/simd.h"

namespace kdt::engine {
namespace {

KDT_CLONES void widen_values(const uint16_t* from, int32_t count, float* to) {
    for (int32_t i = 0; i < count; ++i) to[i] = float_from_bf16(from[i]);
}

KDT_CLONES void narrow_values(const float* from, int32_t count, uint16_t* to) {
    for (int32_t i = 0; i < count; ++i) to[i] = bf16_from_float(from[i]);
}

}  // namespace

const float* load(Dtype dtype, const void* from, int64_t offset, int32_t count, float* buffer) {
    if (dtype == KDT_F32) return static_cast<const float*>(from) + offset;
    widen_values(static_cast<const uint16_t*>(from) + offset, count, buffer);
    return buffer;
}

float* place(Dtype dtype, void* to, int64_t offset, float* buffer) {
    return dtype == KDT_F32 ? static_cast<float*>(to) + offset : buffer;
}

void store(Dtype dtype, const float* values, void* to, int64_t offset, int32_t count) {
    if (dtype != KDT_F32) narrow_values(values, count, static_cast<uint16_t*>(to) + offset);
}

void read_values(Dtype dtype, const void* from, int64_t offset, int32_t count, float* to) {
    if (dtype == KDT_F32)
        std::copy_n(static_cast<const float*>(from) + offset, count, to);
    else
        widen_values(static_cast<const uint16_t*>(from) + offset, count, to);
}

void write_values(Dtype dtype, const float* from, void* to, int64_t offset, int32_t count) {
    if (dtype == KDT_F32)
        std::copy_n(from, count, static_cast<float*>(to) + offset);
    else
        narrow_values(from, count, static_cast<uint16_t*>(to) + offset);
}

KDT_CLONES float sum_of_squares(const float* x, int32_t count) {
    float lanes[16] = {};
    int32_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int32_t j = 0; j < 16; ++j) lanes[j] += x[i + j] * x[i + j];
    for (int32_t j = 0; i + j < count; ++j) lanes[j] += x[i + j] * x[i + j];
    float sum = 0.0f;
    for (int32_t j = 0; j < 16; ++j) sum += lanes[j];
    return sum;
}

void rotate(float* x, int32_t count, const float* cos_sin, bool interleaved) {
    const int32_t pairs = count / 2;
    for (int32_t i = 0; i < pairs; ++i) {
        float& a = x[interleaved ? 2 * i : i];
        float& b = x[interleaved ? 2 * i + 1 : i + pairs];
        const float cosine = cos_sin[2 * i], sine = cos_sin[2 * i + 1];
        const float rotated = a * cosine - b * sine;
        b = b * cosine + a * sine;
        a = rotated;
    }
}

}  // namespace kdt::engine
