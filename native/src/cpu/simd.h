// SPDX-License-Identifier: Apache-2.0
//
// What the vectorised loops share. They are plain loops: KDT_CLONES compiles a function once for each x86-64 level and
// picks one when the library is loaded; on other machines and compilers it is compiled once.
#ifndef KDTREE_CPU_SIMD_H
#define KDTREE_CPU_SIMD_H

#include <cstdint>
#include <cstring>

// Sanitizers run before the resolvers that clones need, so their builds go without.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KDT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KDT_CLONES
#endif

namespace kdt {

inline float float_from_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

inline uint32_t bits_from_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float float_from_bf16(uint16_t value) {
    return float_from_bits(static_cast<uint32_t>(value) << 16);
}

// Round to nearest even; NaN stays NaN (quiet).
inline uint16_t bf16_from_float(float value) {
    const uint32_t bits = bits_from_float(value);
    if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// e^x for x <= 0, within 2 ulp; exactly 1 at 0, 0 below -87, NaN for NaN. Free of branches and of float-to-integer
// conversions, so that loops over it vectorise. Coefficients: Cephes' expf.
inline float exp_nonpositive(float x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    const float shifted = x * 1.44269504088896341f + kRound;
    const float n = shifted - kRound;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const float e_r = p * r * r + r + 1.0f;
    const float two_n = float_from_bits((bits_from_float(shifted) + 127u) << 23);
    return x < -87.0f ? 0.0f : e_r * two_n;
}

}  // namespace kdt

#endif  // KDTREE_CPU_SIMD_H
