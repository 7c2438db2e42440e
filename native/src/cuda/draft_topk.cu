// SPDX-License-Identifier: Apache-2.0
//
// draft_topk in two kernels, and one trip over the logits. Many blocks share a row when rows are few:
//   1. scan_chunk.cuh  a block a chunk: maximum, sum of exponentials, candidates for the best topk
//   2. merge_row.cuh   a block a row: logsumexp, the topk best of the candidates, sorted
// Both find a threshold by bisection on keys that order as logits do, first on the maxima of small groups, which is
// cheap and leaves few candidates, and exactly on everything when that leaves too many.
#include <cstdint>

#include "core/checks.h"
#include "core/workspace.h"
#include "cuda/cuda_check.h"
#include "cuda/draft_topk/layout.cuh"
#include "cuda/draft_topk/merge_row.cuh"
#include "cuda/draft_topk/scan_chunk.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda::draft_topk {
namespace {

Plan make_plan(const kdt_draft_topk_params& p, const Device& device) {
    const Plan plan(p, device.multiprocessors);
    const int64_t blocks = int64_t{plan.rows} * plan.chunks;
    if (plan.chunks > kMaxChunks || blocks > INT32_MAX || int64_t{plan.chunks} * plan.slots > INT32_MAX)
        fail(KDT_UNSUPPORTED, "draft_topk: %d rows of vocab_size %d are more than this backend can launch", p.rows,
             p.vocab_size);
    return plan;
}

void take_workspace(Workspace& workspace, Plan& plan) {
    const size_t units = static_cast<size_t>(plan.rows) * plan.chunks;
    plan.partials = workspace.take<Partial>(units);
    plan.candidates = workspace.take<uint64_t>(units * plan.slots);
}

size_t needed_workspace(Plan plan) {
    Workspace measure;
    take_workspace(measure, plan);
    return measure.bytes();
}

template <class T>
void launch(const kdt_draft_topk_params& p, const Plan& plan) {
    const cudaStream_t stream = static_cast<cudaStream_t>(p.stream);
    scan_chunk<T><<<plan.rows * plan.chunks, kThreads, 0, stream>>>(static_cast<const T*>(p.logits), plan);
    check_launch("the launch of draft_topk's first kernel");
    merge_row<T><<<plan.rows, kThreads, 0, stream>>>(plan, p.topk_log_probs, p.topk_token_ids, p.status);
    check_launch("the launch of draft_topk's second kernel");
}

}  // namespace
}  // namespace kdt::cuda::draft_topk

extern "C" kdt_status kdt_draft_topk_workspace_size(const kdt_draft_topk_params* params, size_t* bytes) {
    namespace topk = kdt::cuda::draft_topk;
    return kdt::guarded([&] {
        const kdt_draft_topk_params p = kdt::read_params(params);
        kdt::check_bytes_out("draft_topk", bytes);
        kdt::check_draft_topk_sizes(p);
        *bytes = topk::needed_workspace(topk::make_plan(p, kdt::cuda::current_device()));
    });
}

extern "C" kdt_status kdt_draft_topk(const kdt_draft_topk_params* params) {
    namespace topk = kdt::cuda::draft_topk;
    return kdt::guarded([&] {
        const kdt_draft_topk_params p = kdt::read_params(params);
        kdt::check_draft_topk(p);
        topk::Plan plan = topk::make_plan(p, kdt::cuda::current_device());
        kdt::check_workspace("draft_topk", p.workspace, p.workspace_size, topk::needed_workspace(plan));
        if (p.rows == 0) return;
        kdt::Workspace workspace(p.workspace);
        topk::take_workspace(workspace, plan);
        if (p.logits_dtype == KDT_F32)
            topk::launch<float>(p, plan);
        else
            topk::launch<uint16_t>(p, plan);
    });
}
