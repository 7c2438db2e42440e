// SPDX-License-Identifier: Apache-2.0
//
// The routed experts' MLPs. (token, expert) pairs are sorted by expert on the device; then each expert that has any
// multiplies its pairs by its weights, gate and up in one go, and down; then each token adds up what its experts said,
// in the order of their ranks. Results are kept by pair, so the order inside an expert does not show.
#include "cuda/overlap.cuh"
#include "engine/cuda/narrow.cuh"
#include "engine/cuda/queue.h"

namespace kdt::engine {
namespace {

using cuda::kAllLanes;
using cuda::kWarpSize;

constexpr int kSortThreads = 1024;
constexpr int kMaxExperts = 1024;  // a thread an expert
constexpr int kTiles = 2;
constexpr int kTokens = kTiles * kTileRows;  // pairs an expert multiplies at once
constexpr int kUnroll = 2;
constexpr int kThreads = 256;

// What the kernels leave for one another, in the workspace.
struct Lists {
    int32_t* num_active;
    int32_t* active;  // [E] experts with pairs
    int32_t* starts;  // [E + 1] of their pairs
    int32_t* pairs;   // [rows k] sorted by expert
};

struct ExpertArgs {
    const void* x;
    const int32_t* experts;
    const float* weights;
    const void* gate_up;
    const void* down;
    void* out;
    void* gated;     // act [rows k, intermediate]
    float* answers;  // [rows k, hidden]
    Lists lists;
    int num_experts;
    int num_experts_per_tok;
    int rows;
    int hidden;
    int intermediate;
};

__global__ void __launch_bounds__(kSortThreads) sort_pairs(const ExpertArgs args) {
    __shared__ cuda::Block<kSortThreads>::Shared block_shared;
    __shared__ uint32_t counts[kMaxExperts];
    cuda::Block<kSortThreads> block(block_shared);
    const int thread = static_cast<int>(threadIdx.x);
    const int pairs = args.rows * args.num_experts_per_tok;
    counts[thread] = 0;
    __syncthreads();
    cuda::wait_for_earlier_kernels();
    const auto expert_of = [&](int pair) {
        const int expert = args.experts[pair];
        return expert >= 0 && expert < args.num_experts ? expert : 0;
    };
    for (int pair = thread; pair < pairs; pair += kSortThreads) atomicAdd(&counts[expert_of(pair)], 1u);
    cuda::let_next_kernel_come();
    __syncthreads();
    const uint32_t count = counts[thread];
    uint32_t total = 0, num_active = 0;
    const uint32_t start = block.exclusive_scan(count, total);
    const uint32_t rank = block.exclusive_scan(count > 0 ? 1u : 0u, num_active);
    if (thread < args.num_experts) args.lists.starts[thread] = static_cast<int32_t>(start);
    if (count > 0) args.lists.active[rank] = thread;
    if (thread == 0) {
        args.lists.starts[args.num_experts] = pairs;
        *args.lists.num_active = static_cast<int32_t>(num_active);
    }
    counts[thread] = start;
    __syncthreads();
    for (int pair = thread; pair < pairs; pair += kSortThreads)
        args.lists.pairs[atomicAdd(&counts[expert_of(pair)], 1u)] = pair;
}

__device__ __forceinline__ float gated(float gate, float up) {
    return gate / (1.0f + expf(-gate)) * up;
}

// The pairs of the blockIdx.y-th expert that has any.
struct Share {
    int expert, begin, end;
};
__device__ __forceinline__ bool share_of(const ExpertArgs& args, Share& share) {
    const int rank = static_cast<int>(blockIdx.y);
    if (rank >= *args.lists.num_active) return false;
    share.expert = args.lists.active[rank];
    share.begin = args.lists.starts[share.expert];
    share.end = args.lists.starts[share.expert + 1];
    return true;
}

// ---- bf16

// kDown: from `gated` to `answers`, else from x to `gated`.
template <bool kDown>
__global__ void __launch_bounds__(kThreads, 1) multiply_narrow(const ExpertArgs args) {
    constexpr int kParts = kDown ? 1 : 2;  // gate and up
    __shared__ NarrowShared<kTiles> shared[kParts];
    const int warps = static_cast<int>(blockDim.x) / kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int g = lane / 4, t = lane % 4;
    const int in = kDown ? args.intermediate : args.hidden;
    const int out = kDown ? args.hidden : args.intermediate;
    const int feature = static_cast<int>(blockIdx.x) * kNarrowFeatures;
    cuda::wait_for_earlier_kernels();
    cuda::let_next_kernel_come();
    Share share = {};
    if (!share_of(args, share)) return;
    const Bf16* const w =
        static_cast<const Bf16*>(kDown ? args.down : args.gate_up) + int64_t{share.expert} * kParts * out * in;
    const int begin = warp * kNarrowStep, offset = t * kChunk, stride = warps * kNarrowStep;
    for (int first = share.begin; first < share.end; first += kTokens) {
        const Bf16* x_rows[kTiles];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const int at = first + tile * kTileRows + g;
            const int pair = at < share.end ? args.lists.pairs[at] : -1;
            if (pair < 0)
                x_rows[tile] = nullptr;
            else if (kDown)
                x_rows[tile] = static_cast<const Bf16*>(args.gated) + int64_t{pair} * in;
            else
                x_rows[tile] = static_cast<const Bf16*>(args.x) + int64_t{pair / args.num_experts_per_tok} * in;
        }
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const Bf16* const rows = w + (int64_t{part} * out + feature) * in;
            const Bf16* const low = feature + g < out ? rows + int64_t{g} * in : nullptr;
            const Bf16* const high = feature + g + 8 < out ? rows + int64_t{g + 8} * in : nullptr;
            NarrowWeights<kUnroll> weights;
            weights.load(low, high, begin + offset, stride, in);
            float sums[kTiles][4] = {};
            narrow_sums<kTiles>(sums, weights, low, high, x_rows, begin, offset, stride, in);
            shared[part].put(warp, lane, sums);
        }
        __syncthreads();
        for (int item = static_cast<int>(threadIdx.x); item < kTokens * kNarrowFeatures;
             item += static_cast<int>(blockDim.x)) {
            const int row = item / kNarrowFeatures, column = item % kNarrowFeatures;
            if (first + row >= share.end || feature + column >= out) continue;
            const int64_t to = int64_t{args.lists.pairs[first + row]} * out + feature + column;
            const float sum = shared[0].total(warps, row, column);
            if constexpr (kDown)
                args.answers[to] = sum;
            else
                static_cast<Bf16*>(args.gated)[to] =
                    from_float<Bf16>(gated(sum, shared[kParts - 1].total(warps, row, column)));
        }
        __syncthreads();
    }
}

