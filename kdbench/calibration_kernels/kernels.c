/* SPDX-License-Identifier: Apache-2.0
 * The CPU's calibration kernels. Compiled once a machine and kept: an edit here makes older readings incomparable. */
#include <stdint.h>

/* A chain of dependent multiply-adds: its time is a number of core cycles. */
uint64_t kdb_integer(uint64_t x, uint64_t rounds) {
    for (uint64_t i = 0; i < rounds; ++i) x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return x;
}

/* Eight chains that fill the core's integer units: a neighbour on the other hardware thread slows them, and does not
 * slow the chain above. */
uint64_t kdb_wide(uint64_t x, uint64_t rounds) {
    uint64_t y[8];
    for (int k = 0; k < 8; ++k) y[k] = x + (uint64_t)k;
    for (uint64_t i = 0; i < rounds; ++i) {
        for (int k = 0; k < 8; ++k) {
            y[k] = (y[k] ^ (y[k] << 7)) + i;
            __asm__ volatile("" : "+r"(y[k])); /* or it would become vectors */
        }
    }
    for (int k = 0; k < 8; ++k) x ^= y[k];
    return x;
}

/* words must be a multiple of 8. The barrier keeps compilers from calling memcpy, which belongs to the C library. */
void kdb_copy(uint64_t* restrict target, const uint64_t* restrict source, uint64_t words) {
    for (uint64_t i = 0; i < words; i += 8) {
        for (int k = 0; k < 8; ++k) target[i + k] = source[i + k];
        __asm__ volatile("" ::: "memory");
    }
}
