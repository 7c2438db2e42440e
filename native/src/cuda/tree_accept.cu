// SPDX-License-Identifier: Apache-2.0
//
// tree_accept: one block a request. Instead of following links hop by hop through global memory, every node asks at
// once whether it is the child that its parent's target token names; the walk is then a chain of reads in shared
// memory. The smallest index wins among children with the same token, whatever the order of the threads.
//
// The time is that of a chain of latencies, so the chain is kept short: one round of loads, num_nodes among them; two
// barriers; and a walk in which a step is one read of shared memory, since entries are byte offsets and the end of the
// path names itself.
#include <cstdint>

#include "core/checks.h"
#include "cuda/block.cuh"
#include "cuda/cuda_check.h"
#include "cuda/overlap.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda {
namespace {

constexpr int kStride = 4;
static_assert(KDT_MAX_TREE_BUDGET <= 512 * 2, "the largest tree has a thread's share for each node");
static_assert(KDT_MAX_DRAFT_HORIZON + 1 <= kWarpSize, "one warp holds a path, an entry a lane");

struct AcceptArgs {
    const int32_t* token_ids;
    const int32_t* parents;
    const int32_t* num_nodes;
    const int32_t* target_tokens;
    const int32_t* seq_lens;
    int32_t* accepted_path;
    int32_t* acceptance_length;
    int32_t* bonus_token;
    int32_t* status;
    int32_t* source_slots;
    int max_nodes;
    int draft_horizon;
};

// For up to kThreads * kEach + 1 nodes: thread t has nodes 1 + t, 1 + t + kThreads, ...; the root has no parent to ask.
template <int kThreads, int kEach>
__global__ void __launch_bounds__(kThreads) accept_path(const AcceptArgs args) {
    constexpr int kNodes = kThreads * kEach + 1;
    constexpr uint32_t kEnd = sizeof(uint32_t) * kNodes;  // the entry behind the last node
    __shared__ int32_t target[kNodes];
    __shared__ uint32_t next[kNodes + 1];  // where the entry of the child that the target names is, in bytes
    __shared__ int32_t broken;

    const int64_t b = blockIdx.x;
    const int64_t nodes_at = b * args.max_nodes;
    const int thread = threadIdx.x;

    // Ready before the kernels in front are done.
#pragma unroll
    for (int j = 0; j < kEach; ++j) next[1 + thread + j * kThreads] = kEnd;
    if (thread == 0) {
        next[0] = next[kNodes] = kEnd;
        broken = 0;
    }
    wait_for_earlier_kernels();

    // Pads are read as well (and ignored): waiting for num_nodes first would cost a second trip to memory.
    const int num_nodes = args.num_nodes[b];
    const bool wants_slots = args.source_slots != nullptr;
    const int prefix = wants_slots ? args.seq_lens[b] : 0;
    int32_t token[kEach], parent[kEach], own_target[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int i = 1 + thread + j * kThreads;
        const bool inside = i < args.max_nodes;
        token[j] = inside ? args.token_ids[nodes_at + i] : 0;
        parent[j] = inside ? args.parents[nodes_at + i] : 0;
        own_target[j] = inside ? args.target_tokens[nodes_at + i] : 0;
    }
    const int32_t root_target = thread == 0 ? args.target_tokens[nodes_at] : 0;
    let_next_kernel_come();
    if (thread == 0) target[0] = root_target;
#pragma unroll
    for (int j = 0; j < kEach; ++j) target[1 + thread + j * kThreads] = own_target[j];
    __syncthreads();

    const bool counted = num_nodes >= 1 && num_nodes <= args.max_nodes;
    const int nodes = counted ? num_nodes : 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int i = 1 + thread + j * kThreads;
        if (i >= nodes) break;
        if (static_cast<uint32_t>(parent[j]) >= static_cast<uint32_t>(i))
            broken = 1;
        else if (token[j] == target[parent[j]])
            atomicMin(&next[parent[j]], static_cast<uint32_t>(sizeof(uint32_t)) * i);
    }
    __syncthreads();
    if (thread >= kWarpSize) return;

    // All lanes walk alike, and lane k keeps entry k. Children come after their parents, so the path ends; the horizon
    // bounds what is kept of it. Four steps stand between two looks at whether it has: a look takes as long as a step.
    const bool is_broken = broken != 0;
    uint32_t entry = 0, mine = kEnd;
    for (int k = 0; k <= args.draft_horizon && entry != kEnd; k += kStride) {
#pragma unroll
        for (int step = 0; step < kStride; ++step) {
            if (thread == k + step) mine = entry;
            entry = *reinterpret_cast<const uint32_t*>(reinterpret_cast<const unsigned char*>(next) + entry);
        }
    }
    // Beyond the horizon stands what a lane got there, or where the walk stopped.
    const bool beyond = thread > args.draft_horizon && mine != kEnd;
    const bool deep = __any_sync(kAllLanes, beyond) || entry != kEnd;
    const bool placed = prefix >= 0 && prefix <= INT32_MAX - args.max_nodes;
    const int status = !counted    ? KDT_REQ_BAD_COUNT
                       : !placed   ? KDT_REQ_BAD_LENGTH
                       : is_broken ? KDT_REQ_BAD_TREE
                       : deep      ? KDT_REQ_TOO_DEEP
                                   : 0;
    if (status != 0) mine = thread == 0 && num_nodes >= 1 ? 0 : kEnd;
    const bool on_path = mine != kEnd;
    const int length = __popc(__ballot_sync(kAllLanes, on_path));
    const int node = on_path ? static_cast<int>(mine / sizeof(uint32_t)) : -1;
    if (thread <= args.draft_horizon) {
        const int64_t at = b * (args.draft_horizon + 1) + thread;
        args.accepted_path[at] = node;
        if (wants_slots) args.source_slots[at] = on_path && placed ? prefix + node : -1;
    }
    if (thread == (length > 0 ? length - 1 : 0)) args.bonus_token[b] = on_path ? target[node] : -1;
    if (thread == 0) {
        args.acceptance_length[b] = length;
        args.status[b] = status;
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
        using namespace kdt::cuda;
        const AcceptArgs args = {p.token_ids, p.parents,       p.num_nodes,         p.target_tokens,
                                 p.seq_lens,  p.accepted_path, p.acceptance_length, p.bonus_token,
                                 p.status,    p.source_slots,  p.max_nodes,         p.draft_horizon};
        const cudaStream_t stream = static_cast<cudaStream_t>(p.stream);
        if (p.max_nodes <= 33)
            launch_overlapped(accept_path<32, 1>, p.batch, 32, stream, args);
        else if (p.max_nodes <= 65)
            launch_overlapped(accept_path<64, 1>, p.batch, 64, stream, args);
        else if (p.max_nodes <= 129)
            launch_overlapped(accept_path<128, 1>, p.batch, 128, stream, args);
        else if (p.max_nodes <= 257)
            launch_overlapped(accept_path<256, 1>, p.batch, 256, stream, args);
        else
            launch_overlapped(accept_path<512, 2>, p.batch, 512, stream, args);
    });
}
