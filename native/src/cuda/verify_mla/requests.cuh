// SPDX-License-Identifier: Apache-2.0
//
// First kernel of verify_mla's mha mode: what each request asks for, or why it is refused. The kernels behind it then
// need not ask again, and find every page they need.
#ifndef KDTREE_CUDA_VERIFY_MLA_REQUESTS_CUH
#define KDTREE_CUDA_VERIFY_MLA_REQUESTS_CUH

#include <cstdint>

#include "cuda/verify_mla/layout.cuh"

namespace kdt::cuda::verify_mla {

__global__ void __launch_bounds__(kThreads) examine_requests(const Args args) {
    const int b = static_cast<int>(blockIdx.x);
    const int prefix = args.seq_lens[b];
    const int nodes = args.num_nodes != nullptr ? args.num_nodes[b] : args.max_nodes;
    int status = 0;
    if (nodes < 1 || nodes > args.max_nodes)
        status = KDT_REQ_BAD_COUNT;
    else if (prefix < 0 || int64_t{prefix} + nodes > int64_t{args.max_pages_per_seq} * args.page_size)
        status = KDT_REQ_BAD_LENGTH;
    bool missing = false;
    if (status == 0) {
        const int32_t* const pages = args.block_table + int64_t{b} * args.max_pages_per_seq;
        const int64_t needed = (int64_t{prefix} + nodes + args.page_size - 1) / args.page_size;
        for (int64_t k = threadIdx.x; k < needed; k += kThreads) missing |= pages[k] < 0 || pages[k] >= args.num_pages;
    }
    if (__syncthreads_or(missing)) status = KDT_REQ_BAD_PAGE;
    if (threadIdx.x != 0) return;
    args.requests[b] = status == 0 ? Request{0, prefix, nodes, 0} : Request{status, 0, 0, 0};
    if (args.status != nullptr) args.status[b] = status;
}

}  // namespace kdt::cuda::verify_mla

#endif  // KDTREE_CUDA_VERIFY_MLA_REQUESTS_CUH
