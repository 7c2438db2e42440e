// SPDX-License-Identifier: Apache-2.0
//
// Last step of tree_build: the selected nodes as the arrays of kdtree.h, pads included.
#ifndef KDTREE_CUDA_TREE_BUILD_EMIT_CUH
#define KDTREE_CUDA_TREE_BUILD_EMIT_CUH

#include <cstdint>

#include "core/path_mass.h"
#include "cuda/block.cuh"
#include "cuda/tree_build/layout.cuh"

namespace kdt::cuda::tree_build {

// What the outputs need of the inputs, loaded early.
struct RequestInputs {
    const int32_t* draft_tokens;  // [horizon, topk], in shared memory where it fits
    int32_t root_token;
    int32_t seq_len;

    __device__ RequestInputs(const kdt_tree_build_params& p, const Sizes& sizes, int64_t b)
        : draft_tokens(p.topk_token_ids + b * sizes.horizon * sizes.topk),
          root_token(p.root_token_ids[b]),
          seq_len(p.seq_lens[b]) {}
};

// Everything of a node but mask rows of more than two words; leaves the parents' indices in memory.up. Returns, after a
// barrier, whether a node of the last column was selected where the budget could have reached beyond it.
// A node has three threads: for its links, for the rest, and for a short mask row.
template <int kThreads, class Nodes>
__device__ bool write_nodes(const kdt_tree_build_params& p, const Sizes& sizes, const SharedMemory& memory,
                            const RequestInputs& inputs, const Nodes& nodes, int num_nodes, int64_t b) {
    bool truncated = false;
    const bool wants_links = p.dfs_order != nullptr;
    const auto link = [](uint16_t index) { return index == kNone ? -1 : static_cast<int32_t>(index); };
    const auto write_links = [&](int i, int64_t at) {
        uint16_t child = kNone, sibling = kNone;
        if (i < num_nodes) {
            const auto place = nodes.place(i);
            child = nodes.first_child(place);
            sibling = nodes.next_sibling(place);
            if (wants_links) {
                memory.links.child[i] = child;
                memory.links.sibling[i] = sibling;
            }
        }
        p.first_child[at] = link(child);
        p.next_sibling[at] = link(sibling);
    };
    const auto write_rest = [&](int i, int64_t at) {
        int32_t token = 0;
        uint16_t parent = kNone;
        int depth = 0;
        float score = -INFINITY;
        if (i < num_nodes) {
            const auto place = nodes.place(i);
            depth = place.depth;
            token = i == 0 ? inputs.root_token : inputs.draft_tokens[(depth - 1) * sizes.topk + place.rank];
            truncated |= i > 0 && place.rank == sizes.topk - 1 && place.rank < sizes.budget - depth;
            parent = nodes.parent(place);
            // Only the conversion rounds; the root's score is 0, not -0.
            score = __ll2float_rn(-nodes.cost(place)) * 0x1p-40f;
            memory.up[i] = parent;
        }
        p.token_ids[at] = token;
        p.parents[at] = link(parent);
        p.depths[at] = depth;
        // Unsigned, because an absurd seq_lens must wrap rather than be undefined.
        p.positions[at] = static_cast<int32_t>(static_cast<uint32_t>(inputs.seq_len) + static_cast<uint32_t>(depth));
        p.scores[at] = score;
    };
    const auto write_short_row = [&](int i, int64_t at) {
        uint64_t low = 0;
        uint64_t high = 0;
        if (i < num_nodes) {
            nodes.climb(i, [&](int node) {
                const uint64_t bit = uint64_t{1} << (node & 63);
                low |= node < 64 ? bit : 0;
                high |= node < 64 ? 0 : bit;
            });
        }
        p.tree_mask[at * sizes.words] = low;
        if (sizes.words == 2) p.tree_mask[at * 2 + 1] = high;
    };
    const int stride = (sizes.nodes + kWarpSize - 1) / kWarpSize * kWarpSize;
    const int roles = sizes.words <= 2 ? 3 : 2;
    for (int j = threadIdx.x; j < roles * stride; j += kThreads) {
        const int role = j < stride ? 0 : j < 2 * stride ? 1 : 2;
        const int i = j - role * stride;
        if (i >= sizes.nodes) continue;
        const int64_t at = b * sizes.nodes + i;
        if (role == 0)
            write_links(i, at);
        else if (role == 1)
            write_rest(i, at);
        else
            write_short_row(i, at);
    }
    return __syncthreads_or(truncated);
}

// expected_lengths: a prefix sum of the nodes' masses, integers as well.
template <int kThreads, class Nodes>
__device__ void write_expected_lengths(Block<kThreads>& block, const Sizes& sizes, const Nodes& nodes, int num_nodes,
                                       float* out) {
    int64_t before = 0;
    for (int base = 0; base < sizes.nodes; base += kThreads) {
        const int i = base + threadIdx.x;
        int64_t total;
        const int64_t through =
            before + block.inclusive_scan_wide(i < num_nodes ? path_mass(nodes.cost(nodes.place(i))) : 0, total);
        if (i < sizes.nodes) out[i] = expected_length(through);
        before += total;
    }
}

// dfs_order from the links: every node knows its successor, and doubling the stride of the jumps tells each how many
// come after it.
template <int kThreads>
__device__ void write_dfs_order(const Sizes& sizes, const SharedMemory& memory, int num_nodes, int32_t* out) {
    const Links& links = memory.links;
    for (int i = threadIdx.x; i < num_nodes; i += kThreads) {
        uint32_t next = links.child[i];
        for (int node = i; next == kNone && node != kNone; node = memory.up[node]) next = links.sibling[node];
        links.jump[i] = 1u << 16 | next;  // nodes up to there, and where that is
    }
    __syncthreads();
    uint32_t* now = links.jump;
    uint32_t* next = links.next_jump;
    for (int reach = 1; reach < num_nodes; reach *= 2) {
        for (int i = threadIdx.x; i < num_nodes; i += kThreads) {
            const uint32_t jump = now[i];
            const uint32_t to = jump & 0xffff;
            next[i] = to == kNone ? jump : (jump & 0xffff0000u) + now[to];
        }
        uint32_t* const old = now;
        now = next;
        next = old;
        __syncthreads();
    }
    for (int i = threadIdx.x; i < num_nodes; i += kThreads) out[num_nodes - (now[i] >> 16)] = i;
    for (int i = num_nodes + threadIdx.x; i < sizes.nodes; i += kThreads) out[i] = -1;
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_EMIT_CUH
