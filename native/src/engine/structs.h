// SPDX-License-Identifier: Apache-2.0
//
// Reads the structs of engine.h, of whatever version the caller was compiled with.
#ifndef KDT_ENGINE_STRUCTS_H
#define KDT_ENGINE_STRUCTS_H

#include <algorithm>
#include <cstring>

#include "core/checks.h"
#include "kdtree/engine.h"

namespace kdt::engine {

// Name in sentences, and the size in ABI version 1: fields appended later do not change it.
template <class T>
struct StructTraits;
template <>
struct StructTraits<kdt_target_config> {
    static constexpr const char* name = "target config";
    static constexpr uint32_t v1_size = 96;
};
template <>
struct StructTraits<kdt_drafter_config> {
    static constexpr const char* name = "drafter config";
    static constexpr uint32_t v1_size = 120;
};
template <>
struct StructTraits<kdt_engine_params> {
    static constexpr const char* name = "engine_create";
    static constexpr uint32_t v1_size = 80;
};
template <>
struct StructTraits<kdt_engine_request> {
    static constexpr const char* name = "engine_admit";
    static constexpr uint32_t v1_size = 64;
};
template <>
struct StructTraits<kdt_engine_rounds> {
    static constexpr const char* name = "engine_run";
    static constexpr uint32_t v1_size = 32;
};
template <>
struct StructTraits<kdt_engine_progress> {
    static constexpr const char* name = "engine_progress_of";
    static constexpr uint32_t v1_size = 168;
};

template <>
struct StructTraits<kdt_round_clock> {
    static constexpr const char* name = "engine_round_clock";
    static constexpr uint32_t v1_size = 64;
};

// A local copy: what an older caller does not know is zero, and what a newer caller knows and this library does not
// must be zero.
template <class T>
T read_struct(const T* from) {
    static_assert(sizeof(T) >= StructTraits<T>::v1_size, "a struct only ever grows");
    constexpr const char* name = StructTraits<T>::name;
    if (from == nullptr) fail_argument("%s: the struct is NULL", name);
    if (from->struct_size < StructTraits<T>::v1_size || from->struct_size > kMaxStructSize)
        fail_argument("%s: struct_size is %u, wanted the struct's sizeof(), which is %zu here", name, from->struct_size,
                      sizeof(T));
    const auto* const bytes = reinterpret_cast<const unsigned char*>(from);
    for (size_t i = sizeof(T); i < from->struct_size; ++i)
        if (bytes[i] != 0)
            fail_argument("%s: byte %zu of the struct is not zero: a field newer than the library is in use", name, i);
    T copy;
    std::memset(static_cast<void*>(&copy), 0, sizeof(copy));
    std::memcpy(static_cast<void*>(&copy), from, std::min<size_t>(from->struct_size, sizeof(copy)));
    return copy;
}

}  // namespace kdt::engine

#endif  // KDT_ENGINE_STRUCTS_H
