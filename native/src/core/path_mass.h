// SPDX-License-Identifier: Apache-2.0
//
// A node's mass, exp(score), from its integer cost, in integers throughout: CPU and GPU agree in every bit, and sums do
// not depend on their order.
#ifndef KDTREE_CORE_PATH_MASS_H
#define KDTREE_CORE_PATH_MASS_H

#include <cstdint>

#include "kdtree/kdtree.h"

#if defined(__CUDACC__)
#define KDT_HOST_DEVICE __host__ __device__
#else
#define KDT_HOST_DEVICE
#endif

namespace kdt {

// The upper half of a 128-bit product.
KDT_HOST_DEVICE inline uint64_t product_high(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
    return __umul64hi(a, b);
#else
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

// exp(-cost / 2^40) in units of 2^-40, for 0 <= cost < 2^51; within 2^-29 of itself, and a unit.
KDT_HOST_DEVICE inline int64_t path_mass(int64_t cost) {
    static_assert(KDT_FIXED_POINT_BITS == 40, "the units below");
    constexpr uint64_t kLog2E = 0x5c551d94ae0bf85e;  // log2(e) * 2^62
    // cost * log2(e) in units of 2^-50: the mass is 2^-whole * 2^-part.
    const uint64_t exponent = product_high(static_cast<uint64_t>(cost) << 12, kLog2E);
    const uint64_t whole = exponent >> 50;
    if (whole > 41) return 0;
    const uint64_t part = exponent >> 18 & 0xffffffffu;  // in units of 2^-32
    // 2^-x = 1 - x (c1 - x (c2 - ...)) with c_k = ln(2)^k / k!, in units of 2^-32; every difference is positive.
    constexpr uint32_t kCoefficients[] = {2977044472u, 1031764991u, 238388332u, 41309550u, 5726720u,
                                          661577u,     65510u,      5676u,      437u,      30u};
    uint64_t sum = 0;
    for (int k = 9; k >= 0; --k) sum = kCoefficients[k] - (sum * part >> 32);
    const uint64_t mass = ((uint64_t{1} << 32) - (sum * part >> 32)) << 8;
    return static_cast<int64_t>(whole == 0 ? mass : ((mass >> (whole - 1)) + 1) >> 1);
}

// A sum of masses as the number of tokens it stands for.
KDT_HOST_DEVICE inline float expected_length(int64_t mass) {
    return static_cast<float>(mass) * 0x1p-40f;
}

}  // namespace kdt

#endif  // KDTREE_CORE_PATH_MASS_H
