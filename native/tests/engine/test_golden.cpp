// SPDX-License-Identifier: Apache-2.0
//
// Models of bundles say the tokens that an independent implementation says: AR, the chain and trees, one request at a
// time and all cases in one batch.
#include <algorithm>
#include <cstdio>

#include "check.h"
#include "engine/model.h"
#include "engine/options.h"
#include "model_bundle.h"

namespace {

struct Way {
    const char* name;
    kdt_engine_rounds rounds;
};

std::vector<Way> ways(const ModelBundle& bundle) {
    std::vector<Way> all = {{"AR", ar_rounds()}};
    if (!bundle.has_drafter()) return all;
    all.push_back({"CHAIN", chain_rounds()});
    for (const auto& [name, budget] :
         {std::make_pair("DDTREE budget=8", 8), {"DDTREE budget=15", 15}, {"DDTREE budget=64", 64}})
        all.push_back({name, tree_rounds(budget)});
    all.push_back({"DDTREE budget=15 block=4", tree_rounds(15, 4)});
    return all;
}

kdt_engine_params params_of(const ModelBundle& bundle, int32_t max_batch) {
    kdt_engine_params params = bundle.params();
    params.max_batch = max_batch;
    params.num_pages *= max_batch;
    params.blas_library = options().blas_or_null();
    return params;
}

// Prints what came, then compares.
void report(const char* way, size_t index, const BundleCase& one, const Generated& generated) {
    const kdt_engine_progress& p = generated.progress;
    std::printf("case %zu %s:", index, way);
    for (const int32_t token : generated.tokens) std::printf(" %d", token);
    std::printf("\n  steps=%d committed=%d avg_accept=%.3f\n", p.rounds, p.num_tokens,
                p.rounds > 0 ? static_cast<double>(p.accepted) / p.rounds : 0.0);
    CHECK_EQ(generated.tokens, one.tokens);
    std::printf("PASS  %s == golden\n", way);
}

}  // namespace

TEST(bundles_say_their_golden_tokens) {
    if (options().bundles.empty()) throw check::Skipped("no bundle was named");
    for (const std::string& path : options().bundles) {
        const ModelBundle bundle(path);
        CHECK(!bundle.cases().empty());
        std::printf("%s: %zu cases\n", path.c_str(), bundle.cases().size());
        const kdt_engine_params single = params_of(bundle, 1);
        const auto cases = static_cast<int32_t>(bundle.cases().size());
        const kdt_engine_params batched = params_of(bundle, cases);
        Model model(single), batch(batched);
        for (const Way& way : ways(bundle)) {
            for (size_t i = 0; i < bundle.cases().size(); ++i)
                report(way.name, i, bundle.cases()[i], model.generate(bundle.cases()[i].request(), way.rounds));
            std::vector<int32_t> slots;
            for (const BundleCase& one : bundle.cases()) slots.push_back(batch.admit(one.request()));
            for (size_t i = 0; i < slots.size(); ++i) {
                batch.run_until_finished(slots[i], way.rounds);
                CHECK_EQ(batch.generated(slots[i]).tokens, bundle.cases()[i].tokens);
            }
            for (const int32_t slot : slots) batch.release(slot);
            std::printf("PASS  %s, all cases in one batch == golden\n", way.name);
        }
    }
}
