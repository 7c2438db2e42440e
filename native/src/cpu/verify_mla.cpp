// SPDX-License-Identifier: Apache-2.0
//
// verify_mla: takes the mode that was asked for, or the cheaper one.
#include "core/checks.h"
#include "core/verify_mla_cost.h"
#include "cpu/verify_mla_modes.h"
#include "kdtree/kdtree.h"

namespace kdt {

namespace {

// One thread of a current x86-64 core: the steps' proportion is what counts.
constexpr MlaRates kMlaRates = {25e9, 18e9, 10e9, 10e9, 1e-6, 1e-6};

bool absorbs(const kdt_verify_mla_params& p) {
    return mla_costs(p, kMlaRates).mode == KDT_MLA_ABSORB;
}

size_t needed_mla_workspace(const kdt_verify_mla_params& p) {
    if (p.batch == 0) return 0;
    return absorbs(p) ? absorb_workspace(p) : mha_workspace(p);
}

}  // namespace
}  // namespace kdt

extern "C" kdt_status kdt_verify_mla_cost(const kdt_verify_mla_params* params, kdt_verify_mla_costs* costs) {
    return kdt::guarded([&] {
        const kdt_verify_mla_params p = kdt::read_params(params);
        kdt::check_verify_mla_sizes(p);
        kdt::store_mla_costs(kdt::mla_costs(p, kdt::kMlaRates), costs);
    });
}

extern "C" kdt_status kdt_verify_mla_workspace_size(const kdt_verify_mla_params* params, size_t* bytes) {
    return kdt::guarded([&] {
        const kdt_verify_mla_params p = kdt::read_params(params);
        kdt::check_bytes_out("verify_mla", bytes);
        kdt::check_verify_mla_sizes(p);
        *bytes = kdt::needed_mla_workspace(p);
    });
}

extern "C" kdt_status kdt_verify_mla(const kdt_verify_mla_params* params) {
    return kdt::guarded([&] {
        const kdt_verify_mla_params p = kdt::read_params(params);
        kdt::check_verify_mla(p);
        kdt::check_workspace("verify_mla", p.workspace, p.workspace_size, kdt::needed_mla_workspace(p));
        if (p.batch == 0) return;
        if (kdt::absorbs(p))
            kdt::run_absorb(p);
        else
            kdt::run_mha(p);
    });
}
