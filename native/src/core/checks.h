// SPDX-License-Identifier: Apache-2.0
//
// Everything the host can check about a call, the same for every backend. Each check throws Error(KDT_INVALID_ARGUMENT)
// with a sentence that names the call, the argument, what came and what was wanted.
//
// A backend's call is:
//     return kdt::guarded([&] {
//         const auto p = kdt::read_params(params);
//         kdt::check_tree_build(p);                                   // sizes, then pointers
//         kdt::check_workspace("tree_build", p.workspace, p.workspace_size, needed);
//         if (p.batch == 0) return;                                   // pointers may be NULL then
//         ...
//     });
// and its query is: guarded, read_params, check_bytes_out, check_tree_build_sizes, *bytes = needed.
#ifndef KDTREE_CORE_CHECKS_H
#define KDTREE_CORE_CHECKS_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "core/error.h"
#include "kdtree/kdtree.h"

namespace kdt {

// Name of the call in sentences, and the size of its struct in ABI version 1: fields appended later do not change it.
template <class Params>
struct ParamsTraits;
template <>
struct ParamsTraits<kdt_draft_topk_params> {
    static constexpr const char* name = "draft_topk";
    static constexpr uint32_t v1_size = 80;
};
template <>
struct ParamsTraits<kdt_tree_build_params> {
    static constexpr const char* name = "tree_build";
    static constexpr uint32_t v1_size = 168;
};
template <>
struct ParamsTraits<kdt_tree_accept_params> {
    static constexpr const char* name = "tree_accept";
    static constexpr uint32_t v1_size = 112;
};
template <>
struct ParamsTraits<kdt_verify_attn_params> {
    static constexpr const char* name = "verify_attn";
    static constexpr uint32_t v1_size = 152;
};
template <>
struct ParamsTraits<kdt_merge_attn_states_params> {
    static constexpr const char* name = "merge_attn_states";
    static constexpr uint32_t v1_size = 88;
};
template <>
struct ParamsTraits<kdt_kv_compact_params> {
    static constexpr const char* name = "kv_compact";
    static constexpr uint32_t v1_size = 104;
};
template <>
struct ParamsTraits<kdt_verify_mla_params> {
    static constexpr const char* name = "verify_mla";
    static constexpr uint32_t v1_size = 176;
};

// No struct will ever be larger: a struct_size beyond it is an uninitialised field, not a newer caller.
constexpr uint32_t kMaxStructSize = 4096;

// The non-template half of read_params.
void check_struct_size(const char* call, const void* params, uint32_t v1_size, uint32_t own_size);

// A local copy of the caller's struct: what an older caller does not know is zero, and what a newer caller knows and
// this library does not must be zero.
template <class Params>
Params read_params(const Params* params) {
    static_assert(sizeof(Params) >= ParamsTraits<Params>::v1_size, "a params struct only ever grows");
    check_struct_size(ParamsTraits<Params>::name, params, ParamsTraits<Params>::v1_size, sizeof(Params));
    Params copy;
    std::memset(&copy, 0, sizeof(copy));
    const size_t given = params->struct_size;
    std::memcpy(&copy, params, given < sizeof(copy) ? given : sizeof(copy));
    return copy;
}

// Sizes and flags only: what a workspace query may look at.
void check_draft_topk_sizes(const kdt_draft_topk_params& p);
void check_tree_build_sizes(const kdt_tree_build_params& p);
void check_tree_accept_sizes(const kdt_tree_accept_params& p);
void check_verify_attn_sizes(const kdt_verify_attn_params& p);
void check_merge_attn_states_sizes(const kdt_merge_attn_states_params& p);
void check_kv_compact_sizes(const kdt_kv_compact_params& p);
void check_verify_mla_sizes(const kdt_verify_mla_params& p);

// Sizes, then pointers: not NULL where the call reads or writes through them, and aligned to their element.
void check_draft_topk(const kdt_draft_topk_params& p);
void check_tree_build(const kdt_tree_build_params& p);
void check_tree_accept(const kdt_tree_accept_params& p);
void check_verify_attn(const kdt_verify_attn_params& p);
void check_merge_attn_states(const kdt_merge_attn_states_params& p);
void check_kv_compact(const kdt_kv_compact_params& p);
void check_verify_mla(const kdt_verify_mla_params& p);

// What any allocator gives; a backend that wants more aligns inside the workspace.
constexpr size_t kWorkspaceAlignment = 16;

// The caller's workspace holds the `needed` bytes and is aligned; any pointer will do when none are needed.
void check_workspace(const char* call, const void* workspace, size_t workspace_size, size_t needed);

// The place where a workspace query stores its answer.
void check_bytes_out(const char* call, const size_t* bytes);

// An address a backend wants better aligned than its element type (vector loads, tensor maps).
void check_alignment(const char* call, const char* name, const void* pointer, size_t alignment);

// The product of `sizes` times `element_size`, as bytes; throws, naming the array, when it does not fit int64.
int64_t checked_bytes(const char* call, const char* name, std::initializer_list<int64_t> sizes, int64_t element_size);

// 64-bit words of one row of a tree_mask over max_nodes columns.
constexpr int32_t mask_words(int32_t max_nodes) {
    return (max_nodes + 63) / 64;
}

}  // namespace kdt

#endif  // KDTREE_CORE_CHECKS_H
