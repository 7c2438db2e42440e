// SPDX-License-Identifier: Apache-2.0
//
// verify_attn: softmax attention in f32 with one running maximum and sum a query row ("online" softmax).
//
// The rows (node, head) of a request are cut into blocks. A block walks over the request's slots in tiles: a tile's
// latents are gathered and widened once, then each row takes the slots that it sees. A slot that a row does not see
// never enters its arithmetic, so what it holds, NaN included, cannot reach the row. The running maximum rises slot by
// slot, not tile by tile: a row's bits depend on the sequence of latents it sees, not on where in the tree or in a tile
// they stand. So a node gets the bits that plain decoding gives its token.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/checks.h"
#include "core/workspace.h"
#include "cpu/parallel.h"
#include "cpu/verify_attn_loops.h"
#include "kdtree/kdtree.h"

namespace kdt {
namespace {

constexpr int32_t kRowBlock = 16;
// Blocks in flight at once; the workspace does not depend on the machine's number of threads.
constexpr int64_t kMaxLanes = 64;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Scratch of one block.
struct Lane {
    float tile[kTile][kHeadDim];
    float query[kRowBlock][kHeadDim];  // softmax_scale applied
    float sum_of_values[kRowBlock][kRank];
    float maximum[kRowBlock];
    float sum[kRowBlock];
};

int64_t blocks_per_request(const kdt_verify_attn_params& p) {
    return (int64_t{p.max_nodes} * p.num_qo_heads + kRowBlock - 1) / kRowBlock;
}

int64_t lanes(const kdt_verify_attn_params& p) {
    return std::min(kMaxLanes, p.batch * blocks_per_request(p));
}

size_t needed_workspace(const kdt_verify_attn_params& p) {
    Workspace measure;
    measure.take<Lane>(static_cast<size_t>(lanes(p)));
    return measure.bytes();
}

// What a request asks for, or why it is refused.
struct Request {
    int32_t status;
    int32_t prefix;
    int32_t nodes;
    int64_t first_slot;  // of those attended: 0, or behind the prefix
};

Request examine(const kdt_verify_attn_params& p, int64_t b) {
    const int32_t prefix = p.seq_lens[b];
    const int32_t nodes = p.num_nodes != nullptr ? p.num_nodes[b] : p.max_nodes;
    if (nodes < 1 || nodes > p.max_nodes) return {KDT_REQ_BAD_COUNT, 0, 0, 0};
    const int64_t slots = int64_t{prefix} + nodes;
    if (prefix < 0 || slots > int64_t{p.max_pages_per_seq} * p.page_size) return {KDT_REQ_BAD_LENGTH, 0, 0, 0};
    const int64_t first_slot = p.tail_only != 0 ? prefix : 0;
    const int32_t* const pages = p.block_table + b * p.max_pages_per_seq;
    for (int64_t k = first_slot / p.page_size; k <= (slots - 1) / p.page_size; ++k)
        if (pages[k] < 0 || pages[k] >= p.num_pages) return {KDT_REQ_BAD_PAGE, 0, 0, 0};
    return {0, prefix, nodes, first_slot};
}

// One block of rows of one request.
class Block {
  public:
    Block(const kdt_verify_attn_params& p, int64_t b, int64_t block, Lane& lane)
        : p_(p),
          lane_(lane),
          b_(b),
          words_(mask_words(p.max_nodes)),
          first_row_(block * kRowBlock),
          num_rows_(
              static_cast<int32_t>(std::min<int64_t>(kRowBlock, int64_t{p.max_nodes} * p.num_qo_heads - first_row_))) {}

    void run(const Request& request) {
        for (int32_t r = 0; r < num_rows_; ++r) begin_row(r);
        if (request.status == 0 && anything_seen(request)) {
            const int64_t slots = int64_t{request.prefix} + request.nodes;
            for (int64_t first = request.first_slot; first < slots; first += kTile) {
                const int32_t count = static_cast<int32_t>(std::min<int64_t>(kTile, slots - first));
                load_tile(first, count);
                for (int32_t r = 0; r < num_rows_; ++r) take_tile(request, r, first, count);
            }
        }
        for (int32_t r = 0; r < num_rows_; ++r) end_row(r);
    }

  private:
    int64_t node_of(int32_t r) const { return (first_row_ + r) / p_.num_qo_heads; }
    int64_t row_at(int32_t r) const { return b_ * p_.max_nodes * p_.num_qo_heads + first_row_ + r; }
    const uint64_t* mask_row(int32_t r) const { return p_.tree_mask + (b_ * p_.max_nodes + node_of(r)) * words_; }

    // Whether row r sees node j's slot; bits of pads count for nothing, and neither do the rows of pads.
    bool sees_node(const Request& request, int32_t r, int64_t j) const {
        return node_of(r) < request.nodes && (mask_row(r)[j / 64] >> (j % 64) & 1) != 0;
    }

    bool is_pad(const Request& request, int32_t r) const {
        for (int32_t j = 0; j < request.nodes; ++j)
            if (sees_node(request, r, j)) return false;
        return true;
    }

    bool anything_seen(const Request& request) {
        bool seen = false;
        for (int32_t r = 0; r < num_rows_; ++r) {
            pad_[r] = is_pad(request, r);
            seen = seen || !pad_[r];
        }
        return seen;
    }

