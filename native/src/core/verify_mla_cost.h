// SPDX-License-Identifier: Apache-2.0
//
// Which mode of verify_mla is cheaper: one model for all backends, which only bring their rates. Sizes alone go in, so
// that equal calls are computed equally, to the bit.
//
// By FLOPs alone absorb spends 2 (576 + 512) = 2176 a (query, slot, head) and 2 * 512 * 256 = 262144 a (query, head)
// for both projections; mha spends 2 (192 + 128) = 640 and 262144 a (slot, head). For N queries over S slots they break
// even at 1536 N S = 262144 (S - N): N = 171 over a long prefix, less over a short one.
#ifndef KDTREE_CORE_VERIFY_MLA_COST_H
#define KDTREE_CORE_VERIFY_MLA_COST_H

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/error.h"
#include "kdtree/kdtree.h"

namespace kdt {

// What a backend's steps reach, measured with large inputs: FLOP/s of each step, bytes/s; and seconds that a step of
// each mode costs besides, measured with small ones.
struct MlaRates {
    double projection_flops;
    double absorb_flops;
    double mha_flops;
    double bytes;
    double absorb_step_seconds;
    double mha_step_seconds;
};

struct MlaCost {
    double flops = 0.0;
    double bytes = 0.0;
    double seconds = 0.0;

    // A step takes as long as the slower of its arithmetic and its traffic.
    void add_step(double step_flops, double flops_per_second, double step_bytes, double bytes_per_second,
                  double step_seconds) {
        flops += step_flops;
        bytes += step_bytes;
        seconds += std::max(step_flops / flops_per_second, step_bytes / bytes_per_second) + step_seconds;
    }
};

constexpr double kMlaProjectionFlops = 2.0 * KDT_KV_LORA_RANK * KDT_QK_NOPE_HEAD_DIM;  // one of the two, a row
constexpr double kMlaLatentBytes = 2.0 * (KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM);
static_assert(KDT_QK_NOPE_HEAD_DIM == KDT_V_HEAD_DIM, "both projections cost the same");

inline double mla_slots(const kdt_verify_mla_params& p) {
    return static_cast<double>(p.batch) * p.max_pages_per_seq * p.page_size;
}

inline MlaCost mla_absorb_cost(const kdt_verify_mla_params& p, const MlaRates& rates) {
    const double rows = static_cast<double>(p.batch) * p.max_nodes * p.num_qo_heads;
    const double pairs = rows * p.max_pages_per_seq * p.page_size;
    const double weights = kMlaProjectionFlops * p.num_qo_heads;  // bytes: 512 x 128 of 2 each, a head
    const double row_bytes = 2.0 * (KDT_KV_LORA_RANK + KDT_QK_NOPE_HEAD_DIM);
    MlaCost cost;
    cost.add_step(rows * kMlaProjectionFlops, rates.projection_flops, rows * row_bytes + weights, rates.bytes,
                  rates.absorb_step_seconds);
    cost.add_step(pairs * 2.0 * (2 * KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM), rates.absorb_flops,
                  mla_slots(p) * kMlaLatentBytes + rows * (kMlaLatentBytes + 2.0 * KDT_KV_LORA_RANK), rates.bytes,
                  rates.absorb_step_seconds);
    cost.add_step(rows * kMlaProjectionFlops, rates.projection_flops, rows * row_bytes + weights, rates.bytes,
                  rates.absorb_step_seconds);
    return cost;
}

inline MlaCost mla_mha_cost(const kdt_verify_mla_params& p, const MlaRates& rates) {
    const double rows = static_cast<double>(p.batch) * p.max_nodes * p.num_qo_heads;
    const double pairs = rows * p.max_pages_per_seq * p.page_size;
    const double heads = mla_slots(p) * p.num_qo_heads;  // (slot, head) pairs
    const double head_bytes = 2.0 * (KDT_QK_NOPE_HEAD_DIM + KDT_V_HEAD_DIM);
    const double query_bytes = 2.0 * (KDT_QK_NOPE_HEAD_DIM + KDT_QK_ROPE_HEAD_DIM + KDT_V_HEAD_DIM);
    MlaCost cost;
    cost.add_step(heads * 2.0 * kMlaProjectionFlops, rates.projection_flops,
                  mla_slots(p) * kMlaLatentBytes + heads * head_bytes + 2.0 * kMlaProjectionFlops * p.num_qo_heads,
                  rates.bytes, rates.mha_step_seconds);
    cost.add_step(pairs * 2.0 * (KDT_QK_NOPE_HEAD_DIM + KDT_QK_ROPE_HEAD_DIM + KDT_V_HEAD_DIM), rates.mha_flops,
                  heads * head_bytes + mla_slots(p) * 2.0 * KDT_QK_ROPE_HEAD_DIM + rows * query_bytes, rates.bytes,
                  rates.mha_step_seconds);
    return cost;
}

// Of checked sizes.
inline kdt_verify_mla_costs mla_costs(const kdt_verify_mla_params& p, const MlaRates& rates) {
    const MlaCost absorb = mla_absorb_cost(p, rates);
    const MlaCost mha = mla_mha_cost(p, rates);
    kdt_verify_mla_costs costs = {};
    costs.mode = p.mode != KDT_MLA_AUTO ? p.mode : mha.seconds < absorb.seconds ? KDT_MLA_MHA : KDT_MLA_ABSORB;
    costs.absorb_flops = absorb.flops;
    costs.absorb_bytes = absorb.bytes;
    costs.absorb_seconds = absorb.seconds;
    costs.mha_flops = mha.flops;
    costs.mha_bytes = mha.bytes;
    costs.mha_seconds = mha.seconds;
    return costs;
}

// Fills the caller's struct, of whatever version.
inline void store_mla_costs(const kdt_verify_mla_costs& costs, kdt_verify_mla_costs* to) {
    if (to == nullptr) fail_argument("verify_mla_cost: costs is NULL, wanted a place for the answer");
    const uint32_t given = to->struct_size;
    constexpr uint32_t kFirst = 56;  // of ABI version 1
    if (given < kFirst || given > 4096)
        fail_argument("verify_mla_cost: struct_size is %u, wanted sizeof(kdt_verify_mla_costs), which is %zu here",
                      given, sizeof(costs));
    // What a newer caller knows and this library does not is zero.
    std::memset(static_cast<void*>(to), 0, given);
    std::memcpy(static_cast<void*>(to), &costs, std::min<size_t>(given, sizeof(costs)));
    to->struct_size = given;
}

}  // namespace kdt

#endif  // KDTREE_CORE_VERIFY_MLA_COST_H
