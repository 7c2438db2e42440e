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

    // Unsigned, because an absurd seq_lens must wrap rather than be undefined.
    __device__ int32_t position(int depth) const {
        return static_cast<int32_t>(static_cast<uint32_t>(seq_len) + static_cast<uint32_t>(depth));
    }
};

__device__ __forceinline__ int32_t link_to(uint16_t index) {
    return index == kNone ? -1 : static_cast<int32_t>(index);
}

// Only the conversion rounds; the root's score is 0, not -0.
__device__ __forceinline__ float score_of(int64_t cost) {
    return __ll2float_rn(-cost) * 0x1p-40f;
}

// A node of no tree, `at` in the arrays; its mask row is zero.
__device__ __forceinline__ void write_pad(const kdt_tree_build_params& p, const RequestInputs& inputs, int64_t at) {
    p.token_ids[at] = 0;
    p.parents[at] = -1;
    p.depths[at] = 0;
    p.positions[at] = inputs.position(0);
    p.first_child[at] = -1;
    p.next_sibling[at] = -1;
    p.scores[at] = -INFINITY;
}

// Everything of the nodes but mask rows; leaves the parents' indices in memory.up. Returns, after a barrier, whether a
// node of the last column was selected where the budget could have reached beyond it. A thread a node; the root, which
// is soon done, comes on top, since budgets are as a rule multiples of the block.
template <int kThreads, class Nodes>
__device__ bool write_nodes(const kdt_tree_build_params& p, const Sizes& sizes, const SharedMemory& memory,
                            const RequestInputs& inputs, const Nodes& nodes, int num_nodes, int64_t b) {
    bool truncated = false;
    const int64_t first = b * sizes.nodes;
    const auto write_links = [&](int i, uint16_t parent, uint16_t child, uint16_t sibling) {
        memory.up[i] = parent;
        if (p.dfs_order != nullptr) {
            memory.links.child[i] = child;
            memory.links.sibling[i] = sibling;
        }
        p.parents[first + i] = link_to(parent);
        p.first_child[first + i] = link_to(child);
        p.next_sibling[first + i] = link_to(sibling);
    };
    const auto write_rest = [&](int i, int32_t token, int depth, float score) {
        p.token_ids[first + i] = token;
        p.depths[first + i] = depth;
        p.positions[first + i] = inputs.position(depth);
        p.scores[first + i] = score;
    };
    if (threadIdx.x == kThreads - 1) {
        write_links(0, kNone, nodes.first_child(nodes.place(0)), kNone);
        write_rest(0, inputs.root_token, 0, 0.0f);
    }
    for (int i = 1 + threadIdx.x; i < num_nodes; i += kThreads) {
        const auto place = nodes.place(i);
        write_links(i, nodes.parent(place), nodes.first_child(place), nodes.next_sibling(place));
        write_rest(i, inputs.draft_tokens[(place.depth - 1) * sizes.topk + place.rank], place.depth,
                   score_of(nodes.cost(place)));
        truncated |= place.rank == sizes.topk - 1 && place.rank < sizes.budget - place.depth;
    }
    for (int i = num_nodes + threadIdx.x; i < sizes.nodes; i += kThreads) write_pad(p, inputs, first + i);
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
