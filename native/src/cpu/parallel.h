// SPDX-License-Identifier: Apache-2.0
//
// Threads for the CPU kernels: only where the work outweighs waking a team, and never in a way that changes a result.
#ifndef KDTREE_CPU_PARALLEL_H
#define KDTREE_CPU_PARALLEL_H

#include <cstdint>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace kdt {

// Estimated nanoseconds of one thread above which a team pays. Waking one costs a few microseconds on an idle machine
// and a scheduler's time slice on a busy one.
constexpr double kParallelThresholdNs = 200e3;

// Threads a call may use for `count` independent items of `work_ns` in all; 1 means: do not start a team.
int plan_threads(int64_t count, double work_ns);

// Calls body(item, lane) once for each item in [0, count). Items that run at the same time have different lanes, all
// below `threads`. Which lane takes which item varies from run to run, so a lane may only choose scratch memory.
template <class Body>
void parallel_for(int64_t count, int threads, const Body& body) {
#if defined(_OPENMP)
    if (threads > 1) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
        for (int64_t item = 0; item < count; ++item) body(item, omp_get_thread_num());
        return;
    }
#endif
    (void)threads;
    for (int64_t item = 0; item < count; ++item) body(item, 0);
}

}  // namespace kdt

#endif  // KDTREE_CPU_PARALLEL_H
