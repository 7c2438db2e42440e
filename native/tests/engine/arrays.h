// SPDX-License-Identifier: Apache-2.0
//
// Arrays of the operators' memory, to and from the host.
#ifndef KDTREE_TESTS_ENGINE_ARRAYS_H
#define KDTREE_TESTS_ENGINE_ARRAYS_H

#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/keyed_random.h"
#include "engine/ops.h"
#include "engine/options.h"

namespace arrays {

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

// Normal values that bf16 can hold.
inline std::vector<float> random_values(uint64_t seed, size_t count, float deviation) {
    std::vector<float> values;
    for (size_t i = 0; i < count; ++i)
        values.push_back(from_bf16(to_bf16(deviation * kdt::engine::normal_value(seed, i))));
    return values;
}

}  // namespace arrays

#endif  // KDTREE_TESTS_ENGINE_ARRAYS_H
