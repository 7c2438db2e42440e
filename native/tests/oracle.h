// SPDX-License-Identifier: Apache-2.0
//
// Independent definitions for tests without bundles: slow, short, and unlike the kernels in method.
#ifndef KDTREE_TESTS_ORACLE_H
#define KDTREE_TESTS_ORACLE_H

#include <cstdint>
#include <vector>

#include "calls.h"

// SplitMix64: the same numbers everywhere.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next();
    int32_t below(int32_t bound) { return static_cast<int32_t>(next() % static_cast<uint64_t>(bound)); }
    double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
    float normal();

  private:
    uint64_t state_;
};

uint16_t bf16(float value);
float from_bf16(uint16_t value);

// Descending rows of log-probs that sum to at most 1. `levels` > 0 rounds them down to that many steps a unit, which
// makes exact ties.
std::vector<float> random_log_probs(Random& random, int32_t rows, int32_t topk, float sharpness, int32_t levels);

// A whole input with ids 10 * rank + row, distinct in a row.
TreeBuildInput random_tree_input(Random& random, int32_t batch, int32_t draft_horizon, int32_t topk,
                                 int32_t tree_budget, float sharpness, int32_t levels);

// All rank tuples, sorted; for small horizons and topk. Requests without NaN or positive entries.
TreeBuildOutput brute_force(const TreeBuildInput& input);

// Softmax over gathered slots in double, for sound requests: out as double, pads 0 and -inf.
struct Attention {
    std::vector<double> out;
    std::vector<double> lse;
};
Attention attend(const VerifyAttnInput& input);

#endif  // KDTREE_TESTS_ORACLE_H
