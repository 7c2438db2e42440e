// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_BENCH_WORKLOADS_H
#define KDTREE_BENCH_WORKLOADS_H

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"

// A call ready to be launched; owns its buffers.
struct Prepared {
    std::shared_ptr<void> buffers;
    Launch launch;
};

struct Workload {
    std::string kernel;
    std::string shape;
    std::function<Prepared()> prepare;
};

// Those of this backend's size.
std::vector<Workload> workloads();

#endif  // KDTREE_BENCH_WORKLOADS_H
