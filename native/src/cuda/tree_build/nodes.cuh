// SPDX-License-Identifier: Apache-2.0
//
// The nodes in their order, as the search or the slow path knows them: what the outputs are written from. Both kinds
// answer the same questions; links are node indices, kNone where there is none.
#ifndef KDTREE_CUDA_TREE_BUILD_NODES_CUH
#define KDTREE_CUDA_TREE_BUILD_NODES_CUH

#include <cstdint>

#include "cuda/tree_build/layout.cuh"

namespace kdt::cuda::tree_build {

// Nodes of order_slots().
struct RunNodes {
    const Branches& branches;
    const Slots& slots;
    const uint16_t* slot_of;

    struct Place {
        int slot;
        int branch;
        int along;  // the run
        int depth;
        int rank;
    };

    __device__ Place place(int i) const { return place_of(slot_of[i]); }
    __device__ Place place_of(int slot) const {
        const int branch = slots.branch[slot];
        const int along = slot - branches.slot[branch];
        const uint32_t first = branches.place[branch];
        return {slot, branch, along, Branches::depth_of(first) + along, along == 0 ? Branches::rank_of(first) : 0};
    }

    __device__ int64_t cost(const Place& at) const { return slots.cost[at.slot]; }

    // Slots that kin has, selected or not.
    __device__ int slot_above(const Place& at) const {
        if (at.depth == 0) return kNone;
        if (at.along > 0) return at.slot - 1;
        const int above = branches.parent[at.branch];
        return branches.slot[above] + at.depth - 1 - branches.depth(above);
    }
    __device__ int slot_of_child(const Place& at) const {
        const int next = at.slot + 1;
        return next < slots.count && slots.branch[next] == at.branch ? next : kNone;
    }
    __device__ int slot_of_sibling(const Place& at) const {
        int next = kNone;
        if (at.along > 0) {
            next = slots.child[at.slot - 1];
        } else if (at.branch > 0 && at.branch + 1 < branches.count) {
            // Branches of one node are neighbours, in order of rank.
            next = at.branch + 1;
            if (branches.parent[next] != branches.parent[at.branch] || branches.depth(next) != at.depth ||
                branches.rank(next) != at.rank + 1)
                next = kNone;
        }
        return next == kNone ? kNone : branches.slot[next];
    }

    __device__ uint16_t index_at(int slot) const { return slot == kNone ? kNone : slots.index[slot]; }
    __device__ uint16_t parent(const Place& at) const { return index_at(slot_above(at)); }
    __device__ uint16_t first_child(const Place& at) const { return index_at(slot_of_child(at)); }
    __device__ uint16_t next_sibling(const Place& at) const { return index_at(slot_of_sibling(at)); }

    // Calls visit(index) for the node and all above it.
    template <class Visit>
    __device__ void climb(const Place& at, Visit visit) const {
        int branch = at.branch;
        int slot = at.slot;
        int along = at.along;
        while (true) {
#pragma unroll 4
            for (; along >= 0; --along, --slot) visit(slots.index[slot]);
            if (branch == 0) return;
            const int above = branches.parent[branch];
            along = branches.depth(branch) - 1 - branches.depth(above);
            slot = branches.slot[above] + along;
            branch = above;
        }
    }
};

// Nodes of the slow path.
struct LevelNodes {
    const LevelMemory& memory;
    const Forest& forest;
    const uint16_t* slot_of;

    struct Place {
        int slot;
        int depth;
        int rank;
    };

    __device__ Place place(int i) const {
        const int slot = slot_of[i];
        return {slot, forest.depth[slot], forest.rank[slot]};
    }

    __device__ int64_t cost(const Place& at) const { return forest.cost[at.slot]; }
    __device__ uint16_t parent(const Place& at) const {
        return at.depth == 0 ? kNone : memory.index[forest.parent[at.slot]];
    }
    __device__ uint16_t first_child(const Place& at) const {
        const int child = forest.begin[at.slot];
        return child < forest.begin[at.slot + 1] ? memory.index[child] : kNone;
    }
    __device__ uint16_t next_sibling(const Place& at) const {
        // Selected siblings are a prefix of their parent's children.
        const int next = at.slot + 1;
        return at.depth > 0 && next < forest.count && forest.parent[next] == forest.parent[at.slot] ? memory.index[next]
                                                                                                    : kNone;
    }
};

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_NODES_CUH
