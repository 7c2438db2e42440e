// SPDX-License-Identifier: Apache-2.0
//
// The two modes of verify_mla, each in a file of its own.
#ifndef KDTREE_CPU_VERIFY_MLA_MODES_H
#define KDTREE_CPU_VERIFY_MLA_MODES_H

#include <cstddef>
#include <cstdint>

#include "core/workspace.h"
#include "cpu/verify_attn_loops.h"
#include "cpu/verify_mla_loops.h"
#include "kdtree/kdtree.h"

namespace kdt {

// Heads in flight at once; the workspace does not depend on the machine's number of threads.
constexpr int64_t kMaxMlaLanes = 16;
// Rows that are multiplied with a head's weights together.
constexpr int32_t kMlaTile = 16;

inline const uint16_t* bf16_words(const void* array) {
    return static_cast<const uint16_t*>(array);
}

// Of checked params and a batch that is not empty; the workspace is as large as said.
size_t absorb_workspace(const kdt_verify_mla_params& p);
void run_absorb(const kdt_verify_mla_params& p);
size_t mha_workspace(const kdt_verify_mla_params& p);
void run_mha(const kdt_verify_mla_params& p);

}  // namespace kdt

#endif  // KDTREE_CPU_VERIFY_MLA_MODES_H
