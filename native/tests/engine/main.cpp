// SPDX-License-Identifier: Apache-2.0
//
// Runs the engine's tests; the last line is ALL TESTS PASSED when nothing failed. Exit code: 0 all passed, 1 some
// failed, 2 bad usage, 77 no device or no BLAS.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "check.h"
#include "engine/model.h"
#include "engine/options.h"

namespace {

constexpr const char* kUsage =
    "usage: kdt_engine_tests [--list] [--filter TEXT] [--blas FILE] [BUNDLE.kdtr ...]\n"
    "  --filter TEXT  only tests whose name contains TEXT\n"
    "  --blas FILE    the CBLAS (CPU) or cuBLAS (CUDA) to use; default: the environment's KDTREE_BLAS, else the usual "
    "names\n"
    "  BUNDLE.kdtr    models with the tokens they must say (format: native/tests/README.md)\n";

}  // namespace

int main(int argc, char** argv) {
    std::string filter;
    bool list = false;
    if (const char* const blas = std::getenv("KDTREE_BLAS")) options().blas = blas;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (argument == "--list") {
            list = true;
        } else if (argument == "--filter" && i + 1 < argc) {
            filter = argv[++i];
        } else if (argument == "--blas" && i + 1 < argc) {
            options().blas = argv[++i];
        } else if (argument[0] != '-') {
            options().bundles.push_back(argument);
        } else {
            std::fprintf(argument == "--help" ? stdout : stderr, "%s", kUsage);
            return argument == "--help" ? 0 : 2;
        }
    }
    if (!list) {
        const std::string reason = engine_unavailable();
        if (!reason.empty()) {
            std::printf("no engine can be made here: %s\n", reason.c_str());
            return 77;
        }
    }
    int passed = 0, failed = 0, skipped = 0;
    for (const check::Test& test : check::tests()) {
        if (std::strstr(test.name, filter.c_str()) == nullptr) continue;
        if (list) {
            std::printf("%s\n", test.name);
            continue;
        }
        try {
            test.body();
            std::printf("PASS    %s\n", test.name);
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
    std::printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    if (passed + failed + skipped == 0) {
        std::fprintf(stderr, "no test has '%s' in its name\n", filter.c_str());
        return 2;
    }
    if (failed == 0) std::printf("ALL TESTS PASSED\n");
    return failed > 0 ? 1 : 0;
}
