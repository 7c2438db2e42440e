// SPDX-License-Identifier: Apache-2.0
//
// Second kernel of verify_attn, when slots are split: a block a row adds the splits' partial results, in their order
// whatever order they were computed in.
//
// A kernel of its own, because that spreads the partials of few row tiles over all multiprocessors: the last block of a
// tile to finish would have to read them alone, which was measured two to four times slower in all. It waits for memory
// and little else, so each thread asks for several splits at a time, and with many of them several groups of threads
// share the row.
#ifndef KDTREE_CUDA_VERIFY_ATTN_COMBINE_CUH
#define KDTREE_CUDA_VERIFY_ATTN_COMBINE_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/verify_attn/attend.cuh"
#include "cuda/verify_attn/layout.cuh"

namespace kdt::cuda::verify_attn {

constexpr int kGroupThreads = kRank / 4;  // a group: each thread has four columns
static_assert(kMaxSplits <= kGroupThreads, "a thread looks at one split");

// Threads a multiprocessor holds. A bound on registers for more blocks than fit would be ignored.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int kResidentThreads = 1536;
#else
constexpr int kResidentThreads = 2048;
#endif

// What the kernel is compiled for: many rows and few splits, or any number.
struct FewSplits {
    static constexpr int kMost = 4;
    static constexpr int kInFlight = 4;  // splits that a thread asks for before it adds the first
    static constexpr int kGroups = 1;
    static constexpr int kBlocksPerMultiprocessor = kResidentThreads / kGroupThreads;
};
struct AnySplits {
    static constexpr int kMost = kMaxSplits;
    static constexpr int kInFlight = 8;
    static constexpr int kGroups = 4;
    // Keeps the compiler from sparing registers, which would have each load wait for the last.
    static constexpr int kBlocksPerMultiprocessor = 2;
};

// The splits that saw something of a row, in order, and their weights 2^(lse - maximum).
template <int kMost>
struct SeenSplits {
    float weight[kMost];
    int split[kMost];
};

// For a whole warp: weights[k] is that of split k * 32 + lane. Returns how many are not 0, and lists them if asked.
template <int kWords, int kMost>
__device__ __forceinline__ int list_seen(const float (&weights)[kWords], int lane, bool store,
                                         SeenSplits<kMost>& seen) {
    int count = 0;
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
        const unsigned which = __ballot_sync(kAllLanes, weights[k] != 0.0f);
        if (store && weights[k] != 0.0f) {
            const int place = count + __popc(which & ((1u << lane) - 1));
            seen.weight[place] = weights[k];
            seen.split[place] = k * kWarpSize + lane;
        }
        count += __popc(which);
    }
    return count;
}

