// SPDX-License-Identifier: Apache-2.0
//
// Last step of tree_build: the selected nodes as the arrays of kdtree.h, pads included.
#ifndef KDTREE_CUDA_TREE_BUILD_EMIT_CUH
#define KDTREE_CUDA_TREE_BUILD_EMIT_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/expand.cuh"
#include "cuda/tree_build/layout.cuh"

namespace kdt::cuda::tree_build {

// Outputs and remaining inputs of one request.
struct Output {
    const int32_t* draft_tokens;
    int32_t root_token;
    int32_t seq_len;
    int32_t* token_ids;
    int32_t* parents;
    int32_t* depths;
    int32_t* positions;
    int32_t* first_child;
    int32_t* next_sibling;
    uint64_t* tree_mask;
    float* scores;
    int32_t* dfs_order;  // may be NULL

    __device__ Output(const kdt_tree_build_params& p, const Sizes& sizes, int64_t b)
        : draft_tokens(p.topk_token_ids + b * sizes.horizon * sizes.topk),
          root_token(p.root_token_ids[b]),
          seq_len(p.seq_lens[b]),
          token_ids(p.token_ids + b * sizes.nodes),
          parents(p.parents + b * sizes.nodes),
          depths(p.depths + b * sizes.nodes),
          positions(p.positions + b * sizes.nodes),
          first_child(p.first_child + b * sizes.nodes),
          next_sibling(p.next_sibling + b * sizes.nodes),
          tree_mask(p.tree_mask + b * sizes.nodes * sizes.words),
          scores(p.scores + b * sizes.nodes),
          dfs_order(p.dfs_order == nullptr ? nullptr : p.dfs_order + b * sizes.nodes) {}
};

// Everything of a node but its mask row; leaves the parents' indices in memory.up. Returns whether a node of the last
// column was selected where the budget could have reached beyond it.
template <int kThreads>
__device__ bool write_nodes(const Sizes& sizes, const SharedMemory& memory, const Forest& forest, int num_nodes,
                            const Output& out) {
    bool truncated = false;
    const auto link = [&](int slot) {
        const uint16_t index = memory.index[slot];
        return index == kNone ? -1 : static_cast<int32_t>(index);
    };
    for (int i = threadIdx.x; i < sizes.nodes; i += kThreads) {
        int32_t token = 0, parent = -1, depth = 0, first_child = -1, next_sibling = -1;
        float score = -INFINITY;
        if (i < num_nodes) {
            const int slot = memory.slot[i];
            depth = forest.depth[slot];
            token = out.root_token;
            if (i > 0) {
                const int rank = forest.rank[slot];
                token = out.draft_tokens[(depth - 1) * sizes.topk + rank];
                parent = memory.index[forest.parent[slot]];
                truncated |= rank == sizes.topk - 1 && rank < sizes.budget - depth;
                // Selected siblings are a prefix of their parent's children.
                if (slot + 1 < forest.count && forest.parent[slot + 1] == forest.parent[slot])
                    next_sibling = link(slot + 1);
            }
            const int child = forest.begin[slot];
            if (child < forest.begin[slot + 1]) first_child = link(child);
            // Only the conversion rounds; the root's score is 0, not -0.
            score = __ll2float_rn(-forest.cost[slot]) * 0x1p-40f;
            memory.up[i] = parent < 0 ? kNone : static_cast<uint16_t>(parent);
        }
        out.token_ids[i] = token;
        out.parents[i] = parent;
        out.depths[i] = depth;
        // Unsigned, because an absurd seq_lens must wrap rather than be undefined.
        out.positions[i] = static_cast<int32_t>(static_cast<uint32_t>(out.seq_len) + static_cast<uint32_t>(depth));
        out.first_child[i] = first_child;
        out.next_sibling[i] = next_sibling;
        out.scores[i] = score;
    }
    return __syncthreads_or(truncated);
}

// Mask rows, a word a thread: each climbs from its node to the root and keeps the bits of its own word. Rows need no
// order between them then. Several words are under way at once, since a climb is a chain of dependent reads.
template <int kThreads>
__device__ void write_mask(const Sizes& sizes, const SharedMemory& memory, int num_nodes, const Output& out) {
    constexpr int kTogether = 4;
    const int total = sizes.nodes * sizes.words;
    for (int base = threadIdx.x; base < total; base += kTogether * kThreads) {
        uint64_t bits[kTogether] = {};
        int node[kTogether];
        int word[kTogether];
        bool climbing = false;
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
            const int at = base + u * kThreads;
            node[u] = at / sizes.words;
            word[u] = at - node[u] * sizes.words;
            if (node[u] >= num_nodes) node[u] = kNone;
            climbing |= node[u] != kNone;
        }
        while (climbing) {
            climbing = false;
#pragma unroll
            for (int u = 0; u < kTogether; ++u) {
                if (node[u] == kNone) continue;
                if (node[u] / 64 == word[u]) bits[u] |= uint64_t{1} << (node[u] % 64);
                node[u] = memory.up[node[u]];
                climbing |= node[u] != kNone;
            }
        }
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
            const int at = base + u * kThreads;
            if (at < total) out.tree_mask[at] = bits[u];
        }
    }
}

template <int kThreads>
__device__ void write_dfs_order(Block<kThreads>& block, const Sizes& sizes, const SharedMemory& memory,
                                const Forest& forest, int num_nodes, const Output& out) {
    preorder(block, forest, memory.preorder, [&](int s) { return memory.index[s] != kNone; });
    for (int s = threadIdx.x; s < forest.count; s += kThreads)
        if (memory.index[s] != kNone) out.dfs_order[memory.preorder.order[s]] = memory.index[s];
    for (int i = num_nodes + threadIdx.x; i < sizes.nodes; i += kThreads) out.dfs_order[i] = -1;
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_EMIT_CUH
