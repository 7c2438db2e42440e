// SPDX-License-Identifier: Apache-2.0
//
// What every call has in common: struct_size, last error, versions.
#include <cstring>
#include <string>
#include <thread>

#include "check.h"
#include "device_buffer.h"
#include "kdtree/kdtree.h"

namespace {

// An empty batch: legal without a single pointer.
template <class Params>
struct Empty;
template <>
struct Empty<kdt_draft_topk_params> {
    static kdt_draft_topk_params params() {
        kdt_draft_topk_params p = {};
        p.vocab_size = p.topk = 1;
        return p;
    }
    static constexpr auto call = kdt_draft_topk;
    static constexpr auto query = kdt_draft_topk_workspace_size;
    static constexpr uint32_t v1_size = 80;
};
template <>
struct Empty<kdt_tree_build_params> {
    static kdt_tree_build_params params() {
        kdt_tree_build_params p = {};
        p.topk = 1;
        return p;
    }
    static constexpr auto call = kdt_tree_build;
    static constexpr auto query = kdt_tree_build_workspace_size;
    static constexpr uint32_t v1_size = 168;
};
template <>
struct Empty<kdt_tree_accept_params> {
    static kdt_tree_accept_params params() {
        kdt_tree_accept_params p = {};
        p.max_nodes = 1;
        return p;
    }
    static constexpr auto call = kdt_tree_accept;
    static constexpr auto query = kdt_tree_accept_workspace_size;
    static constexpr uint32_t v1_size = 112;
};
template <>
struct Empty<kdt_verify_attn_params> {
    static kdt_verify_attn_params params() {
        kdt_verify_attn_params p = {};
        p.max_nodes = p.num_qo_heads = p.num_pages = p.page_size = p.max_pages_per_seq = 1;
        p.kv_lora_rank = KDT_KV_LORA_RANK;
        p.qk_rope_head_dim = KDT_QK_ROPE_HEAD_DIM;
        p.softmax_scale = 1.0f;
        return p;
    }
    static constexpr auto call = kdt_verify_attn;
    static constexpr auto query = kdt_verify_attn_workspace_size;
    static constexpr uint32_t v1_size = 152;
};

template <>
struct Empty<kdt_kv_compact_params> {
    static kdt_kv_compact_params params() {
        kdt_kv_compact_params p = {};
        p.num_pages = p.page_size = p.max_pages_per_seq = 1;
        p.row_bytes = 16;
        return p;
    }
    static constexpr auto call = kdt_kv_compact;
    static constexpr auto query = kdt_kv_compact_workspace_size;
    static constexpr uint32_t v1_size = 104;
};

template <>
struct Empty<kdt_merge_attn_states_params> {
    static kdt_merge_attn_states_params params() {
        kdt_merge_attn_states_params p = {};
        p.head_dim = 8;
        return p;
    }
    static constexpr auto call = kdt_merge_attn_states;
    static constexpr auto query = kdt_merge_attn_states_workspace_size;
    static constexpr uint32_t v1_size = 88;
};

template <>
struct Empty<kdt_verify_mla_params> {
    static kdt_verify_mla_params params() {
        kdt_verify_mla_params p = {};
        p.max_nodes = p.num_qo_heads = p.num_pages = p.page_size = p.max_pages_per_seq = 1;
        p.qk_nope_head_dim = KDT_QK_NOPE_HEAD_DIM;
        p.qk_rope_head_dim = KDT_QK_ROPE_HEAD_DIM;
        p.kv_lora_rank = KDT_KV_LORA_RANK;
        p.v_head_dim = KDT_V_HEAD_DIM;
        p.softmax_scale = 1.0f;
        return p;
    }
    static constexpr auto call = kdt_verify_mla;
    static constexpr auto query = kdt_verify_mla_workspace_size;
    static constexpr uint32_t v1_size = 176;
};

// A caller of a later version: the same struct and `extra` bytes more.
template <class Params>
struct Newer {
    Params params;
    unsigned char extra[16];
};

template <class Params>
void check_struct_size() {
    size_t bytes = 1;
    Newer<Params> newer;
    std::memset(&newer, 0, sizeof(newer));
    newer.params = Empty<Params>::params();
    const auto both = [&](uint32_t struct_size) {
        newer.params.struct_size = struct_size;
        const kdt_status status = Empty<Params>::call(&newer.params);
        CHECK_EQ(Empty<Params>::query(&newer.params, &bytes), status);
        return status;
    };
    // A library may have nothing to run on, which it finds out after it has read the struct.
    const kdt_status accepted = device::unavailable().empty() ? KDT_OK : KDT_NO_DEVICE;
    CHECK_EQ(both(sizeof(Params)), accepted);
    if (accepted == KDT_OK) CHECK_EQ(bytes, size_t{0});
    for (const uint32_t small : {0u, 4u, Empty<Params>::v1_size - 1}) {
        CHECK_EQ(both(small), KDT_INVALID_ARGUMENT);
        CHECK_CONTAINS(kdt_last_error(), "struct_size is " + std::to_string(small));
    }
    CHECK_EQ(both(Empty<Params>::v1_size), accepted);
    CHECK_EQ(both(sizeof(newer)), accepted);
    newer.extra[15] = 1;
    CHECK_EQ(both(sizeof(newer)), KDT_INVALID_ARGUMENT);
    CHECK_CONTAINS(kdt_last_error(), "newer than the library");
    // Only the bytes that the caller says are its own are looked at.
    CHECK_EQ(both(sizeof(newer) - 1), accepted);
    CHECK_EQ(both(0xAAAAAAAAu), KDT_INVALID_ARGUMENT);

    CHECK_EQ(Empty<Params>::call(nullptr), KDT_INVALID_ARGUMENT);
    CHECK_CONTAINS(kdt_last_error(), "params is NULL");
    CHECK_EQ(Empty<Params>::query(nullptr, &bytes), KDT_INVALID_ARGUMENT);
    newer.params.struct_size = sizeof(Params);
    CHECK_EQ(Empty<Params>::query(&newer.params, nullptr), KDT_INVALID_ARGUMENT);
    CHECK_CONTAINS(kdt_last_error(), "bytes is NULL");
}

}  // namespace

