// SPDX-License-Identifier: Apache-2.0
//
// Randomness that depends on its key alone: SplitMix64 words, and from them uniform, Gumbel and normal values. The host
// compiler and nvcc both read this file, and both give the same bits but for normal_value().
//
// argmax(logits / temperature + gumbel) over independent standard Gumbel values is one draw from softmax(logits /
// temperature) (Maddison, Tarlow and Minka, "A* Sampling", NeurIPS 2014). Keyed on (seed, position, token) the draw
// does not depend on tree, batch, mode or backend.
#ifndef KDT_ENGINE_KEYED_RANDOM_H
#define KDT_ENGINE_KEYED_RANDOM_H

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define KDT_HOST_DEVICE __host__ __device__
#else
#define KDT_HOST_DEVICE
#endif

namespace kdt::engine {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kSpoilKey = 0x5350454C4C494E47ull;
constexpr float kGreedyBelow = 1e-5f;  // temperatures

KDT_HOST_DEVICE inline uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

// Word `index` of the stream `seed`.
KDT_HOST_DEVICE inline uint64_t word(uint64_t seed, uint64_t index) {
    return mix(mix(seed * kGolden) + (index + 1) * kGolden);
}

// In [2^-53, 1 - 2^-53], exact.
KDT_HOST_DEVICE inline double uniform(uint64_t word) {
    return (static_cast<double>(word >> 12) + 0.5) * 0x1p-52;
}

// Each operation rounded by itself. The host side is compiled without contraction (-ffp-contract=off) where bits count.
KDT_HOST_DEVICE inline double multiply(double a, double b) {
#if defined(__CUDA_ARCH__)
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}

KDT_HOST_DEVICE inline double add(double a, double b) {
#if defined(__CUDA_ARCH__)
    return __dadd_rn(a, b);
#else
    return a + b;
#endif
}

// The natural logarithm of a normal x > 0, by the series of atanh: libm's last bit differs between machines.
KDT_HOST_DEVICE inline double keyed_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    int exponent = static_cast<int>(bits >> 52) - 1023;
    bits = (bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
    double m;
    memcpy(&m, &bits, sizeof(m));
    if (m > 1.5) {
        m *= 0.5;
        exponent += 1;
    }
    const double s = (m - 1.0) / (m + 1.0);
    const double t = multiply(s, s);
    double p = 1.0 / 15.0;
    p = add(multiply(p, t), 1.0 / 13.0);
    p = add(multiply(p, t), 1.0 / 11.0);
    p = add(multiply(p, t), 1.0 / 9.0);
    p = add(multiply(p, t), 1.0 / 7.0);
    p = add(multiply(p, t), 1.0 / 5.0);
    p = add(multiply(p, t), 1.0 / 3.0);
    p = add(multiply(p, t), 1.0);
    return add(multiply(static_cast<double>(exponent), 0.6931471805599453), multiply(2.0 * s, p));
}

// position_word = word(seed, position), the same for all tokens of a draw.
KDT_HOST_DEVICE inline float gumbel(uint64_t position_word, uint64_t token) {
    return static_cast<float>(-keyed_log(-keyed_log(uniform(word(position_word, token)))));
}

// Standard normal value `index` of the stream `seed` (Box and Muller, 1958); libm's last bits.
KDT_HOST_DEVICE inline float normal_value(uint64_t seed, uint64_t index) {
    const double radius = sqrt(-2.0 * log(uniform(word(seed, 2 * index))));
    return static_cast<float>(radius * cos(6.283185307179586 * uniform(word(seed, 2 * index + 1))));
}

}  // namespace kdt::engine

#endif  // KDT_ENGINE_KEYED_RANDOM_H
