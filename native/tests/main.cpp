// SPDX-License-Identifier: Apache-2.0
//
// Runs the registered tests. Exit code: 0 all passed, 1 some failed, 2 bad usage, 77 no device (only host tests ran).
#include <cstdio>
#include <cstring>
#include <string>

#include "bundle_paths.h"
#include "check.h"
#include "device_buffer.h"

namespace {

constexpr const char* kUsage =
    "usage: kdt_tests_%s [--list] [--filter TEXT] [--no-device] [BUNDLE.kdtr ...]\n"
    "  --filter TEXT  only tests whose name contains TEXT\n"
    "  --no-device    only tests that touch no device memory; they are all that is wanted, so exit 0 when they pass\n"
    "  BUNDLE.kdtr    cases with expected outputs, written by tests/bundles.py (format: native/tests/README.md)\n";

}  // namespace

int main(int argc, char** argv) {
    std::string filter;
    bool list = false;
    bool host_only = false;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (argument == "--list") {
            list = true;
        } else if (argument == "--no-device") {
            host_only = true;
        } else if (argument == "--filter" && i + 1 < argc) {
            filter = argv[++i];
        } else if (argument[0] != '-') {
            bundle_paths().push_back(argument);
        } else {
            std::fprintf(argument == "--help" ? stdout : stderr, kUsage, device::kBackend);
            return argument == "--help" ? 0 : 2;
        }
    }

    const std::string no_device = host_only ? "--no-device" : device::unavailable();
    int passed = 0, failed = 0, skipped = 0;
    for (const check::Test& test : check::tests()) {
        if (std::strstr(test.name, filter.c_str()) == nullptr) continue;
        if (list) {
            std::printf("%s\n", test.name);
            continue;
        }
        if (test.needs_device && !no_device.empty()) {
            ++skipped;
            continue;
        }
        try {
            test.body();
            ++passed;
        } catch (const check::Skipped& reason) {
            std::printf("skipped %s: %s\n", test.name, reason.what());
            ++skipped;
        } catch (const std::exception& error) {
            std::printf("FAILED  %s: %s\n", test.name, error.what());
            ++failed;
        }
        std::fflush(stdout);
    }
    if (list) return 0;
    if (!no_device.empty()) std::printf("tests that need a device were skipped: %s\n", no_device.c_str());
    std::printf("%s: %d passed, %d failed, %d skipped\n", device::kBackend, passed, failed, skipped);
    if (passed + failed + skipped == 0) {
        std::fprintf(stderr, "no test has '%s' in its name\n", filter.c_str());
        return 2;
    }
    return failed > 0 ? 1 : no_device.empty() || host_only ? 0 : 77;
}
