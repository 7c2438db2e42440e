// SPDX-License-Identifier: Apache-2.0
//
// tree_accept: one block a request. Instead of following links hop by hop through global memory, every node asks at
// once whether it is the child that its parent's target token names; the walk is then a chain of reads in shared
// memory. The smallest index wins among children with the same token, whatever the order of the threads.
#include <climits>
#include <cstdint>

#include "core/checks.h"
#include "cuda/block.cuh"
#include "cuda/cuda_check.h"
#include "kdtree/kdtree.h"

namespace kdt::cuda {
namespace {

constexpr int kMaxNodes = KDT_MAX_TREE_BUDGET + 1;
constexpr int kMaxPath = KDT_MAX_DRAFT_HORIZON + 1;
constexpr int kNoChild = INT_MAX;
static_assert(kMaxPath <= kWarpSize, "one warp writes a path, an entry a lane");

struct AcceptArgs {
    const int32_t* token_ids;
    const int32_t* parents;
    const int32_t* num_nodes;
    const int32_t* target_tokens;
    int32_t* accepted_path;
    int32_t* acceptance_length;
    int32_t* bonus_token;
    int32_t* status;
    int max_nodes;
    int draft_horizon;
};

__global__ void __launch_bounds__(256) accept_path(const AcceptArgs args) {
    __shared__ int32_t token[kMaxNodes];
    __shared__ int32_t parent[kMaxNodes];
    __shared__ int32_t target[kMaxNodes];
    __shared__ int32_t next[kMaxNodes];  // the child that the target names
    __shared__ int32_t path[kMaxPath];
    __shared__ int32_t answer[2];  // length, status

    const int64_t b = blockIdx.x;
    const int64_t nodes_at = b * args.max_nodes;
    const int thread = threadIdx.x;
    const int threads = blockDim.x;

    // Pads are read as well (and ignored): waiting for num_nodes first would cost a second trip to memory.
    const int num_nodes = args.num_nodes[b];
    for (int i = thread; i < args.max_nodes; i += threads) {
        token[i] = args.token_ids[nodes_at + i];
        parent[i] = args.parents[nodes_at + i];
        target[i] = args.target_tokens[nodes_at + i];
        next[i] = kNoChild;
    }
    __syncthreads();

    const bool counted = num_nodes >= 1 && num_nodes <= args.max_nodes;
    bool broken = false;
    for (int i = 1 + thread; counted && i < num_nodes; i += threads) {
        const int p = parent[i];
        if (p < 0 || p >= i)
            broken = true;
        else if (token[i] == target[p])
            atomicMin(&next[p], i);
    }
    broken = __syncthreads_or(broken);

    if (thread == 0) {
        int status = !counted ? KDT_REQ_BAD_COUNT : broken ? KDT_REQ_BAD_TREE : 0;
        int length = num_nodes >= 1 ? 1 : 0;
        path[0] = 0;
        // A child's index is above its parent's, so this ends; the horizon bounds what is stored.
        for (int node = 0; status == 0 && next[node] != kNoChild; ++length) {
            node = next[node];
            if (length > args.draft_horizon) {
                status = KDT_REQ_TOO_DEEP;
                length = 0;  // becomes 1, the root alone
            } else {
                path[length] = node;
            }
        }
        answer[0] = length;
        answer[1] = status;
    }
    __syncthreads();

    const int length = answer[0];
    if (thread <= args.draft_horizon)
        args.accepted_path[b * (args.draft_horizon + 1) + thread] = thread < length ? path[thread] : -1;
    if (thread == 0) {
        args.acceptance_length[b] = length;
        args.bonus_token[b] = length > 0 ? target[path[length - 1]] : -1;
        args.status[b] = answer[1];
    }
}

}  // namespace
}  // namespace kdt::cuda

extern "C" kdt_status kdt_tree_accept_workspace_size(const kdt_tree_accept_params* params, size_t* bytes) {
    return kdt::guarded([&] {
        const kdt_tree_accept_params p = kdt::read_params(params);
        kdt::check_bytes_out("tree_accept", bytes);
        kdt::check_tree_accept_sizes(p);
        kdt::cuda::current_device();
        *bytes = 0;
    });
}

extern "C" kdt_status kdt_tree_accept(const kdt_tree_accept_params* params) {
    return kdt::guarded([&] {
        const kdt_tree_accept_params p = kdt::read_params(params);
        kdt::check_tree_accept(p);
        kdt::cuda::current_device();
        if (p.batch == 0) return;
        const kdt::cuda::AcceptArgs args = {p.token_ids,     p.parents,           p.num_nodes,   p.target_tokens,
                                            p.accepted_path, p.acceptance_length, p.bonus_token, p.status,
                                            p.max_nodes,     p.draft_horizon};
        const int threads = p.max_nodes <= 32 ? 32 : p.max_nodes <= 128 ? 128 : 256;
        kdt::cuda::accept_path<<<p.batch, threads, 0, static_cast<cudaStream_t>(p.stream)>>>(args);
        kdt::cuda::check_launch("the launch of tree_accept's kernel");
    });
}
