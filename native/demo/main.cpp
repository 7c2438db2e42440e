// SPDX-License-Identifier: Apache-2.0
//
// Decodes the prompts of a model bundle and prints token ids as they come: the engine without any Python.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/error.h"
#include "model_bundle.h"

namespace {

constexpr const char* kUsage =
    "usage: kdt_engine_demo [--mode ar|chain|ddtree] [--tree-budget N] [--block-size N] [--max-new-tokens N]\n"
    "                       [--blas FILE] BUNDLE.kdtr\n"
    "  default: ddtree where the bundle has a drafter, else ar; tree budget 15; the drafter's block size\n"
    "  --blas FILE   the CBLAS (CPU) or cuBLAS (CUDA); default: the environment's KDTREE_BLAS, else the usual names\n";

struct Arguments {
    std::string bundle, mode, blas;
    int32_t tree_budget = 15, block_size = 0, max_new_tokens = 0;
};

void require(kdt_status status) {
    if (status != KDT_OK) throw kdt::Error(status, kdt_last_error());
}

kdt_engine_rounds rounds_of(const Arguments& arguments, const ModelBundle& bundle) {
    kdt_engine_rounds rounds = {};
    rounds.struct_size = sizeof(rounds);
    rounds.rounds = 1;
    const std::string mode = !arguments.mode.empty() ? arguments.mode : bundle.has_drafter() ? "ddtree" : "ar";
    if (mode == "ar")
        rounds.mode = KDT_DECODE_AR;
    else if (mode == "chain")
        rounds.mode = KDT_DECODE_CHAIN;
    else if (mode == "ddtree")
        rounds.mode = KDT_DECODE_DDTREE;
    else
        kdt::fail_argument("--mode is '%s', wanted ar, chain or ddtree", mode.c_str());
    rounds.tree_budget = arguments.tree_budget;
    rounds.block_size = arguments.block_size;
    return rounds;
}

void decode(kdt_engine* engine, const BundleCase& one, const kdt_engine_rounds& rounds) {
    const kdt_engine_request request = one.request();
    int32_t slot = -1;
    require(kdt_engine_admit(engine, &request, &slot));
    std::vector<int32_t> tokens(static_cast<size_t>(one.max_new_tokens));
    kdt_engine_progress progress = {};
    progress.struct_size = sizeof(progress);
    int32_t printed = 0;
    for (;;) {
        require(kdt_engine_progress_of(engine, slot, 1, &progress, tokens.data(), printed, one.max_new_tokens));
        for (int32_t i = 0; printed < progress.num_tokens; ++i, ++printed)
            std::printf("%d ", tokens[static_cast<size_t>(i)]);
        std::fflush(stdout);
        if (progress.finished != 0) break;
        require(kdt_engine_run(engine, &rounds));
    }
    const int32_t steps = progress.rounds;
    std::printf("\nsteps=%d committed=%d avg_accept=%.3f\n", steps, progress.num_tokens,
                steps > 0 ? static_cast<double>(progress.accepted) / steps : 0.0);
    require(kdt_engine_release(engine, slot));
}

int run(const Arguments& arguments) {
    const ModelBundle bundle(arguments.bundle);
    if (bundle.cases().empty()) kdt::fail_argument("%s has no case/0/prompt", arguments.bundle.c_str());
    std::vector<BundleCase> cases = bundle.cases();
    kdt_engine_params params = bundle.params();
    for (BundleCase& one : cases)
        if (arguments.max_new_tokens > 0) {
            one.max_new_tokens = arguments.max_new_tokens;
            params.max_seq_len =
                std::max(params.max_seq_len, static_cast<int32_t>(one.prompt.size()) + one.max_new_tokens);
        }
    params.max_tree_budget = std::max(params.max_tree_budget, arguments.tree_budget);
    params.num_pages = (params.max_seq_len + params.max_tree_budget + params.page_size) / params.page_size + 1;
    if (!arguments.blas.empty()) params.blas_library = arguments.blas.c_str();
    kdt_engine* engine = nullptr;
    require(kdt_engine_create(&params, &engine));
    try {
        const kdt_engine_rounds rounds = rounds_of(arguments, bundle);
        for (const BundleCase& one : cases) decode(engine, one, rounds);
    } catch (...) {
        kdt_engine_destroy(engine);
        throw;
    }
    kdt_engine_destroy(engine);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments;
    if (const char* const blas = std::getenv("KDTREE_BLAS")) arguments.blas = blas;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        const bool has_value = i + 1 < argc;
        if (name == "--mode" && has_value) {
            arguments.mode = argv[++i];
        } else if (name == "--tree-budget" && has_value) {
            arguments.tree_budget = std::atoi(argv[++i]);
        } else if (name == "--block-size" && has_value) {
            arguments.block_size = std::atoi(argv[++i]);
        } else if (name == "--max-new-tokens" && has_value) {
            arguments.max_new_tokens = std::atoi(argv[++i]);
        } else if (name == "--blas" && has_value) {
            arguments.blas = argv[++i];
        } else if (name[0] != '-' && arguments.bundle.empty()) {
            arguments.bundle = name;
        } else {
            std::fprintf(name == "--help" ? stdout : stderr, "%s", kUsage);
            return name == "--help" ? 0 : 2;
        }
    }
    if (arguments.bundle.empty()) {
        std::fprintf(stderr, "%s", kUsage);
        return 2;
    }
    try {
        return run(arguments);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "kdt_engine_demo: %s\n", error.what());
        return 1;
    }
}
