// SPDX-License-Identifier: Apache-2.0
#include "cpu/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace kdt {

int plan_threads(int64_t count, double work_ns) {
#if defined(_OPENMP)
    if (count < 2 || work_ns < kParallelThresholdNs || omp_in_parallel()) return 1;
    // An OpenMP team does not survive fork(): a child that inherits one would wait for its threads forever. The first
    // process to get here owns the team; a forked child of it stays on one thread.
    static std::atomic<pid_t> owner{0};
    pid_t expected = 0;
    const pid_t self = getpid();
    if (!owner.compare_exchange_strong(expected, self) && expected != self) return 1;
    return static_cast<int>(std::min<int64_t>(count, omp_get_max_threads()));
#else
    (void)count;
    (void)work_ns;
    return 1;
#endif
}

}  // namespace kdt