// ---- f32, and bf16 of odd sizes: a warp a feature

template <class T>
__device__ __forceinline__ float warp_dot(const T* a, const T* b, int count, int lane) {
    float sum = 0.0f;
    for (int i = lane; i < count; i += kWarpSize) sum += to_float(a[i]) * to_float(b[i]);
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    return sum;
}

template <class T, bool kDown>
__global__ void __launch_bounds__(kThreads) multiply_dots(const ExpertArgs args) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int feature =
        static_cast<int>(blockIdx.x) * (kThreads / kWarpSize) + static_cast<int>(threadIdx.x) / kWarpSize;
    const int64_t in = kDown ? args.intermediate : args.hidden;
    const int64_t out = kDown ? args.hidden : args.intermediate;
    cuda::wait_for_earlier_kernels();
    cuda::let_next_kernel_come();
    Share share = {};
    if (!share_of(args, share) || feature >= out) return;
    for (int at = share.begin; at < share.end; ++at) {
        const int64_t pair = args.lists.pairs[at];
        if constexpr (kDown) {
            const float sum = warp_dot(static_cast<const T*>(args.down) + (share.expert * out + feature) * in,
                                       static_cast<const T*>(args.gated) + pair * in, args.intermediate, lane);
            if (lane == 0) args.answers[pair * out + feature] = sum;
        } else {
            const T* const w = static_cast<const T*>(args.gate_up) + (share.expert * 2 * out + feature) * in;
            const T* const x = static_cast<const T*>(args.x) + pair / args.num_experts_per_tok * in;
            const float gate = warp_dot(w, x, args.hidden, lane);
            const float up = warp_dot(w + out * in, x, args.hidden, lane);
            if (lane == 0) static_cast<T*>(args.gated)[pair * out + feature] = from_float<T>(gated(gate, up));
        }
    }
}

template <class T>
__global__ void __launch_bounds__(kThreads) add_answers(const ExpertArgs args) {
    const int column = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
    const int64_t row = blockIdx.x;
    cuda::wait_for_earlier_kernels();
    if (column >= args.hidden) return;
    float sum = 0.0f;
    for (int i = 0; i < args.num_experts_per_tok; ++i) {
        const int64_t pair = row * args.num_experts_per_tok + i;
        sum += args.weights[pair] * args.answers[pair * args.hidden + column];
    }
    T* const out = static_cast<T*>(args.out) + row * args.hidden + column;
    *out = from_float<T>(to_float(*out) + sum);
    cuda::let_next_kernel_come();
}

