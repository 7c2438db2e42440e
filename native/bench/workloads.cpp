// SPDX-License-Identifier: Apache-2.0
#include "workloads.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "device_buffer.h"
#include "kdtree/kdtree.h"
#include "oracle.h"

namespace {

class Buffers {
  public:
    Buffers() = default;
    ~Buffers() {
        for (void* const memory : all_) device::release(memory);
    }
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;

    template <class T>
    T* of(const std::vector<T>& values) {
        T* const memory = space<T>(values.size());
        device::upload(memory, values.data(), values.size() * sizeof(T));
        return memory;
    }

    template <class T>
    T* space(size_t count) {
        all_.push_back(device::allocate(count * sizeof(T) + 1));
        return static_cast<T*>(all_.back());
    }

  private:
    std::vector<void*> all_;
};

void require(kdt_status status) {
    if (status != KDT_OK) throw std::runtime_error(kdt_last_error());
}

template <class Params>
Prepared prepared(std::shared_ptr<Buffers> buffers, Params params, kdt_status (*query)(const Params*, size_t*),
                  kdt_status (*call)(const Params*)) {
    params.struct_size = sizeof(params);
    require(query(&params, &params.workspace_size));
    params.workspace = buffers->space<char>(params.workspace_size);
    return {buffers, [params, call](void* stream) mutable {
                params.stream = stream;
                require(call(&params));
            }};
}

Prepared tree_build(int32_t batch, int32_t horizon, int32_t topk, int32_t budget) {
    Random random(1);
    const TreeBuildInput in = random_tree_input(random, batch, horizon, topk, budget, 2.0f, 0);
    auto buffers = std::make_shared<Buffers>();
    const size_t nodes = static_cast<size_t>(batch) * (budget + 1);
    kdt_tree_build_params p = {};
    p.topk_log_probs = buffers->of(in.topk_log_probs);
    p.topk_token_ids = buffers->of(in.topk_token_ids);
    p.root_token_ids = buffers->of(in.root_token_ids);
    p.seq_lens = buffers->of(in.seq_lens);
    for (int32_t** const out : {&p.token_ids, &p.parents, &p.depths, &p.positions, &p.first_child, &p.next_sibling})
        *out = buffers->space<int32_t>(nodes);
    p.tree_mask = buffers->space<uint64_t>(nodes * static_cast<size_t>(words_of(budget + 1)));
    p.scores = buffers->space<float>(nodes);
    p.num_nodes = buffers->space<int32_t>(static_cast<size_t>(batch));
    p.status = buffers->space<int32_t>(static_cast<size_t>(batch));
    p.batch = batch;
    p.draft_horizon = horizon;
    p.topk = topk;
    p.tree_budget = budget;
    return prepared(buffers, p, kdt_tree_build_workspace_size, kdt_tree_build);
}

// Random recursive trees; targets follow a path down from the root.
Prepared tree_accept(int32_t batch, int32_t nodes, int32_t horizon) {
    Random random(2);
    std::vector<int32_t> tokens, parents, target;
    for (int32_t b = 0; b < batch; ++b) {
        std::vector<int32_t> depths;
        const size_t at = target.size();
        for (int32_t i = 0; i < nodes; ++i) {
            int32_t parent = i == 0 ? -1 : random.below(i);
            if (i > 0 && depths[static_cast<size_t>(parent)] == horizon) parent = 0;
            depths.push_back(i == 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
            parents.push_back(parent);
            tokens.push_back(i);
            target.push_back(-1);
            if (i > 0) target[at + static_cast<size_t>(parent)] = i;
        }
    }
    auto buffers = std::make_shared<Buffers>();
    kdt_tree_accept_params p = {};
    p.token_ids = buffers->of(tokens);
    p.parents = buffers->of(parents);
    p.num_nodes = buffers->of(std::vector<int32_t>(static_cast<size_t>(batch), nodes));
    p.target_tokens = buffers->of(target);
    p.accepted_path = buffers->space<int32_t>(static_cast<size_t>(batch) * (horizon + 1));
    p.acceptance_length = buffers->space<int32_t>(static_cast<size_t>(batch));
    p.bonus_token = buffers->space<int32_t>(static_cast<size_t>(batch));
    p.status = buffers->space<int32_t>(static_cast<size_t>(batch));
    p.batch = batch;
    p.max_nodes = nodes;
    p.draft_horizon = horizon;
    return prepared(buffers, p, kdt_tree_accept_workspace_size, kdt_tree_accept);
}

std::vector<uint16_t> normals(Random& random, size_t count) {
    std::vector<uint16_t> values(count);
    for (uint16_t& value : values) value = bf16(random.normal());
    return values;
}

Prepared verify_attn(int32_t batch, int32_t nodes, int32_t heads, int32_t prefix, int32_t page_size) {
    Random random(3);
    auto buffers = std::make_shared<Buffers>();
    const int32_t pages = (prefix + nodes + page_size - 1) / page_size;
    std::vector<int32_t> table;
    for (int32_t k = 0; k < batch * pages; ++k) table.push_back(k);
    for (size_t k = table.size() - 1; k > 0; --k)
        std::swap(table[k], table[static_cast<size_t>(random.below(static_cast<int32_t>(k) + 1))]);
    const size_t words = static_cast<size_t>(words_of(nodes));
    std::vector<uint64_t> mask(static_cast<size_t>(batch) * nodes * words, 0);
    for (size_t row = 0; row < static_cast<size_t>(batch) * nodes; ++row) {
        const size_t i = row % static_cast<size_t>(nodes);
        if (i > 0) {
            const size_t parent = row - 1 - static_cast<size_t>(random.below(static_cast<int32_t>(i)));
            std::copy_n(mask.begin() + parent * words, words, mask.begin() + row * words);
        }
        mask[row * words + i / 64] |= uint64_t{1} << (i % 64);
    }
    const size_t rows = static_cast<size_t>(batch) * nodes * heads;
    kdt_verify_attn_params p = {};
    p.q_nope = buffers->of(normals(random, rows * KDT_KV_LORA_RANK));
    p.q_pe = buffers->of(normals(random, rows * KDT_QK_ROPE_HEAD_DIM));
    p.kv_cache =
        buffers->of(normals(random, table.size() * page_size * size_t{KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM}));
    p.block_table = buffers->of(table);
    p.seq_lens = buffers->of(std::vector<int32_t>(static_cast<size_t>(batch), prefix));
    p.tree_mask = buffers->of(mask);
    p.num_nodes = buffers->of(std::vector<int32_t>(static_cast<size_t>(batch), nodes));
    p.out = buffers->space<uint16_t>(rows * KDT_KV_LORA_RANK);
    p.lse = buffers->space<float>(rows);
    p.status = buffers->space<int32_t>(static_cast<size_t>(batch));
    p.batch = batch;
    p.max_nodes = nodes;
    p.num_qo_heads = heads;
    p.kv_lora_rank = KDT_KV_LORA_RANK;
    p.qk_rope_head_dim = KDT_QK_ROPE_HEAD_DIM;
    p.num_pages = batch * pages;
    p.page_size = page_size;
    p.max_pages_per_seq = pages;
    p.softmax_scale = 0.0721687836f;
    return prepared(buffers, p, kdt_verify_attn_workspace_size, kdt_verify_attn);
}

Prepared merge_attn_states(int32_t rows) {
    Random random(5);
    auto buffers = std::make_shared<Buffers>();
    const size_t values = static_cast<size_t>(rows) * KDT_KV_LORA_RANK;
    std::vector<float> lse(static_cast<size_t>(rows));
    for (float& value : lse) value = random.normal();
    kdt_merge_attn_states_params p = {};
    p.out_a = buffers->of(normals(random, values));
    p.lse_a = buffers->of(lse);
    p.out_b = buffers->of(normals(random, values));
    p.lse_b = buffers->of(lse);
    p.out = buffers->space<uint16_t>(values);
    p.lse = buffers->space<float>(lse.size());
    p.rows = rows;
    p.head_dim = KDT_KV_LORA_RANK;
    return prepared(buffers, p, kdt_merge_attn_states_workspace_size, kdt_merge_attn_states);
}

Prepared verify_mla(int32_t batch, int32_t nodes, int32_t heads, int32_t prefix, int32_t mode) {
    Random random(5);
    auto buffers = std::make_shared<Buffers>();
    const int32_t page_size = 64;
    const int32_t pages = (prefix + nodes + page_size - 1) / page_size;
    std::vector<int32_t> table;
    for (int32_t k = 0; k < batch * pages; ++k) table.push_back(k);
    const size_t words = static_cast<size_t>(words_of(nodes));
    std::vector<uint64_t> mask(static_cast<size_t>(batch) * nodes * words, 0);
    for (size_t row = 0; row < static_cast<size_t>(batch) * nodes; ++row) {
        const size_t i = row % static_cast<size_t>(nodes);
        if (i > 0) std::copy_n(mask.begin() + (row - 1 - i / 2) * words, words, mask.begin() + row * words);
        mask[row * words + i / 64] |= uint64_t{1} << (i % 64);
    }
    const size_t rows = static_cast<size_t>(batch) * nodes * heads;
    const size_t weights = static_cast<size_t>(heads) * KDT_KV_LORA_RANK * KDT_V_HEAD_DIM;
    kdt_verify_mla_params p = {};
    p.q_nope = buffers->of(normals(random, rows * KDT_QK_NOPE_HEAD_DIM));
    p.q_pe = buffers->of(normals(random, rows * KDT_QK_ROPE_HEAD_DIM));
    p.w_uk = buffers->of(normals(random, weights));
    p.w_uv = buffers->of(normals(random, weights));
    p.kv_cache =
        buffers->of(normals(random, table.size() * page_size * size_t{KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM}));
    p.block_table = buffers->of(table);
    p.seq_lens = buffers->of(std::vector<int32_t>(static_cast<size_t>(batch), prefix));
    p.tree_mask = buffers->of(mask);
    p.num_nodes = buffers->of(std::vector<int32_t>(static_cast<size_t>(batch), nodes));
    p.out = buffers->space<uint16_t>(rows * KDT_V_HEAD_DIM);
    p.lse = buffers->space<float>(rows);
    p.status = buffers->space<int32_t>(static_cast<size_t>(batch));
    p.batch = batch;
    p.max_nodes = nodes;
    p.num_qo_heads = heads;
    p.qk_nope_head_dim = KDT_QK_NOPE_HEAD_DIM;
    p.qk_rope_head_dim = KDT_QK_ROPE_HEAD_DIM;
    p.kv_lora_rank = KDT_KV_LORA_RANK;
    p.v_head_dim = KDT_V_HEAD_DIM;
    p.num_pages = batch * pages;
    p.page_size = page_size;
    p.max_pages_per_seq = pages;
    p.mode = mode;
    p.softmax_scale = 0.0721687836f;
    return prepared(buffers, p, kdt_verify_mla_workspace_size, kdt_verify_mla);
}

Prepared draft_topk(int32_t rows, int32_t vocab_size, int32_t topk) {
    Random random(4);
    auto buffers = std::make_shared<Buffers>();
    const size_t answers = static_cast<size_t>(rows) * topk;
    kdt_draft_topk_params p = {};
    p.logits = buffers->of(normals(random, static_cast<size_t>(rows) * vocab_size));
    p.topk_log_probs = buffers->space<float>(answers);
    p.topk_token_ids = buffers->space<int32_t>(answers);
    p.status = buffers->space<int32_t>(static_cast<size_t>(rows));
    p.rows = rows;
    p.vocab_size = vocab_size;
    p.topk = topk;
    p.logits_dtype = KDT_BF16;
    return prepared(buffers, p, kdt_draft_topk_workspace_size, kdt_draft_topk);
}

// Nodes beyond the horizon are accepted, so that no target is a source and each call moves the same rows.
Prepared kv_compact(int32_t layers, int32_t batch, int32_t horizon, int32_t page_size) {
    Random random(5);
    auto buffers = std::make_shared<Buffers>();
    const int32_t prefix = 60;
    const int32_t pages = (prefix + 2 * horizon + 1 + page_size - 1) / page_size;
    std::vector<int32_t> table, path;
    for (int32_t k = 0; k < batch * pages; ++k) table.push_back(k);
    for (size_t k = table.size() - 1; k > 0; --k)
        std::swap(table[k], table[static_cast<size_t>(random.below(static_cast<int32_t>(k) + 1))]);
    for (int32_t b = 0; b < batch; ++b)
        for (int32_t k = 0; k <= horizon; ++k) path.push_back(k == 0 ? 0 : horizon + k);
    const size_t row = KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM;
    kdt_kv_compact_params p = {};
    p.kv_cache = buffers->of(normals(random, static_cast<size_t>(layers) * table.size() * page_size * row));
    p.block_table = buffers->of(table);
    p.seq_lens = buffers->of(std::vector<int32_t>(static_cast<size_t>(batch), prefix));
    p.accepted_path = buffers->of(path);
    p.status = buffers->space<int32_t>(static_cast<size_t>(batch));
    p.batch = batch;
    p.draft_horizon = horizon;
    p.num_layers = layers;
    p.num_pages = batch * pages;
    p.page_size = page_size;
    p.max_pages_per_seq = pages;
    p.row_bytes = static_cast<int32_t>(row * sizeof(uint16_t));
    return prepared(buffers, p, kdt_kv_compact_workspace_size, kdt_kv_compact);
}

std::string text(std::initializer_list<std::pair<const char*, int32_t>> sizes) {
    std::string out;
    for (const auto& [name, size] : sizes) out += (out.empty() ? "" : " ") + std::string(name) + std::to_string(size);
    return out;
}

}  // namespace

std::vector<Workload> workloads() {
    std::vector<Workload> all;
    for (const auto& [b, d, k, budget] : std::vector<std::array<int32_t, 4>>{
             {1, 7, 16, 15}, {1, 7, 16, 64}, {1, 15, 64, 256}, {1, 15, 64, 1024}, {32, 15, 64, 256}})
        all.push_back({"tree_build", text({{"B", b}, {"D", d}, {"K", k}, {"budget", budget}}),
                       [b = b, d = d, k = k, budget = budget] { return tree_build(b, d, k, budget); }});
    for (const auto& [b, n, d] :
         std::vector<std::array<int32_t, 3>>{{1, 16, 15}, {1, 257, 15}, {1, 1025, 15}, {32, 257, 15}})
        all.push_back({"tree_accept", text({{"B", b}, {"N", n}, {"D", d}}),
                       [b = b, n = n, d = d] { return tree_accept(b, n, d); }});
    const bool cuda = std::string(device::kBackend) == "cuda";
    std::vector<std::array<int32_t, 5>> attention = {{1, 16, 8, 0, 64}, {1, 16, 8, 512, 64}, {2, 33, 8, 256, 1}};
    if (cuda)
        attention = {{1, 16, 16, 4096, 64}, {1, 64, 128, 4096, 64}, {8, 64, 16, 16384, 64}, {8, 64, 16, 16384, 1}};
    for (const auto& [b, n, h, p, page] : attention)
        all.push_back({"verify_attn", text({{"B", b}, {"N", n}, {"H", h}, {"P", p}, {"page", page}}),
                       [b = b, n = n, h = h, p = p, page = page] { return verify_attn(b, n, h, p, page); }});
    for (const int32_t rows : {1024, 32768})
        all.push_back({"merge_attn_states", text({{"rows", rows}}), [rows = rows] { return merge_attn_states(rows); }});
    std::vector<std::array<int32_t, 4>> projected = {{1, 16, 4, 128}, {1, 129, 4, 128}};
    if (cuda) projected = {{1, 64, 16, 4096}, {1, 256, 16, 4096}, {1, 1025, 16, 4096}};
    for (const auto& [b, n, h, p] : projected)
        for (const auto& [name, mode] :
             {std::pair<const char*, int32_t>{"absorb", KDT_MLA_ABSORB}, {"mha", KDT_MLA_MHA}})
            all.push_back({"verify_mla", text({{"B", b}, {"N", n}, {"H", h}, {"P", p}}) + " " + name,
                           [b = b, n = n, h = h, p = p, mode = mode] { return verify_mla(b, n, h, p, mode); }});
    for (const auto& [rows, vocab, k] : std::vector<std::array<int32_t, 3>>{{7, 32000, 16}, {15, 163840, 64}})
        all.push_back({"draft_topk", text({{"rows", rows}, {"V", vocab}, {"K", k}}),
                       [rows = rows, vocab = vocab, k = k] { return draft_topk(rows, vocab, k); }});
    for (const auto& [l, b, page] :
         std::vector<std::array<int32_t, 3>>{{1, 1, 64}, {1, 32, 64}, {1, 32, 1}, {61, 1, 64}})
        all.push_back({"kv_compact", text({{"L", l}, {"B", b}, {"D", 15}, {"page", page}}),
                       [l = l, b = b, page = page] { return kv_compact(l, b, 15, page); }});
    return all;
}
