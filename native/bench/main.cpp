// SPDX-License-Identifier: Apache-2.0
//
// A look at the kernels' speed without Python. It keeps no history and judges nothing: kdbench does.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "clock.h"
#include "device_buffer.h"
#include "kdtree/kdtree.h"
#include "workloads.h"

namespace {

constexpr const char* kUsage =
    "usage: kdt_bench_%s [--filter TEXT] [--samples N]\n"
    "  --filter TEXT  only lines whose kernel or shape contains TEXT\n"
    "  --samples N    samples a line (default 21)\n"
    "Inputs stay in cache between calls (hot).\n";

double quantile(const std::vector<double>& sorted, double q) {
    return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
}

}  // namespace

int main(int argc, char** argv) {
    std::string filter;
    int count = 21;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (argument == "--filter" && i + 1 < argc) {
            filter = argv[++i];
        } else if (argument == "--samples" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
            count = std::atoi(argv[++i]);
        } else {
            std::fprintf(argument == "--help" ? stdout : stderr, kUsage, device::kBackend);
            return argument == "--help" ? 0 : 2;
        }
    }
    const std::string no_device = device::unavailable();
    if (!no_device.empty()) {
        std::fprintf(stderr, "kdt_bench_%s: nothing to measure on: %s\n", device::kBackend, no_device.c_str());
        return 77;
    }
    std::printf("%s\n%-12s %-28s %12s %12s %12s\n", kdt_build_info(), "kernel", "shape", "us median", "us p10",
                "us p90");
    try {
        for (const Workload& workload : workloads()) {
            if ((workload.kernel + " " + workload.shape).find(filter) == std::string::npos) continue;
            const Prepared prepared = workload.prepare();
            std::vector<double> us = sample_us(prepared.launch, count);
            std::sort(us.begin(), us.end());
            std::printf("%-12s %-28s %12.2f %12.2f %12.2f\n", workload.kernel.c_str(), workload.shape.c_str(),
                        quantile(us, 0.5), quantile(us, 0.1), quantile(us, 0.9));
            std::fflush(stdout);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "kdt_bench_%s: %s\n", device::kBackend, error.what());
        return 1;
    }
    return 0;
}