// Hands out the workspace's parts, from address 0 to measure it.
size_t carve(ExpertArgs& args, Dtype dtype, char* base) {
    size_t used = 0;
    const auto take = [&](size_t bytes) {
        char* const part = base + used;
        used += (bytes + 255) / 256 * 256;
        return part;
    };
    const size_t pairs = static_cast<size_t>(args.rows) * static_cast<size_t>(args.num_experts_per_tok);
    const size_t experts = static_cast<size_t>(args.num_experts);
    args.lists.num_active = reinterpret_cast<int32_t*>(take(sizeof(int32_t)));
    args.lists.active = reinterpret_cast<int32_t*>(take(experts * sizeof(int32_t)));
    args.lists.starts = reinterpret_cast<int32_t*>(take((experts + 1) * sizeof(int32_t)));
    args.lists.pairs = reinterpret_cast<int32_t*>(take(pairs * sizeof(int32_t)));
    args.gated = take(pairs * static_cast<size_t>(args.intermediate) * size_of(dtype));
    args.answers = reinterpret_cast<float*>(take(pairs * static_cast<size_t>(args.hidden) * sizeof(float)));
    return used;
}

ExpertArgs sizes_of(const Router& router, int hidden, int intermediate, int rows) {
    ExpertArgs args = {};
    args.num_experts = router.n_routed_experts;
    args.num_experts_per_tok = router.num_experts_per_tok;
    args.rows = rows;
    args.hidden = hidden;
    args.intermediate = intermediate;
    return args;
}

}  // namespace

size_t experts_workspace(Dtype dtype, const Router& router, int32_t hidden, int32_t intermediate, int32_t rows) {
    ExpertArgs args = sizes_of(router, hidden, intermediate, rows);
    return carve(args, dtype, nullptr);
}

void experts_add(Queue& queue, Dtype dtype, const Router& router, const void* x, const int32_t* experts,
                 const float* weights, const void* gate_up, const void* down, void* out, int32_t rows, int32_t hidden,
                 int32_t intermediate, void* workspace) {
    if (rows == 0) return;
    if (router.n_routed_experts > kMaxExperts)
        fail(KDT_UNSUPPORTED, "at most %d routed experts, not %d", kMaxExperts, router.n_routed_experts);
    const cudaStream_t stream = queue.impl()->stream;
    ExpertArgs args = sizes_of(router, hidden, intermediate, rows);
    carve(args, dtype, static_cast<char*>(workspace));
    args.x = x;
    args.experts = experts;
    args.weights = weights;
    args.gate_up = gate_up;
    args.down = down;
    args.out = out;
    cuda::launch_overlapped(sort_pairs, dim3(1), kSortThreads, stream, args);
    const int64_t pairs = int64_t{rows} * router.num_experts_per_tok;
    const auto active = static_cast<unsigned>(pairs < router.n_routed_experts ? pairs : router.n_routed_experts);
    by_dtype(dtype, [&](auto value) {
        using T = decltype(value);
        const bool chunks = hidden % kChunk == 0 && intermediate % kChunk == 0 && in_chunks<T>(x, hidden) &&
                            in_chunks<T>(gate_up, hidden) && in_chunks<T>(down, intermediate);
        if (std::is_same_v<T, Bf16> && chunks) {
            const dim3 up(static_cast<unsigned>(ceil_div(intermediate, kNarrowFeatures)), active);
            const dim3 across(static_cast<unsigned>(ceil_div(hidden, kNarrowFeatures)), active);
            cuda::launch_overlapped(multiply_narrow<false>, up, narrow_warps(hidden) * kWarpSize, stream, args);
            cuda::launch_overlapped(multiply_narrow<true>, across, narrow_warps(intermediate) * kWarpSize, stream,
                                    args);
        } else {
            const dim3 up(static_cast<unsigned>(ceil_div(intermediate, kThreads / kWarpSize)), active);
            const dim3 across(static_cast<unsigned>(ceil_div(hidden, kThreads / kWarpSize)), active);
            cuda::launch_overlapped(multiply_dots<T, false>, up, kThreads, stream, args);
            cuda::launch_overlapped(multiply_dots<T, true>, across, kThreads, stream, args);
        }
        const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(hidden, kThreads)));
        cuda::launch_overlapped(add_answers<T>, grid, kThreads, stream, args);
    });
}

}  // namespace kdt::engine
