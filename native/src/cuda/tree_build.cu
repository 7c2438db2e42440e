// SPDX-License-Identifier: Apache-2.0
//
// tree_build without a heap: one block a request.
//
// Best-first search pops candidates in the order (cost, rank tuple), which is total: costs are integers. So the tree is
// the first tree_budget candidates of that order, however they are found. Steps:
//   1. rows.cuh       log-probs to integer costs, refusals
//   2. threshold.cuh  a cost that tree_budget candidates do not exceed, and few others
//   3. expand.cuh     all candidates up to it, level by level, in shared memory
//      slow_path.cuh  or, when they are too many, the best tree_budget of each level in global memory (exact as well)
//   4. order.cuh      their order; the first tree_budget are the nodes
//   5. emit.cuh       arrays, links, mask rows
// The algorithm of the tree is that of DDTree (arXiv 2604.12989).
#include <cstdint>

#include "core/checks.h"
#include "core/workspace.h"
#include "cuda/block.cuh"
#include "cuda/cuda_check.h"
#include "cuda/tree_build/emit.cuh"
#include "cuda/tree_build/expand.cuh"
#include "cuda/tree_build/layout.cuh"
#include "cuda/tree_build/order.cuh"
#include "cuda/tree_build/rows.cuh"
#include "cuda/tree_build/slow_path.cuh"
#include "cuda/tree_build/threshold.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda {
namespace tree_build {
namespace {

struct Plan {
    Sizes sizes;
    size_t shared_bytes;
    size_t request_bytes;  // of the workspace

    Plan(const kdt_tree_build_params& p, int threads) : sizes(p, threads) {
        Carve shared(nullptr);
        SharedMemory(shared, sizes, nullptr);
        shared_bytes = shared.bytes();
        Carve global(nullptr);
        GlobalMemory(global, sizes, nullptr);
        request_bytes = global.bytes();
    }
};

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1)
    build_tree(const kdt_tree_build_params p, const Plan plan, unsigned char* workspace) {
    extern __shared__ __align__(16) unsigned char dynamic_shared[];
    __shared__ typename Block<kThreads>::Shared block_shared;
    __shared__ RowsShared rows_shared;
    __shared__ ThresholdShared threshold_shared;
    __shared__ int level_starts[kMaxRows + 2];

    const int64_t b = blockIdx.x;
    const Sizes& sizes = plan.sizes;
    Block<kThreads> block(block_shared);
    Carve shared_carve(dynamic_shared);
    const SharedMemory memory(shared_carve, sizes, level_starts);
    Carve global_carve(workspace + b * plan.request_bytes);
    const GlobalMemory global(global_carve, sizes, level_starts);

    Rows rows = {sizes.rows_in_shared ? memory.row_costs : global.row_costs, sizes.columns, rows_shared.usable, 0};
    int status = load_rows<kThreads>(sizes, p.topk_log_probs + b * sizes.horizon * sizes.topk, rows, rows_shared);
    if (status == 0) survey_rows(sizes, rows, rows_shared);

    // With rows.depth 0 (nothing usable, no budget, a refused request) expansion leaves the root alone.
    Forest forest = memory.forest;
    int64_t threshold = kMaxCost;
    if (rows.depth > 0 && !rows_shared.all_fit)
        threshold = find_threshold<kThreads>(sizes, rows, rows_shared, memory.within, threshold_shared);
    if (!expand<kThreads, false>(block, sizes, rows, threshold, forest)) {
        __syncthreads();
        Forest large = global.forest;
        select_slowly(block, sizes, rows, threshold, large, global.preorder, global.kept_before, forest);
        status |= KDT_REQ_SLOW_PATH;
    }
    const int num_nodes = order_candidates(block, sizes, memory, forest);

    const Output out(p, sizes, b);
    if (write_nodes<kThreads>(sizes, memory, forest, num_nodes, out)) status |= KDT_REQ_TRUNCATED;
    if (num_nodes < sizes.nodes && (status & KDT_REQ_ERROR_MASK) == 0) status |= KDT_REQ_SHORT_TREE;
    if (threadIdx.x == 0) {
        p.num_nodes[b] = num_nodes;
        p.status[b] = status;
    }
    write_mask<kThreads>(sizes, memory, num_nodes, out);
    if (p.dfs_order != nullptr) write_dfs_order(block, sizes, memory, forest, num_nodes, out);
}

template <int kThreads>
void launch(const kdt_tree_build_params& p, const Plan& plan, unsigned char* workspace, const Device& device) {
    allow_shared(build_tree<kThreads>, plan.shared_bytes, device);
    build_tree<kThreads>
        <<<p.batch, kThreads, plan.shared_bytes, static_cast<cudaStream_t>(p.stream)>>>(p, plan, workspace);
    check_launch("the launch of tree_build's kernel");
}

// More threads than nodes: rows, thresholds and bins outnumber the nodes of a small tree. At 1024 nodes all that fit.
int threads_for(int budget) {
    return budget <= 64 ? 256 : budget <= 256 ? 512 : 1024;
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
        kdt::cuda::current_device();
        *bytes = build::needed_workspace(p, build::Plan(p, build::threads_for(p.tree_budget)));
    });
}

extern "C" kdt_status kdt_tree_build(const kdt_tree_build_params* params) {
    namespace build = kdt::cuda::tree_build;
    return kdt::guarded([&] {
        const kdt_tree_build_params p = kdt::read_params(params);
        kdt::check_tree_build(p);
        const kdt::cuda::Device device = kdt::cuda::current_device();
        const int threads = build::threads_for(p.tree_budget);
        const build::Plan plan(p, threads);
        kdt::check_workspace("tree_build", p.workspace, p.workspace_size, build::needed_workspace(p, plan));
        if (p.batch == 0) return;
        kdt::Workspace blocks(p.workspace);
        unsigned char* const workspace = build::take_workspace(blocks, p, plan);
        switch (threads) {
            case 256:
                return build::launch<256>(p, plan, workspace, device);
            case 512:
                return build::launch<512>(p, plan, workspace, device);
            default:
                return build::launch<1024>(p, plan, workspace, device);
        }
    });
}
