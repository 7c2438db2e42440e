// SPDX-License-Identifier: Apache-2.0
//
// tree_build without a heap: one block a request.
//
// Best-first search pops nodes in the order (cost, rank tuple), which is total: costs are integers. So the tree is the
// first tree_budget nodes of that order, however they are found. Steps:
//   1. rows.cuh       log-probs to integer costs, refusals
//   2. grow.cuh       all nodes up to a cost that tree_budget nodes do not exceed (bound.cuh), and few others
//      slow_path.cuh  or, when they are too many, the best tree_budget of each level in global memory (exact as well)
//   3. order.cuh      their order; the first tree_budget are the tree
//   4. emit.cuh       arrays and links;  mask.cuh  mask rows
// The algorithm of the tree is that of DDTree (arXiv 2604.12989).
#include <cstdint>

#include "core/checks.h"
#include "core/workspace.h"
#include "cuda/block.cuh"
#include "cuda/cuda_check.h"
#include "cuda/overlap.cuh"
#include "cuda/tree_build/emit.cuh"
#include "cuda/tree_build/grow.cuh"
#include "cuda/tree_build/layout.cuh"
#include "cuda/tree_build/level_order.cuh"
#include "cuda/tree_build/mask.cuh"
#include "cuda/tree_build/nodes.cuh"
#include "cuda/tree_build/order.cuh"
#include "cuda/tree_build/rows.cuh"
#include "cuda/tree_build/slow_path.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda {
namespace tree_build {
namespace {

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

// What follows from the nodes in their order, but long mask rows, num_nodes and status. Returns the status bits.
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

// The slow path, from the rows on.
template <int kThreads>
__device__ __forceinline__ void build_slowly(const kdt_tree_build_params& p, const Plan& plan, unsigned char* shared,
                                             unsigned char* workspace, typename Block<kThreads>::Shared& block_shared,
                                             RowsShared& rows_shared, int depth, int64_t limit) {
    __shared__ int level_starts[kMaxRows + 2];
    const int64_t b = blockIdx.x;
    const Sizes& sizes = plan.sizes;
    Block<kThreads> block(block_shared);
    const SharedMemory memory(plan.offsets, shared, level_starts);
    Carve global_carve(workspace + b * plan.request_bytes);
    const GlobalMemory global(global_carve, sizes, level_starts);
    const Rows rows = {sizes.rows_in_shared ? memory.excess : global.excess, sizes.columns, rows_shared.usable,
                       rows_shared.spine, depth};
    Forest large = global.forest;
    Forest forest = memory.levels.forest;
    __syncthreads();
    select_slowly(block, sizes, rows, limit, large, global.preorder, global.kept_before, forest);
    const int num_nodes = order_levels(block, sizes, memory.levels, forest, memory.bucket, memory.slot_of);
    const RequestInputs inputs(p, sizes, b);
    const LevelNodes nodes = {memory.levels, forest, memory.slot_of};
    const int status = write_tree(block, p, sizes, memory, inputs, nodes, num_nodes, b);
    write_status(p, sizes, num_nodes, status | KDT_REQ_SLOW_PATH);
    if (sizes.words > 2) {
        __syncthreads();  // the rows overwrite the nodes
        write_rows_by_climbing<kThreads>(sizes, memory.up, num_nodes, memory.mask,
                                         p.tree_mask + b * sizes.nodes * sizes.words);
    }
}

template <int kThreads, bool kRowsInShared>
__global__ void __launch_bounds__(kThreads, 1) build_tree(const __grid_constant__ kdt_tree_build_params p,
                                                          const __grid_constant__ Plan plan, unsigned char* workspace) {
    extern __shared__ __align__(16) unsigned char dynamic_shared[];
    __shared__ typename Block<kThreads>::Shared block_shared;
    __shared__ RowsShared rows_shared;
    __shared__ GrowShared grow_shared;

    const int64_t b = blockIdx.x;
    const Sizes& sizes = plan.sizes;
    Block<kThreads> block(block_shared);
    SharedMemory memory(plan.offsets, dynamic_shared, nullptr);
    rows_shared.clear(sizes);
    grow_shared.clear();
    reinterpret_cast<uint4*>(memory.bucket)[threadIdx.x] = {0, 0, 0, 0};
    const Box box = box_of_lane(sizes.budget);
    __syncthreads();
    wait_for_earlier_kernels();

    RequestInputs inputs(p, sizes, b);
    Rows rows = {memory.excess, sizes.columns, rows_shared.usable, rows_shared.spine, 0};
    if constexpr (!kRowsInShared) {
        Carve global_carve(workspace + b * plan.request_bytes);
        rows.excess = GlobalMemory(global_carve, sizes, nullptr).excess;
    }
    int status = load_rows<kThreads>(sizes, p.topk_log_probs + b * sizes.horizon * sizes.topk, inputs.draft_tokens,
                                     sizes.tokens_in_shared ? memory.tokens : nullptr, rows, rows_shared);
    let_next_kernel_come();
    if (sizes.tokens_in_shared) inputs.draft_tokens = memory.tokens;
    // With depth 0 (nothing usable, no budget, a refused request) the root stays alone.
    if (status != 0) rows.depth = 0;

    int64_t limit;
    if (!grow<kThreads>(sizes, rows, box, limit, memory.branches, memory.slots, grow_shared))
        return build_slowly<kThreads>(p, plan, dynamic_shared, workspace, block_shared, rows_shared, rows.depth, limit);
    const int num_nodes =
        order_slots(block, sizes, limit, memory.branches, memory.slots, memory.bucket, memory.slot_of);
    const RunNodes nodes = {memory.branches, memory.slots, memory.slot_of};
    status |= write_tree(block, p, sizes, memory, inputs, nodes, num_nodes, b);
    write_status(p, sizes, num_nodes, status);
    if (sizes.words > 2)
        write_rows_by_climbing<kThreads>(sizes, memory.up, num_nodes, memory.mask,
                                         p.tree_mask + b * sizes.nodes * sizes.words);
}

template <int kThreads, bool kRowsInShared = true>
void launch(const kdt_tree_build_params& p, const Plan& plan, unsigned char* workspace, const Device& device) {
    const auto kernel = build_tree<kThreads, kRowsInShared>;
    allow_shared(kernel, plan.shared_bytes, device);
    launch_overlapped(kernel, p.batch, kThreads, plan.shared_bytes, static_cast<cudaStream_t>(p.stream), p, plan,
                      workspace);
}

unsigned char* take_workspace(Workspace& workspace, const kdt_tree_build_params& p, const Plan& plan) {
    return workspace.take<unsigned char>(static_cast<size_t>(p.batch) * plan.request_bytes);
}

size_t needed_workspace(const kdt_tree_build_params& p, const Plan& plan) {
    Workspace measure;
    take_workspace(measure, p, plan);
    return measure.bytes();
}

}  // namespace
}  // namespace tree_build
}  // namespace kdt::cuda

