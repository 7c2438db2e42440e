// SPDX-License-Identifier: Apache-2.0
#include "cuda/overlap.cuh"
#include "engine/cuda/act.cuh"
#include "engine/cuda/queue.h"
#include "engine/keyed_random.h"

namespace kdt::engine {
namespace {

constexpr int kThreads = 128;

struct SimulateArgs {
    Golden golden;
    const int32_t* seq_lens;
    const uint64_t* seeds;
    float* log_probs;
    int32_t* token_ids;
    float accept;
    int vocab;
    int horizon;
    int topk;
};

// A block a row of the proposal.
__global__ void __launch_bounds__(kThreads) propose(const SimulateArgs args) {
    cuda::wait_for_earlier_kernels();
    const int b = static_cast<int>(blockIdx.x) / args.horizon;
    const int depth = static_cast<int>(blockIdx.x) % args.horizon + 1;
    const int64_t position = int64_t{args.seq_lens[b]} + depth;
    const int64_t at = position - args.golden.starts[b];
    int64_t token = 0;
    int64_t spoilt = 1;
    if (at >= 0 && at < args.golden.counts[b] && at < args.golden.stride) {
        token = args.golden.tokens[int64_t{b} * args.golden.stride + at];
        spoilt = uniform(word(args.seeds[b] ^ kSpoilKey, static_cast<uint64_t>(position))) >= args.accept ? 1 : 0;
    }
    cuda::let_next_kernel_come();
    for (int k = static_cast<int>(threadIdx.x); k < args.topk; k += kThreads) {
        const int64_t to = int64_t{blockIdx.x} * args.topk + k;
        args.token_ids[to] = static_cast<int32_t>((token + spoilt + k) % args.vocab);
        args.log_probs[to] = -0.6931472f * static_cast<float>(k + 1);
    }
}

}  // namespace

void simulate_draft(Queue& queue, Golden golden, const int32_t* seq_lens, const uint64_t* seeds, float accept,
                    int32_t vocab, float* log_probs, int32_t* token_ids, int32_t batch, int32_t horizon, int32_t topk) {
    if (batch == 0 || horizon == 0) return;
    const SimulateArgs args = {golden, seq_lens, seeds, log_probs, token_ids, accept, vocab, horizon, topk};
    cuda::launch_overlapped(propose, dim3(static_cast<unsigned>(batch * horizon)), kThreads, queue.impl()->stream,
                            args);
}

}  // namespace kdt::engine
