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
//      few.cuh        or, for a small tree, 3 and 4 at once
// The algorithm of the tree is that of DDTree (arXiv 2604.12989).
#include <cstdint>

#include "core/checks.h"
#include "core/workspace.h"
#include "cuda/block.cuh"
#include "cuda/cuda_check.h"
#include "cuda/overlap.cuh"
#include "cuda/tree_build/few.cuh"
#include "cuda/tree_build/finish.cuh"
#include "cuda/tree_build/grow.cuh"
#include "cuda/tree_build/layout.cuh"
#include "cuda/tree_build/rows.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda {
namespace tree_build {
namespace {

template <int kThreads, bool kRowsInShared>
__global__ void __launch_bounds__(kThreads, 1) build_tree(const __grid_constant__ kdt_tree_build_params p,
                                                          const __grid_constant__ Plan plan, unsigned char* workspace) {
    extern __shared__ __align__(16) unsigned char dynamic_shared[];
    __shared__ typename Block<kThreads>::Shared block_shared;
    __shared__ RowsShared rows_shared;
    __shared__ GrowShared grow_shared;

    const Sizes& sizes = plan.sizes;
    const int64_t b = blockIdx.x;
    Block<kThreads> block(block_shared);
    SharedMemory memory(plan.offsets, dynamic_shared, nullptr);
    rows_shared.clear(sizes);
    grow_shared.clear();
    reinterpret_cast<uint4*>(memory.bucket)[threadIdx.x] = {0, 0, 0, 0};

#pragma unroll 1
    for (int s = threadIdx.x; s < memory.slots.capacity; s += kThreads) memory.slots.child[s] = kNone;
    const Box box = box_of_lane(sizes.budget);
    if constexpr (kRowsInShared) {
        for (int i = threadIdx.x; i < sizes.horizon * sizes.stride; i += kThreads) memory.coarse[i] = kMuch;
        __syncthreads();
    }
    wait_for_earlier_kernels();

    RequestInputs inputs(p, sizes, b);
    Rows rows(sizes, memory.excess, memory.coarse, rows_shared, 0);
    if constexpr (!kRowsInShared) {
        Carve global_carve(workspace + b * plan.request_bytes);
        const GlobalMemory global(global_carve, sizes, nullptr);
        rows.excess = global.excess;
        rows.coarse = global.coarse;
        for (int i = threadIdx.x; i < sizes.horizon * sizes.stride; i += kThreads) rows.coarse[i] = kMuch;
        __syncthreads();
    }
    int status = load_rows<kThreads>(sizes, p.topk_log_probs + b * sizes.horizon * sizes.topk, inputs.draft_tokens,
                                     sizes.tokens_in_shared ? memory.tokens : nullptr, rows, rows_shared);
    let_next_kernel_come();
    if (sizes.tokens_in_shared) inputs.draft_tokens = memory.tokens;
    // With depth 0 (nothing usable, no budget, a refused request) the root stays alone.
    if (status != 0) rows.depth = 0;

    int32_t coarse_limit;
    const bool grown = grow<kThreads>(sizes, rows, box, coarse_limit, memory.branches, memory.slots, grow_shared);
    const int64_t limit = (static_cast<int64_t>(coarse_limit) + kRounding + 1) << kCoarse;
    if (!grown) {
        // A large block has no registers left for a call.
        if constexpr (kThreads == 1024)
            build_slowly<kThreads>(p, plan, dynamic_shared, workspace, block_shared, rows_shared, rows.depth, limit);
        else
            build_slowly_apart<kThreads>(p, plan, dynamic_shared, workspace, block_shared, rows_shared, rows.depth,
                                         limit);
        return;
    }
    if constexpr (kThreads < 1024) {
        const int count = memory.slots.count;
        if (sizes.nodes <= kFewNodes && count <= kFewSlots && p.expected_lengths == nullptr && p.dfs_order == nullptr) {
            FewShared& few = *reinterpret_cast<FewShared*>(memory.bucket);
            status |= finish_few<kThreads>(p, sizes, inputs, limit, rows, memory.branches, memory.slots, few);
            return write_status(p, sizes, min(count, sizes.nodes), status);
        }
        if constexpr (kThreads == 256)
            return finish_rarely<kThreads>(p, plan, dynamic_shared, block_shared, rows_shared, memory.branches.count,
                                           count, limit, status);
    }
    if constexpr (kThreads > 256) finish<kThreads>(block, p, sizes, rows, memory, inputs, limit, status);
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
