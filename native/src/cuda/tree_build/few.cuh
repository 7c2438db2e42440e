// SPDX-License-Identifier: Apache-2.0
//
// Order and outputs of a small tree in one go: a thread a node found, everything about it in registers.
#ifndef KDTREE_CUDA_TREE_BUILD_FEW_CUH
#define KDTREE_CUDA_TREE_BUILD_FEW_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/emit.cuh"
#include "cuda/tree_build/layout.cuh"
#include "cuda/tree_build/nodes.cuh"
#include "cuda/tree_build/order.cuh"

namespace kdt::cuda::tree_build {

// Slots that are so few, and nodes that fit into one word of a mask row but for the last.
constexpr int kFewSlots = 256;
constexpr int kFewNodes = 65;

struct FewShared {
    __align__(16) uint32_t key[kFewSlots];  // cost, cut off, and slot
    int64_t cost[kFewSlots];                // in order of key
    uint16_t slot[kFewSlots];
};

// Writes the tree, but num_nodes and status. No slot costs more than `limit`. Returns the status bits.
template <int kThreads>
__device__ int finish_few(const kdt_tree_build_params& p, const Sizes& sizes, const RequestInputs& inputs,
                          int64_t limit, const Rows& rows, const Branches& branches, const Slots& slots,
                          FewShared& shared) {
    static_assert(kThreads >= kFewSlots, "a thread a slot");
    constexpr int kSlotBits = 8;
    constexpr int kLanes = 2;  // that count for one slot
    const int thread = threadIdx.x;
    const int count = slots.count;
    const int nodes = min(count, sizes.nodes);
    const int64_t first = static_cast<int64_t>(blockIdx.x) * sizes.nodes;
    const RunNodes run_nodes = {branches, slots, nullptr};

    // Keys differ, so their ranks are places. Costs that differ only below the cut come in some order.
    const int shift = max(0, bit_length(limit) - (32 - kSlotBits));
    uint32_t key = 0xffffffffu;
    if (thread < count) {
        const int u = slots.branch[thread];
        const int depth = branches.depth(u) + thread - branches.slot[u];
        const int64_t cost = branches.excess[u] + rows.spine[depth];
        slots.cost[thread] = cost;
        key = static_cast<uint32_t>(cost >> shift) << kSlotBits | static_cast<uint32_t>(thread);
    }
    if (thread < kFewSlots) shared.key[thread] = key;
    __syncthreads();
    const int lane = thread % kLanes;
#pragma unroll 1
    for (int base = 0; base < count; base += kThreads / kLanes) {
        const int s = base + thread / kLanes;
        const uint32_t own = shared.key[s];
        const int64_t cost = slots.cost[s];  // of no use beyond the last slot
        uint32_t before = 0;
#pragma unroll 4
        for (int k = lane; k < (count + 3) / 4; k += kLanes) {
            const uint4 other = reinterpret_cast<const uint4*>(shared.key)[k];
            before +=
                (other.x < own ? 1 : 0) + (other.y < own ? 1 : 0) + (other.z < own ? 1 : 0) + (other.w < own ? 1 : 0);
        }
        before += __shfl_xor_sync(kAllLanes, before, 1);
        if (lane == 0 && s < count) {
            shared.slot[before] = static_cast<uint16_t>(s);
            shared.cost[before] = cost;
        }
    }
    __syncthreads();

    // Within a group of equal keys, by (cost, rank tuple).
    int index = thread;
    RunNodes::Place at = {};
    int64_t cost = 0;
    int above = kNone;
    int sibling = kNone;
    bool truncated = false;
    if (thread < count) {
        const int s = shared.slot[thread];
        cost = shared.cost[thread];
        const auto other_first = [&](int i) {
            const int64_t other = shared.cost[i];
            return other != cost ? other < cost : slot_precedes(branches, slots, shared.slot[i], s);
        };
#pragma unroll 1
        for (int i = thread - 1; i >= 0 && shared.cost[i] >> shift == cost >> shift; --i)
            if (!other_first(i)) --index;
#pragma unroll 1
        for (int i = thread + 1; i < count && shared.cost[i] >> shift == cost >> shift; ++i)
            if (other_first(i)) ++index;
        const bool selected = index < nodes;
        slots.index[s] = selected ? static_cast<uint16_t>(index) : kNone;
        at = run_nodes.place_of(s);
        above = run_nodes.slot_above(at);
        sibling = run_nodes.slot_of_sibling(at);
        truncated = selected && index > 0 && at.rank == sizes.topk - 1 && at.rank < sizes.budget - at.depth;
    }
    truncated = __syncthreads_or(truncated);

    const auto link = [&](int slot) { return link_to(run_nodes.index_at(slot)); };
    if (thread < count && index < nodes) {
        const int64_t to = first + index;
        p.token_ids[to] = index == 0 ? inputs.root_token : inputs.draft_tokens[(at.depth - 1) * sizes.topk + at.rank];
        p.parents[to] = link(above);
        p.depths[to] = at.depth;
        p.positions[to] = inputs.position(at.depth);
        p.first_child[to] = link(run_nodes.slot_of_child(at));
        p.next_sibling[to] = link(sibling);
        p.scores[to] = score_of(cost);
    }
    // Rows of the mask, by the other threads. All above a node have a lower index, so only its own may be 64; it then
    // falls on the root's bit, which is set in every row.
#pragma unroll 1
    for (int i = kThreads - 1 - thread; i < count; i += kThreads) {
        const int s = shared.slot[i];
        const int node = slots.index[s];
        if (node == kNone) continue;
        uint64_t row = 0;
        run_nodes.climb(run_nodes.place_of(s), [&](int other) { row |= uint64_t{1} << (other & 63); });
        uint64_t* const to = p.tree_mask + (first + node) * sizes.words;
        to[0] = row;
        if (sizes.words == 2) to[1] = node / 64;
    }
#pragma unroll 1
    for (int i = nodes + thread; i < sizes.nodes; i += kThreads) {
        write_pad(p, inputs, first + i);
        for (int w = 0; w < sizes.words; ++w) p.tree_mask[(first + i) * sizes.words + w] = 0;
    }
    return truncated ? KDT_REQ_TRUNCATED : 0;
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_FEW_CUH
