// SPDX-License-Identifier: Apache-2.0
//
// From the nodes found to the outputs, by the usual path and by the slow one.
#ifndef KDTREE_CUDA_TREE_BUILD_FINISH_CUH
#define KDTREE_CUDA_TREE_BUILD_FINISH_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/cuda_check.h"
#include "cuda/tree_build/emit.cuh"
#include "cuda/tree_build/layout.cuh"
#include "cuda/tree_build/level_order.cuh"
#include "cuda/tree_build/mask.cuh"
#include "cuda/tree_build/nodes.cuh"
#include "cuda/tree_build/order.cuh"
#include "cuda/tree_build/rows.cuh"
#include "cuda/tree_build/slow_path.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda::tree_build {

struct Plan {
    Sizes sizes;
    size_t shared_bytes = 0;
    SharedMemory offsets;
    size_t request_bytes;  // of the workspace

    Plan(const kdt_tree_build_params& p, const Device& device)
        : sizes(p, device.shared_per_block >= 200 * 1024), offsets(shared_memory()) {
        Carve global(nullptr);
        GlobalMemory(global, sizes, nullptr);
        request_bytes = global.bytes();
    }

  private:
    SharedMemory shared_memory() {
        Carve shared(nullptr);
        const SharedMemory memory(shared, sizes);
        shared_bytes = shared.bytes();
        return memory;
    }
};

// What follows from the nodes in their order, but mask rows, num_nodes and status. Returns the status bits.
template <int kThreads, class Nodes>
__device__ int write_tree(Block<kThreads>& block, const kdt_tree_build_params& p, const Sizes& sizes,
                          const SharedMemory& memory, const RequestInputs& inputs, const Nodes& nodes, int num_nodes,
                          int64_t b) {
    const bool truncated = write_nodes<kThreads>(p, sizes, memory, inputs, nodes, num_nodes, b);
    if (p.expected_lengths != nullptr)
        write_expected_lengths(block, sizes, nodes, num_nodes, p.expected_lengths + b * sizes.nodes);
    if (p.dfs_order != nullptr) write_dfs_order<kThreads>(sizes, memory, num_nodes, p.dfs_order + b * sizes.nodes);
    return truncated ? KDT_REQ_TRUNCATED : 0;
}

__device__ inline void write_status(const kdt_tree_build_params& p, const Sizes& sizes, int num_nodes, int status) {
    if (num_nodes < sizes.nodes && (status & KDT_REQ_ERROR_MASK) == 0) status |= KDT_REQ_SHORT_TREE;
    if (threadIdx.x == 0) {
        p.num_nodes[blockIdx.x] = num_nodes;
        p.status[blockIdx.x] = status;
    }
}

// Functions that are rarely called stand apart from the kernel: most instructions run once a launch, and fetching them
// is much of the time, less where those that run lie close together.

// The slow path, from the rows on.
template <int kThreads>
__device__ __forceinline__ void build_slowly(const kdt_tree_build_params& p, const Plan& plan, unsigned char* shared,
                                             unsigned char* workspace, typename Block<kThreads>::Shared& block_shared,
                                             RowsShared& rows_shared, int depth, int64_t limit) {
    __shared__ int level_starts[kMaxRows + 2];
    const Sizes& sizes = plan.sizes;
    const int64_t b = blockIdx.x;
    Block<kThreads> block(block_shared);
    const SharedMemory memory(plan.offsets, shared, level_starts);
    Carve global_carve(workspace + b * plan.request_bytes);
    const GlobalMemory global(global_carve, sizes, level_starts);
    const Rows rows(sizes, sizes.rows_in_shared ? memory.excess : global.excess,
                    sizes.rows_in_shared ? memory.coarse : global.coarse, rows_shared, depth);
    Forest large = global.forest;
    Forest forest = memory.levels.forest;
    __syncthreads();
    select_slowly(block, sizes, rows, limit, large, global.preorder, global.kept_before, forest);
    const int num_nodes = order_levels(block, sizes, memory.levels, forest, memory.bucket, memory.slot_of);
    const RequestInputs inputs(p, sizes, b);
    const LevelNodes nodes = {memory.levels, forest, memory.slot_of};
    const int status = write_tree(block, p, sizes, memory, inputs, nodes, num_nodes, b);
    write_status(p, sizes, num_nodes, status | KDT_REQ_SLOW_PATH);
    __syncthreads();  // the rows overwrite the nodes
    write_rows_by_climbing<kThreads>(sizes, memory.up, num_nodes, memory.mask,
                                     p.tree_mask + b * sizes.nodes * sizes.words);
}

template <int kThreads>
__device__ __noinline__ void build_slowly_apart(const kdt_tree_build_params& p, const Plan& plan, unsigned char* shared,
                                                unsigned char* workspace,
                                                typename Block<kThreads>::Shared& block_shared, RowsShared& rows_shared,
                                                int depth, int64_t limit) {
    build_slowly<kThreads>(p, plan, shared, workspace, block_shared, rows_shared, depth, limit);
}

// Order and outputs of what the search has found.
template <int kThreads>
__device__ __forceinline__ void finish(Block<kThreads>& block, const kdt_tree_build_params& p, const Sizes& sizes,
                                       const Rows& rows, const SharedMemory& memory, const RequestInputs& inputs,
                                       int64_t limit, int status) {
    const int64_t b = blockIdx.x;
    const int num_nodes =
        order_slots(block, sizes, rows, limit, memory.branches, memory.slots, memory.bucket, memory.slot_of);
    const RunNodes nodes = {memory.branches, memory.slots, memory.slot_of};
    status |= write_tree(block, p, sizes, memory, inputs, nodes, num_nodes, b);
    write_status(p, sizes, num_nodes, status);
    __syncthreads();  // the rows overwrite the nodes
    write_rows_by_climbing<kThreads>(sizes, memory.up, num_nodes, memory.mask,
                                     p.tree_mask + b * sizes.nodes * sizes.words);
}

// The same for a small tree with something special about it.
template <int kThreads>
__device__ __noinline__ void finish_rarely(const kdt_tree_build_params& p, const Plan& plan, unsigned char* shared,
                                           typename Block<kThreads>::Shared& block_shared, RowsShared& rows_shared,
                                           int branches, int slots, int64_t limit, int status) {
    Block<kThreads> block(block_shared);
    const Sizes& sizes = plan.sizes;
    SharedMemory memory(plan.offsets, shared, nullptr);
    memory.branches.count = branches;
    memory.slots.count = slots;
    RequestInputs inputs(p, sizes, blockIdx.x);
    const Rows rows(sizes, memory.excess, memory.coarse, rows_shared, 0);
    finish(block, p, sizes, rows, memory, inputs, limit, status);
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_FINISH_CUH