    void begin_row(int32_t r) {
        widen(static_cast<const uint16_t*>(p_.q_nope) + row_at(r) * kRank, kRank, lane_.query[r]);
        widen(static_cast<const uint16_t*>(p_.q_pe) + row_at(r) * kRope, kRope, lane_.query[r] + kRank);
        for (float& value : lane_.query[r]) value *= p_.softmax_scale;
        std::fill_n(lane_.sum_of_values[r], kRank, 0.0f);
        lane_.maximum[r] = -kInfinity;
        lane_.sum[r] = 0.0f;
    }

    void load_tile(int64_t first, int32_t count) {
        const int32_t* const pages = p_.block_table + b_ * p_.max_pages_per_seq;
        for (int32_t s = 0; s < count; ++s) {
            const int64_t slot = first + s;
            const int64_t token = int64_t{pages[slot / p_.page_size]} * p_.page_size + slot % p_.page_size;
            widen(static_cast<const uint16_t*>(p_.kv_cache) + token * kHeadDim, kHeadDim, lane_.tile[s]);
        }
    }

    void take_tile(const Request& request, int32_t r, int64_t first, int32_t count) {
        if (pad_[r]) return;
        int32_t slots[kTile];
        int32_t seen = 0;
        for (int32_t s = 0; s < count; ++s)
            if (first + s < request.prefix || sees_node(request, r, first + s - request.prefix)) slots[seen++] = s;
        if (seen == 0) return;

        float scores[kTile];
        dot(lane_.query[r], lane_.tile, slots, seen, scores);
        for (int32_t first_of_run = 0, k = 0; first_of_run < seen; first_of_run = k) {
            if (scores[first_of_run] > lane_.maximum[r]) raise_maximum(r, scores[first_of_run]);
            for (k = first_of_run + 1; k < seen && !(scores[k] > lane_.maximum[r]);) ++k;
            take_run(r, scores + first_of_run, slots + first_of_run, k - first_of_run);
        }
    }

    void raise_maximum(int32_t r, float maximum) {
        const float factor = std::exp(lane_.maximum[r] - maximum);
        lane_.sum[r] *= factor;
        decay(factor, lane_.sum_of_values[r]);
        lane_.maximum[r] = maximum;
    }

    void take_run(int32_t r, float* scores, const int32_t* slots, int32_t count) {
        exponentiate(scores, count, lane_.maximum[r]);
        for (int32_t k = 0; k < count; ++k) lane_.sum[r] += scores[k];
        accumulate(scores, lane_.tile, slots, count, lane_.sum_of_values[r]);
    }

    // A row that saw nothing has sum 0: out 0, lse -inf.
    void end_row(int32_t r) {
        const float sum = lane_.sum[r];
        uint16_t* const out = static_cast<uint16_t*>(p_.out) + row_at(r) * kRank;
        if (sum == 0.0f)
            std::fill_n(out, kRank, uint16_t{0});
        else
            narrow(lane_.sum_of_values[r], 1.0f / sum, out);
        p_.lse[row_at(r)] = sum == 0.0f ? -kInfinity : lane_.maximum[r] + std::log(sum);
    }

    const kdt_verify_attn_params& p_;
    Lane& lane_;
    const int64_t b_;
    const int32_t words_;
    const int64_t first_row_;
    const int32_t num_rows_;
    bool pad_[kRowBlock] = {};
};

double estimated_work_ns(const kdt_verify_attn_params& p) {
    double slots = 0.0;
    for (int32_t b = 0; b < p.batch; ++b)
        slots += (p.tail_only != 0 ? 0 : std::max(0, p.seq_lens[b])) + static_cast<double>(p.max_nodes);
    return 0.05 * (kHeadDim + kRank) * slots * p.max_nodes * p.num_qo_heads;
}

void check_path(const kdt_verify_attn_params& p) {
    if (p.path == KDT_ATTN_HOPPER) fail(KDT_UNSUPPORTED, "verify_attn: the CPU library has no Hopper path");
}

}  // namespace
}  // namespace kdt

extern "C" kdt_status kdt_verify_attn_workspace_size(const kdt_verify_attn_params* params, size_t* bytes) {
    return kdt::guarded([&] {
        const kdt_verify_attn_params p = kdt::read_params(params);
        kdt::check_bytes_out("verify_attn", bytes);
        kdt::check_verify_attn_sizes(p);
        kdt::check_path(p);
        *bytes = kdt::needed_workspace(p);
    });
}

extern "C" kdt_status kdt_verify_attn(const kdt_verify_attn_params* params) {
    return kdt::guarded([&] {
        const kdt_verify_attn_params p = kdt::read_params(params);
        kdt::check_verify_attn(p);
        kdt::check_path(p);
        kdt::check_workspace("verify_attn", p.workspace, p.workspace_size, kdt::needed_workspace(p));
        if (p.batch == 0) return;
        kdt::Workspace workspace(p.workspace);
        kdt::Lane* const lanes = workspace.take<kdt::Lane>(static_cast<size_t>(kdt::lanes(p)));
        const int64_t per_request = kdt::blocks_per_request(p);
        const int64_t blocks = p.batch * per_request;
        const int threads = std::min<int>(kdt::lanes(p), kdt::plan_threads(blocks, kdt::estimated_work_ns(p)));
        kdt::parallel_for(blocks, threads, [&](int64_t item, int lane) {
            const int64_t b = item / per_request;
            const kdt::Request request = kdt::examine(p, b);
            if (p.status != nullptr && item % per_request == 0) p.status[b] = request.status;
            kdt::Block(p, b, item % per_request, lanes[lane]).run(request);
        });
    });
}
