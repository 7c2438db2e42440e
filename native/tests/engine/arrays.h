// SPDX-License-Identifier: Apache-2.0
//
// Arrays of the operators' memory, to and from the host.
#ifndef KDTREE_TESTS_ENGINE_ARRAYS_H
#define KDTREE_TESTS_ENGINE_ARRAYS_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "engine/keyed_random.h"
#include "engine/ops.h"
#include "engine/options.h"

namespace arrays {

using kdt::engine::Dtype;
using kdt::engine::Memory;
using kdt::engine::Queue;

inline Queue& queue() {
    static Queue one(options().blas_or_null());
    return one;
}

template <class T>
Memory to_device(const std::vector<T>& values) {
    Memory memory(values.size() * sizeof(T));
    queue().upload(memory.data(), values.data(), memory.bytes());
    return memory;
}

template <class T>
std::vector<T> from_device(const Memory& memory) {
    std::vector<T> values(memory.bytes() / sizeof(T));
    queue().download(values.data(), memory.data(), memory.bytes());
    return values;
}

inline uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float from_bf16(uint16_t value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
}

// What is left of values in this dtype.
inline std::vector<float> rounded(std::vector<float> values, Dtype dtype) {
    if (dtype == KDT_BF16)
        for (float& value : values) value = from_bf16(to_bf16(value));
    return values;
}

inline Memory act_to_device(const std::vector<float>& values, Dtype dtype) {
    if (dtype == KDT_F32) return to_device(values);
    std::vector<uint16_t> narrow;
    for (const float value : values) narrow.push_back(to_bf16(value));
    return to_device(narrow);
}

inline std::vector<float> act_from_device(const Memory& memory, Dtype dtype) {
    if (dtype == KDT_F32) return from_device<float>(memory);
    std::vector<float> wide;
    for (const uint16_t value : from_device<uint16_t>(memory)) wide.push_back(from_bf16(value));
    return wide;
}

inline Memory act_memory(size_t count, Dtype dtype) {
    return Memory(count * kdt::engine::size_of(dtype));
}

// Normal values that `dtype` can hold.
inline std::vector<float> random_values(uint64_t seed, size_t count, Dtype dtype = KDT_F32, float deviation = 1.0f) {
    std::vector<float> values;
    for (size_t i = 0; i < count; ++i) values.push_back(deviation * kdt::engine::normal_value(seed, i));
    return rounded(values, dtype);
}

// Each value within `relative` of the largest wanted one, plus a rounding of itself.
inline void check_close(const std::vector<float>& actual, const std::vector<double>& wanted, Dtype dtype,
                        double relative, const std::string& what) {
    CHECK_EQ(actual.size(), wanted.size());
    double largest = 0.0;
    for (const double value : wanted) largest = std::max(largest, std::fabs(value));
    const double own = dtype == KDT_BF16 ? 1.0 / 128 : 0.0;
    for (size_t i = 0; i < wanted.size(); ++i)
        if (!(std::fabs(actual[i] - wanted[i]) <= relative * largest + own * std::fabs(wanted[i])))
            throw check::Failure(what + "[" + std::to_string(i) + "] is " + std::to_string(actual[i]) + ", wanted " +
                                 std::to_string(wanted[i]));
}

inline const std::vector<Dtype>& dtypes() {
    static const std::vector<Dtype> both = {KDT_F32, KDT_BF16};
    return both;
}

}  // namespace arrays

#endif  // KDTREE_TESTS_ENGINE_ARRAYS_H
