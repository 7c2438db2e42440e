// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek-V3's router (arXiv 2412.19437, section 2.1.2), a warp a row. Experts and groups are picked one by one as the
// greatest of keys that hold a score above and the complement of an index below: equal scores go to the lower index.
#include "cuda/block.cuh"
#include "cuda/overlap.cuh"
#include "engine/cuda/act.cuh"
#include "engine/cuda/queue.h"
#include "kdtree/engine.h"

namespace kdt::engine {
namespace {

using cuda::kAllLanes;
using cuda::kWarpSize;

constexpr int kMaxGroups = kWarpSize;  // a lane a group

struct RouteArgs {
    const float* logits;
    const float* bias;
    int32_t* experts;
    float* weights;
    Router router;
};

// 0 for NaN: below everything, and still to be had when nothing else is left. Picked ones are 0 as well, index
// included.
__device__ __forceinline__ uint64_t key_of(float score, int index) {
    const uint32_t bits = __float_as_uint(score + 0.0f);
    const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return uint64_t{score == score ? ordered : 0u} << 32 | (0xffffffffu - static_cast<uint32_t>(index));
}
__device__ __forceinline__ int index_of(uint64_t key) {
    return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key));
}
__device__ __forceinline__ uint64_t greater(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
__device__ __forceinline__ uint64_t warp_greatest(uint64_t key) {
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) key = greater(key, __shfl_xor_sync(kAllLanes, key, step));
    return key;
}

// Shared memory: each expert's score p, and its key, 0 once it is out of the running.
__global__ void __launch_bounds__(kWarpSize) route_row(const RouteArgs args) {
    extern __shared__ uint64_t keys[];
    const Router& router = args.router;
    const int experts = router.n_routed_experts;
    float* const scores = reinterpret_cast<float*>(keys + experts);
    const int lane = static_cast<int>(threadIdx.x);
    const float* const logits = args.logits + int64_t{blockIdx.x} * experts;
    cuda::wait_for_earlier_kernels();
    float top = -INFINITY;
    for (int e = lane; e < experts; e += kWarpSize) {
        scores[e] = logits[e];
        top = fmaxf(top, scores[e]);
    }
    cuda::let_next_kernel_come();
    if (router.scores == KDT_SCORES_SOFTMAX) {
#pragma unroll
        for (int step = kWarpSize / 2; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
        float sum = 0.0f;
        for (int e = lane; e < experts; e += kWarpSize) {
            scores[e] = expf(scores[e] - top);
            sum += scores[e];
        }
#pragma unroll
        for (int step = kWarpSize / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
        for (int e = lane; e < experts; e += kWarpSize) scores[e] /= sum;
    } else {
        for (int e = lane; e < experts; e += kWarpSize) scores[e] = 1.0f / (1.0f + expf(-scores[e]));
    }
    for (int e = lane; e < experts; e += kWarpSize)
        keys[e] = key_of(scores[e] + (args.bias == nullptr ? 0.0f : args.bias[e]), e);
    __syncwarp();

    if (router.n_group > 1 && router.topk_group < router.n_group) {
        // A lane a group.
        const int size = experts / router.n_group;
        uint64_t group_key = 0;
        if (lane < router.n_group) {
            uint64_t best = 0, second = 0;
            for (int e = lane * size; e < (lane + 1) * size; ++e) {
                const uint64_t key = keys[e];
                second = greater(second, key < best ? key : best);
                best = greater(best, key);
            }
            const auto choice = [&](uint64_t key) {
                const int e = index_of(key);
                return scores[e] + (args.bias == nullptr ? 0.0f : args.bias[e]);
            };
            float score = choice(best);
            if (router.scores == KDT_SCORES_SIGMOID && size > 1) score += choice(second);
            group_key = key_of(score, lane);
        }
        bool chosen = false;
        for (int i = 0; i < router.topk_group; ++i) {
            const uint64_t best = warp_greatest(group_key);
            if (best != group_key || lane >= router.n_group) continue;
            chosen = true;
            group_key = 0;
        }
        if (lane < router.n_group && !chosen)
            for (int e = lane * size; e < (lane + 1) * size; ++e) keys[e] = 0;
        __syncwarp();
    }

    float sum = 0.0f;
    int expert = 0;  // lane i keeps the i-th
    for (int i = 0; i < router.num_experts_per_tok; ++i) {
        uint64_t best = 0;
        for (int e = lane; e < experts; e += kWarpSize) best = greater(best, keys[e]);
        best = warp_greatest(best);
        const int picked = best == 0 ? 0 : index_of(best);
        if (lane == 0) keys[picked] = 0;
        __syncwarp();
        sum += scores[picked];
        if (lane == i) expert = picked;
    }
    if (lane >= router.num_experts_per_tok) return;
    const float share = router.norm_topk_prob != 0 ? scores[expert] / (sum + 1e-20f) : scores[expert];
    const int64_t to = int64_t{blockIdx.x} * router.num_experts_per_tok + lane;
    args.experts[to] = expert;
    args.weights[to] = share * router.routed_scaling_factor;
}

}  // namespace

void route(Queue& queue, const Router& router, const float* logits, const float* bias, int32_t* experts, float* weights,
           int32_t rows) {
    if (rows == 0) return;
    if (router.num_experts_per_tok > kWarpSize || router.n_group > kMaxGroups)
        fail(KDT_UNSUPPORTED, "the router takes at most %d experts a token and %d groups, not %d and %d", kWarpSize,
             kMaxGroups, router.num_experts_per_tok, router.n_group);
    const RouteArgs args = {logits, bias, experts, weights, router};
    const size_t shared = static_cast<size_t>(router.n_routed_experts) * (sizeof(uint64_t) + sizeof(float));
    cuda::allow_shared(route_row, shared, queue.impl()->device);
    cuda::launch_overlapped(route_row, dim3(static_cast<unsigned>(rows)), kWarpSize, shared, queue.impl()->stream,
                            args);
}

}  // namespace kdt::engine
