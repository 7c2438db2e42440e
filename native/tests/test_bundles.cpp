// SPDX-License-Identifier: Apache-2.0
//
// Cases that Python wrote with its oracles' answers. Names are defined in README.md.
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

#include "bundle_paths.h"
#include "calls.h"
#include "check.h"
#include "core/kdtr.h"
#include "oracle.h"

namespace {

// The arrays of one case, by the names behind its prefix.
class Case {
  public:
    Case(const kdt::KdtrFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

    bool has(const std::string& name) const { return file_.find(prefix_ + name) != nullptr; }

    kdt::KdtrDtype dtype(const std::string& name) const { return file_.at(prefix_ + name).dtype; }

    template <class T>
    std::vector<T> values(const std::string& name) const {
        const kdt::KdtrArray& array = file_.at(prefix_ + name);
        return std::vector<T>(array.as<T>(), array.as<T>() + array.size());
    }

    template <class T>
    T scalar(const std::string& name) const {
        const std::vector<T> all = values<T>(name);
        CHECK_EQ(all.size(), size_t{1});
        return all[0];
    }

    int32_t dim(const std::string& name, size_t axis) const {
        const kdt::KdtrArray& array = file_.at(prefix_ + name);
        if (axis >= array.shape.size()) check::fail(__FILE__, __LINE__, prefix_ + name + " has too few dimensions");
        return static_cast<int32_t>(array.shape[axis]);
    }

  private:
    const kdt::KdtrFile& file_;
    std::string prefix_;
};

void tree_build(const Case& c) {
    TreeBuildInput in = {};
    in.batch = c.dim("topk_log_probs", 0);
    in.draft_horizon = c.dim("topk_log_probs", 1);
    in.topk = c.dim("topk_log_probs", 2);
    in.tree_budget = c.scalar<int32_t>("tree_budget");
    in.topk_log_probs = c.values<float>("topk_log_probs");
    in.topk_token_ids = c.values<int32_t>("topk_token_ids");
    in.root_token_ids = c.values<int32_t>("root_token_ids");
    in.seq_lens = c.values<int32_t>("seq_lens");
    in.dfs_order = c.has("expect/dfs_order");
    in.expected_lengths = c.has("expect/expected_lengths");
    const TreeBuildOutput got = run(in);
    CHECK_EQ(got.parents, c.values<int32_t>("expect/parents"));
    CHECK_EQ(got.token_ids, c.values<int32_t>("expect/token_ids"));
    CHECK_EQ(got.depths, c.values<int32_t>("expect/depths"));
    CHECK_EQ(got.positions, c.values<int32_t>("expect/positions"));
    CHECK_EQ(got.first_child, c.values<int32_t>("expect/first_child"));
    CHECK_EQ(got.next_sibling, c.values<int32_t>("expect/next_sibling"));
    CHECK_EQ(got.tree_mask, c.values<uint64_t>("expect/tree_mask"));
    CHECK_EQ(got.scores, c.values<float>("expect/scores"));
    CHECK_EQ(got.num_nodes, c.values<int32_t>("expect/num_nodes"));
    std::vector<int32_t> status = got.status;
    for (int32_t& word : status) word &= ~KDT_REQ_SLOW_PATH;
    CHECK_EQ(status, c.values<int32_t>("expect/status"));
    if (in.dfs_order) CHECK_EQ(got.dfs_order, c.values<int32_t>("expect/dfs_order"));
    if (in.expected_lengths) CHECK_EQ(got.expected_lengths, c.values<float>("expect/expected_lengths"));
    CHECK(run(in) == got);
}

void tree_accept(const Case& c) {
    TreeAcceptInput in = {};
    in.batch = c.dim("token_ids", 0);
    in.max_nodes = c.dim("token_ids", 1);
    in.draft_horizon = c.scalar<int32_t>("draft_horizon");
    in.token_ids = c.values<int32_t>("token_ids");
    in.parents = c.values<int32_t>("parents");
    in.num_nodes = c.values<int32_t>("num_nodes");
    in.target_tokens = c.values<int32_t>("target_tokens");
    if (c.has("seq_lens")) in.seq_lens = c.values<int32_t>("seq_lens");
    const TreeAcceptOutput got = run(in);
    if (c.has("expect/source_slots")) CHECK_EQ(got.source_slots, c.values<int32_t>("expect/source_slots"));
    CHECK_EQ(got.status, c.values<int32_t>("expect/status"));
    CHECK_EQ(got.accepted_path, c.values<int32_t>("expect/accepted_path"));
    CHECK_EQ(got.acceptance_length, c.values<int32_t>("expect/acceptance_length"));
    CHECK_EQ(got.bonus_token, c.values<int32_t>("expect/bonus_token"));
    CHECK(run(in) == got);
}

void verify_attn(const Case& c) {
    VerifyAttnInput in = {};
    in.batch = c.dim("q_nope", 0);
    in.max_nodes = c.dim("q_nope", 1);
    in.num_qo_heads = c.dim("q_nope", 2);
    in.num_pages = c.dim("kv_cache", 0);
    in.page_size = c.dim("kv_cache", 1);
    in.max_pages_per_seq = c.dim("block_table", 1);
    in.softmax_scale = c.scalar<float>("softmax_scale");
    in.q_nope = c.values<uint16_t>("q_nope");
    in.q_pe = c.values<uint16_t>("q_pe");
    in.kv_cache = c.values<uint16_t>("kv_cache");
    in.block_table = c.values<int32_t>("block_table");
    in.seq_lens = c.values<int32_t>("seq_lens");
    in.tree_mask = c.values<uint64_t>("tree_mask");
    if (c.has("num_nodes")) in.num_nodes = c.values<int32_t>("num_nodes");
    in.tail_only = c.has("tail_only") && c.scalar<int32_t>("tail_only") != 0;
    const VerifyAttnOutput got = run(in);
    if (c.has("expect/status")) CHECK_EQ(got.status, c.values<int32_t>("expect/status"));
    const std::vector<double> out = c.values<double>("expect/out"), lse = c.values<double>("expect/lse");
    CHECK_EQ(got.out.size(), out.size());
    CHECK_EQ(got.lse.size(), lse.size());
    double error = 0.0, norm = 0.0;
    for (size_t i = 0; i < out.size(); ++i) {
        const double difference = from_bf16(got.out[i]) - out[i];
        CHECK_EQ(std::isnan(from_bf16(got.out[i])), std::isnan(out[i]));
        if (std::isnan(difference)) continue;
        error += difference * difference;
        norm += out[i] * out[i];
        if (lse[i / KDT_KV_LORA_RANK] == -std::numeric_limits<double>::infinity()) CHECK_EQ(got.out[i], uint16_t{0});
    }
    CHECK(std::sqrt(error) <= 3e-3 * std::sqrt(norm));
    for (size_t row = 0; row < lse.size(); ++row) {
        CHECK_EQ(std::isfinite(got.lse[row]), std::isfinite(lse[row]));
        if (std::isfinite(lse[row]))
            CHECK(std::abs(got.lse[row] - lse[row]) <= 1e-3);
        else if (!std::isnan(lse[row]))
            CHECK_EQ(got.lse[row], static_cast<float>(lse[row]));
    }
    CHECK(run(in) == got);
}

void merge_attn_states(const Case& c) {
    MergeAttnStatesInput in = {};
    in.head_dim = c.dim("out_a", 1);
    in.out_a = c.values<uint16_t>("out_a");
    in.lse_a = c.values<float>("lse_a");
    in.out_b = c.values<uint16_t>("out_b");
    in.lse_b = c.values<float>("lse_b");
    const MergeAttnStatesOutput got = run(in);
    const std::vector<double> out = c.values<double>("expect/out"), lse = c.values<double>("expect/lse");
    CHECK_EQ(got.out.size(), out.size());
    CHECK_EQ(got.lse.size(), lse.size());
    for (size_t i = 0; i < out.size(); ++i) {
        const double value = from_bf16(got.out[i]);
        CHECK_EQ(std::isnan(value), std::isnan(out[i]));
        CHECK(std::isnan(value) || std::abs(value - out[i]) <= std::abs(out[i]) / 256 + 1e-5);
    }
    for (size_t row = 0; row < lse.size(); ++row) {
        CHECK_EQ(std::isnan(got.lse[row]), std::isnan(lse[row]));
        CHECK(std::isnan(lse[row]) || got.lse[row] == lse[row] ||
              std::abs(got.lse[row] - lse[row]) <= 1e-6 * (1.0 + std::abs(lse[row])));
    }
    CHECK(run(in) == got);
}

void verify_mla(const Case& c) {
    VerifyMlaInput in = {};
    in.batch = c.dim("q_nope", 0);
    in.max_nodes = c.dim("q_nope", 1);
    in.num_qo_heads = c.dim("q_nope", 2);
    in.num_pages = c.dim("kv_cache", 0);
    in.page_size = c.dim("kv_cache", 1);
    in.max_pages_per_seq = c.dim("block_table", 1);
    in.softmax_scale = c.scalar<float>("softmax_scale");
    in.q_nope = c.values<uint16_t>("q_nope");
    in.q_pe = c.values<uint16_t>("q_pe");
    in.w_uk = c.values<uint16_t>("w_uk");
    in.w_uv = c.values<uint16_t>("w_uv");
    in.kv_cache = c.values<uint16_t>("kv_cache");
    in.block_table = c.values<int32_t>("block_table");
    in.seq_lens = c.values<int32_t>("seq_lens");
    in.tree_mask = c.values<uint64_t>("tree_mask");
    in.num_nodes = c.values<int32_t>("num_nodes");
    const std::vector<double> out = c.values<double>("expect/out"), lse = c.values<double>("expect/lse");
    for (const int32_t mode : {KDT_MLA_ABSORB, KDT_MLA_MHA}) {
        in.mode = mode;
        const VerifyAttnOutput got = run(in);
        CHECK_EQ(got.status, c.values<int32_t>("expect/status"));
        CHECK_EQ(got.out.size(), out.size());
        double error = 0.0, norm = 0.0;
        for (size_t i = 0; i < out.size(); ++i) {
            const double difference = from_bf16(got.out[i]) - out[i];
            error += difference * difference;
            norm += out[i] * out[i];
            if (std::isinf(lse[i / KDT_V_HEAD_DIM])) CHECK_EQ(got.out[i], uint16_t{0});
        }
        CHECK(std::sqrt(error) <= 6e-3 * std::sqrt(norm));
        for (size_t row = 0; row < lse.size(); ++row)
            if (std::isinf(lse[row]))
                CHECK_EQ(got.lse[row], static_cast<float>(lse[row]));
            else
                CHECK(std::abs(got.lse[row] - lse[row]) <= 1e-2);
        CHECK(run(in) == got);
    }
}

void draft_topk(const Case& c) {
    DraftTopkInput in = {};
    in.rows = c.dim("logits", 0);
    in.vocab_size = c.dim("logits", 1);
    in.topk = c.dim("expect/topk_token_ids", 1);
    if (c.dtype("logits") == kdt::KdtrDtype::bf16)
        in.logits_bf16 = c.values<uint16_t>("logits");
    else
        in.logits_f32 = c.values<float>("logits");
    const DraftTopkOutput got = run(in);
    CHECK_EQ(got.status, c.values<int32_t>("expect/status"));
    CHECK_EQ(got.topk_token_ids, c.values<int32_t>("expect/topk_token_ids"));
    const std::vector<float> wanted = c.values<float>("expect/topk_log_probs");
    for (size_t i = 0; i < wanted.size(); ++i) {
        CHECK_EQ(std::isnan(got.topk_log_probs[i]), std::isnan(wanted[i]));
        CHECK(std::isnan(wanted[i]) || got.topk_log_probs[i] == wanted[i] ||
              std::abs(got.topk_log_probs[i] - wanted[i]) <= 1e-5 + 1e-6 * std::abs(wanted[i]));
    }
    CHECK(run(in) == got);
}

// Bytes of 16-bit words.
std::vector<unsigned char> bytes_of(const std::vector<uint16_t>& words) {
    const unsigned char* const first = reinterpret_cast<const unsigned char*>(words.data());
    return std::vector<unsigned char>(first, first + 2 * words.size());
}

void kv_compact(const Case& c) {
    KvCompactInput in = {};
    in.num_layers = c.dim("kv_cache", 0);
    in.num_pages = c.dim("kv_cache", 1);
    in.page_size = c.dim("kv_cache", 2);
    in.row_bytes = 2 * c.dim("kv_cache", 3);
    in.batch = c.dim("block_table", 0);
    in.max_pages_per_seq = c.dim("block_table", 1);
    in.draft_horizon = c.dim("accepted_path", 1) - 1;
    in.kv_cache = bytes_of(c.values<uint16_t>("kv_cache"));
    in.block_table = c.values<int32_t>("block_table");
    in.seq_lens = c.values<int32_t>("seq_lens");
    in.accepted_path = c.values<int32_t>("accepted_path");
    in.with_status = true;
    const KvCompactOutput got = run(in);
    CHECK_EQ(got.status, c.values<int32_t>("expect/status"));
    CHECK(got.kv_cache == bytes_of(c.values<uint16_t>("expect/kv_cache")));
    CHECK(run(in) == got);
}

struct Kernel {
    const char* name;
    const char* first_array;  // every case has it
    void (*check)(const Case&);
};

constexpr Kernel kKernels[] = {
    {"tree_build", "topk_log_probs", tree_build}, {"tree_accept", "token_ids", tree_accept},
    {"verify_attn", "q_nope", verify_attn},       {"draft_topk", "logits", draft_topk},
    {"kv_compact", "kv_cache", kv_compact},       {"merge_attn_states", "out_a", merge_attn_states},
    {"verify_mla", "q_nope", verify_mla}};

}  // namespace

TEST(bundles) {
    if (bundle_paths().empty()) throw check::Skipped("no bundles on the command line (tests/bundles.py writes them)");
    for (const std::string& path : bundle_paths()) {
        const kdt::KdtrFile file(path);
        size_t cases = 0;
        for (const Kernel& kernel : kKernels)
            for (size_t index = 0;; ++index, ++cases) {
                const std::string prefix = std::string(kernel.name) + "/" + std::to_string(index) + "/";
                const Case c(file, prefix);
                if (!c.has(kernel.first_array)) break;
                try {
                    kernel.check(c);
                } catch (const std::exception& error) {
                    check::fail(__FILE__, __LINE__, path + " " + prefix + ": " + error.what());
                }
            }
        if (cases == 0) check::fail(__FILE__, __LINE__, path + " holds no case");
        std::printf("%s: %zu cases\n", path.c_str(), cases);
    }
}
