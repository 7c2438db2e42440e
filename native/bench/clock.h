// SPDX-License-Identifier: Apache-2.0
//
// One sample is the time of one call in a long run of equal calls. What a run costs but a call does not (starting a
// graph, reading a clock) cancels or drowns.
#ifndef KDTREE_BENCH_CLOCK_H
#define KDTREE_BENCH_CLOCK_H

#include <functional>
#include <vector>

// Launches the kernel once on a stream (which the CPU library ignores).
using Launch = std::function<void(void* stream)>;

// Microseconds of one call, `count` times.
//   CPU:  batches of at least a millisecond by the steady clock.
//   CUDA: the slope between two graphs of R1 and R2 launches, replayed next to each other.
std::vector<double> sample_us(const Launch& launch, int count);

#endif  // KDTREE_BENCH_CLOCK_H