extern "C" kdt_status kdt_tree_build_workspace_size(const kdt_tree_build_params* params, size_t* bytes) {
    namespace build = kdt::cuda::tree_build;
    return kdt::guarded([&] {
        const kdt_tree_build_params p = kdt::read_params(params);
        kdt::check_bytes_out("tree_build", bytes);
        kdt::check_tree_build_sizes(p);
        const kdt::cuda::Device device = kdt::cuda::current_device();
        *bytes = build::needed_workspace(p, build::Plan(p, device));
    });
}

extern "C" kdt_status kdt_tree_build(const kdt_tree_build_params* params) {
    namespace build = kdt::cuda::tree_build;
    return kdt::guarded([&] {
        const kdt_tree_build_params p = kdt::read_params(params);
        kdt::check_tree_build(p);
        const kdt::cuda::Device device = kdt::cuda::current_device();
        const build::Plan plan(p, device);
        kdt::check_workspace("tree_build", p.workspace, p.workspace_size, build::needed_workspace(p, plan));
        if (p.batch == 0) return;
        kdt::Workspace blocks(p.workspace);
        unsigned char* const workspace = build::take_workspace(blocks, p, plan);
        if (!plan.sizes.rows_in_shared) return build::launch<1024, false>(p, plan, workspace, device);
        switch (plan.sizes.threads) {
            case 256:
                return build::launch<256>(p, plan, workspace, device);
            case 512:
                return build::launch<512>(p, plan, workspace, device);
            default:
                return build::launch<1024>(p, plan, workspace, device);
        }
    });
}
