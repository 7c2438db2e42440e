// SPDX-License-Identifier: Apache-2.0
//
// draw: the token of each row, the largest of its logits, or of its logits over the temperature plus keyed Gumbel
// noise.
//
// A candidate is a 64-bit key: its value as an integer of the same order above, the complement of its id below. The
// greatest key is the answer, in whatever order keys are compared. The noise costs two logarithms in f64, so it is
// computed only where a cheap upper bound of it could still win.
#include "cuda/block.cuh"
#include "cuda/overlap.cuh"
#include "engine/cuda/act.cuh"
#include "engine/cuda/arrival.cuh"
#include "engine/cuda/queue.h"
#include "engine/keyed_random.h"

namespace kdt::engine {
namespace {

using cuda::kAllLanes;
using cuda::kWarpSize;

constexpr int kThreads = 256;
constexpr int kMinPerBlock = 4096;  // logits that are worth a block of their own
// Nothing above -inf: token 0.
constexpr uint64_t kNobody = 0xffffffffu;

struct DrawArgs {
    const float* logits;
    const int32_t* positions;
    const float* temperatures;
    const uint64_t* seeds;
    int32_t* tokens;
    uint64_t* partials;
    uint32_t* arrivals;
    int vocab;
    int rows_per_request;
    int per_block;  // logits, a multiple of kThreads
};

// Equal values of either sign of zero get equal keys.
__device__ __forceinline__ uint64_t key_of(float value, int token) {
    const uint32_t bits = __float_as_uint(value + 0.0f);
    const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return uint64_t{ordered} << 32 | (0xffffffffu - static_cast<uint32_t>(token));
}

__device__ __forceinline__ uint64_t greater(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

__device__ __forceinline__ uint64_t warp_greatest(uint64_t key) {
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) key = greater(key, __shfl_xor_sync(kAllLanes, key, step));
    return key;
}

// In thread 0.
__device__ __forceinline__ uint64_t block_greatest(uint64_t key, uint64_t (&keys)[kThreads / kWarpSize]) {
    key = warp_greatest(key);
    if (threadIdx.x % kWarpSize == 0) keys[threadIdx.x / kWarpSize] = key;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < kThreads / kWarpSize; ++w) key = greater(key, keys[w]);
    return key;
}

// Not below the noise that goes with u = uniform(random): -ln(-ln u) <= -ln(1 - u), since -ln u >= 1 - u. The slack
// covers the roundings on the way.
__device__ __forceinline__ float noise_bound(uint64_t random) {
    const double rest = 1.0 - uniform(random);
    return 1e-3f - __logf(static_cast<float>(rest));
}

__global__ void __launch_bounds__(kThreads) draw_tokens(const DrawArgs args) {
    __shared__ uint64_t keys[kThreads / kWarpSize];
    __shared__ bool last;
    const int row = static_cast<int>(blockIdx.y);
    const int first = static_cast<int>(blockIdx.x) * args.per_block;
    const int end = args.vocab - first < args.per_block ? args.vocab : first + args.per_block;
    const float* const logits = args.logits + int64_t{row} * args.vocab;
    cuda::wait_for_earlier_kernels();
    const int request = row / args.rows_per_request;
    const float temperature = args.temperatures[request];
    uint64_t best = kNobody;
    if (!(temperature >= kGreedyBelow)) {
        float best_value = -INFINITY;
        int best_token = 0;
#pragma unroll 4
        for (int v = first + static_cast<int>(threadIdx.x); v < end; v += kThreads) {
            const float value = logits[v];
            if (!(value > best_value)) continue;  // ids rise, so an equal one loses; NaN does as well
            best_value = value;
            best_token = v;
        }
        if (best_value > -INFINITY) best = key_of(best_value, best_token);
    } else {
        const uint64_t position_word =
            word(args.seeds[request], static_cast<uint64_t>(int64_t{args.positions[row]} + 1));
        float best_value = -INFINITY;
        int best_token = 0;
        for (int v = first + static_cast<int>(threadIdx.x); v < end; v += kThreads) {
            const float scaled = __fdiv_rn(logits[v], temperature);
            const uint64_t random = word(position_word, static_cast<uint64_t>(v));
            const float bound = noise_bound(random);
            if (!(scaled + bound + fabsf(scaled) * 1e-6f > best_value)) continue;
            const float value = __fadd_rn(scaled, gumbel(position_word, static_cast<uint64_t>(v)));
            if (!(value > best_value)) continue;
            best_value = value;
            best_token = v;
        }
        if (best_value > -INFINITY) best = key_of(best_value, best_token);
    }
    cuda::let_next_kernel_come();
    best = block_greatest(best, keys);
    const int blocks = static_cast<int>(gridDim.x);
    if (blocks == 1) {
        if (threadIdx.x == 0) args.tokens[row] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
        return;
    }
    uint64_t* const partials = args.partials + int64_t{row} * blocks;
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = best;
        last = arrives_last(args.arrivals + row, blocks);
    }
    __syncthreads();
    if (!last) return;
    best = kNobody;
    for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kThreads) best = greater(best, __ldcg(&partials[i]));
    best = block_greatest(best, keys);
    if (threadIdx.x == 0) args.tokens[row] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
}

}  // namespace

void draw(Queue& queue, const float* logits, int32_t vocab, const int32_t* positions, const float* temperatures,
          const uint64_t* seeds, int32_t rows_per_request, int32_t* target_tokens, int32_t rows) {
    if (rows == 0) return;
    const Queue::Impl& impl = *queue.impl();
    // Enough blocks for the GPU, none for a handful of logits, no more than there is room for their keys.
    int blocks = ceil_div(2 * impl.device.multiprocessors, rows);
    const int useful = ceil_div(vocab, kMinPerBlock);
    if (blocks > useful) blocks = useful;
    if (int64_t{blocks} * rows > Queue::Impl::kMaxPartials) blocks = 1;
    const int per_block = ceil_div(ceil_div(vocab, blocks), kThreads) * kThreads;
    blocks = ceil_div(vocab, per_block);
    const DrawArgs args = {logits,
                           positions,
                           temperatures,
                           seeds,
                           target_tokens,
                           impl.partials.as<uint64_t>(),
                           impl.arrivals.as<uint32_t>(),
                           vocab,
                           rows_per_request,
                           per_block};
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(rows));
    cuda::launch_overlapped(draw_tokens, grid, kThreads, impl.stream, args);
}

}  // namespace kdt::engine