template <int kRows, class S>
__global__ void __launch_bounds__(kGroupThreads* S::kGroups, S::kBlocksPerMultiprocessor) combine(const Args args) {
    constexpr int kWords = (S::kMost + kWarpSize - 1) / kWarpSize;
    __shared__ float split_lse[S::kMost];
    __shared__ SeenSplits<S::kMost> seen;
    __shared__ float4 group_sums[S::kGroups][kGroupThreads];  // of groups behind the first
    const int b = blockIdx.x / args.num_rows;
    const int row = blockIdx.x % args.num_rows;
    const int64_t first_unit = (int64_t{b} * args.tiles + row / kRows) * args.splits;
    const int row_in_tile = row % kRows;
    const int thread = threadIdx.x;
    const int lane = thread % kWarpSize;
    const int column = thread % kGroupThreads;
    const int group = thread / kGroupThreads;
    const int groups = blockDim.x / kGroupThreads;

    // A request is refused when any split of the tile says so: together they saw all its pages.
    int refused = 0;
    if (thread < args.splits) {
        refused = args.partials.status[first_unit + thread];
        split_lse[thread] = args.partials.lse[(first_unit + thread) * kRows + row_in_tile];
    }
    const bool any_refused = __syncthreads_or(refused != 0);
    if (row == 0 && args.status != nullptr) {
        // All splits that refuse do it for the same reason.
        if (refused != 0) args.status[b] = refused;
        if (thread == 0 && !any_refused) args.status[b] = 0;
    }

    // Each warp for itself, the same way: maximum, weights, their sum.
    float weights[kWords];
    float maximum = -INFINITY;
    bool anything = false;  // the maximum does not say so of NaN
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
        const int s = k * kWarpSize + lane;
        weights[k] = s < args.splits ? split_lse[s] : -INFINITY;
        maximum = fmaxf(maximum, weights[k]);
        anything |= weights[k] != -INFINITY;
    }
    anything = __any_sync(kAllLanes, anything);
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2)
        maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, step));

    const int64_t at = int64_t{b} * args.num_rows + row;
    uint2* const out = reinterpret_cast<uint2*>(args.out + at * kRank) + column;
    if (any_refused || !anything) {  // a pad
        if (group == 0) *out = make_uint2(0, 0);
        if (thread == 0) args.lse[at] = -INFINITY;
        return;
    }
    // With NaN and -inf alone: -inf - -inf would make NaN of splits that saw nothing, and of those that there are not.
    const float base = maximum == -INFINITY ? 0.0f : maximum;
    float total = 0.0f;
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
        weights[k] = ptx::exp2_approx(weights[k] - base);
        total += weights[k];
    }
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
    // Splits that saw nothing may not have written anything, so only the others are ever read.
    const int count = list_seen(weights, lane, thread < kWarpSize, seen);
    __syncthreads();

    const float4* const partial =
        reinterpret_cast<const float4*>(args.partials.out + (first_unit * kRows + row_in_tile) * kRank) + column;
    const int share = (count + groups - 1) / groups;
    const int end = min(count, (group + 1) * share);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int first = group * share; first < end; first += S::kInFlight) {
        float4 parts[S::kInFlight];
#pragma unroll
        for (int i = 0; i < S::kInFlight; ++i) {
            parts[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (first + i < end) parts[i] = partial[int64_t{seen.split[first + i]} * kRows * kGroupThreads];
        }
#pragma unroll
        for (int i = 0; i < S::kInFlight; ++i) {
            const float weight = first + i < end ? seen.weight[first + i] : 0.0f;
            sum.x += weight * parts[i].x;
            sum.y += weight * parts[i].y;
            sum.z += weight * parts[i].z;
            sum.w += weight * parts[i].w;
        }
    }
    if (S::kGroups > 1 && groups > 1) {
        if (group > 0) group_sums[group][column] = sum;
        __syncthreads();
        if (group > 0) return;
        for (int g = 1; g < groups; ++g) {
            const float4 other = group_sums[g][column];
            sum.x += other.x;
            sum.y += other.y;
            sum.z += other.z;
            sum.w += other.w;
        }
    }
    const float scale = 1.0f / total;
    const __nv_bfloat162 low = __floats2bfloat162_rn(sum.x * scale, sum.y * scale);
    const __nv_bfloat162 high = __floats2bfloat162_rn(sum.z * scale, sum.w * scale);
    *out = make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
    if (thread == 0) args.lse[at] = (maximum + log2f(total)) * kLn2;
}

template <int kRows>
void launch_combine(const Args& args, cudaStream_t stream) {
    const int blocks = args.batch * args.num_rows;
    if (args.splits <= FewSplits::kMost) {
        combine<kRows, FewSplits><<<blocks, kGroupThreads, 0, stream>>>(args);
    } else {
        const int groups = (args.splits + AnySplits::kInFlight - 1) / AnySplits::kInFlight;
        const int threads = kGroupThreads * (groups < AnySplits::kGroups ? groups : AnySplits::kGroups);
        combine<kRows, AnySplits><<<blocks, threads, 0, stream>>>(args);
    }
}

}  // namespace kdt::cuda::verify_attn

#endif  // KDTREE_CUDA_VERIFY_ATTN_COMBINE_CUH