HOST_TEST(abi_struct_size_draft_topk) {
    check_struct_size<kdt_draft_topk_params>();
}
HOST_TEST(abi_struct_size_tree_build) {
    check_struct_size<kdt_tree_build_params>();
}
HOST_TEST(abi_struct_size_tree_accept) {
    check_struct_size<kdt_tree_accept_params>();
}
HOST_TEST(abi_struct_size_verify_attn) {
    check_struct_size<kdt_verify_attn_params>();
}
HOST_TEST(abi_struct_size_merge_attn_states) {
    check_struct_size<kdt_merge_attn_states_params>();
}

HOST_TEST(abi_struct_size_kv_compact) {
    check_struct_size<kdt_kv_compact_params>();
}

HOST_TEST(abi_struct_size_verify_mla) {
    check_struct_size<kdt_verify_mla_params>();
}

HOST_TEST(abi_version_and_build_info) {
    CHECK_EQ(kdt_abi_version(), uint32_t{KDT_ABI_VERSION});
    const std::string info = kdt_build_info();
    CHECK_CONTAINS(info, std::string("\"backend\": \"") + device::kBackend + "\"");
    for (const char* const field : {"compiler", "archs", "git_commit", "flags", "cuda_version"})
        CHECK_CONTAINS(info, std::string("\"") + field + "\": \"");
    CHECK(info.front() == '{' && info.back() == '}');
    CHECK(kdt_build_info() == kdt_build_info());
}

TEST(abi_last_error_stays_until_the_next_failure) {
    CHECK_EQ(kdt_tree_build(nullptr), KDT_INVALID_ARGUMENT);
    CHECK_CONTAINS(kdt_last_error(), "tree_build: params is NULL");
    kdt_tree_accept_params empty = Empty<kdt_tree_accept_params>::params();
    empty.struct_size = sizeof(empty);
    CHECK_EQ(kdt_tree_accept(&empty), KDT_OK);
    CHECK_CONTAINS(kdt_last_error(), "tree_build: params is NULL");
    CHECK_EQ(kdt_draft_topk(nullptr), KDT_INVALID_ARGUMENT);
    CHECK_CONTAINS(kdt_last_error(), "draft_topk: params is NULL");
}

HOST_TEST(abi_last_error_belongs_to_the_thread) {
    CHECK_EQ(kdt_tree_build(nullptr), KDT_INVALID_ARGUMENT);
    std::string before, after;
    std::thread([&] {
        before = kdt_last_error();
        kdt_verify_attn(nullptr);
        after = kdt_last_error();
    }).join();
    CHECK_EQ(before, std::string());
    CHECK_CONTAINS(after, "verify_attn");
    CHECK_CONTAINS(kdt_last_error(), "tree_build");
}
