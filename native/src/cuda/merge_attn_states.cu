// SPDX-License-Identifier: Apache-2.0
//
// merge_attn_states: two attention results over disjoint slots, each weighted by its share of the softmax's sum
// (the merge of cascade attention, FlashInfer, arXiv 2501.01005).
//
// Bound by memory: a row belongs to neighbouring lanes of one warp, each of which asks for all its 16-byte chunks of
// both sides before it uses the first.
#include <cuda_bf16.h>

#include <cstdint>

#include "core/checks.h"
#include "cuda/block.cuh"
#include "cuda/cuda_check.h"
#include "kdtree/kdtree.h"

namespace kdt::cuda {
namespace {

constexpr int kMergeThreads = 256;
constexpr int kChunkValues = 8;  // bf16 in 16 bytes
static_assert(KDT_KV_LORA_RANK <= 2 * kWarpSize * kChunkValues, "two chunks a lane hold a row");

struct MergeArgs {
    const uint4* out_a;
    const float* lse_a;
    const uint4* out_b;
    const float* lse_b;
    uint4* out;
    float* lse;
    int rows;
    int chunks;      // of a row
    int lanes_log2;  // lanes a row
};

// The sides' shares of a row and its lse; NaN in gives NaN out. A side that has seen nothing has share 0.
struct Shares {
    float a, b, lse;
};

__device__ __forceinline__ Shares shares_of(float lse_a, float lse_b) {
    const float top = fmaxf(lse_a, lse_b);
    if (top == -INFINITY && lse_a == lse_b) return {0.0f, 0.0f, -INFINITY};
    const float a = expf(lse_a - top);
    const float b = expf(lse_b - top);
    const float sum = a + b;  // a NaN on either side ends up here, whatever fmaxf made of it
    return {a / sum, b / sum, top + logf(sum)};
}

// Two values of a and b. Products and sum are rounded one by one: a fused multiply-add would round differently with the
// sides exchanged.
__device__ __forceinline__ uint32_t merge_pair(uint32_t a, uint32_t b, const Shares& shares) {
    const float low =
        __fadd_rn(__fmul_rn(__uint_as_float(a << 16), shares.a), __fmul_rn(__uint_as_float(b << 16), shares.b));
    const float high = __fadd_rn(__fmul_rn(__uint_as_float(a & 0xffff0000u), shares.a),
                                 __fmul_rn(__uint_as_float(b & 0xffff0000u), shares.b));
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

template <int kSteps>
__global__ void __launch_bounds__(kMergeThreads) merge(const MergeArgs args) {
    const uint32_t rows_per_block = kMergeThreads >> args.lanes_log2;
    const uint32_t row = blockIdx.x * rows_per_block + (threadIdx.x >> args.lanes_log2);
    const int lanes = 1 << args.lanes_log2;
    const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
    const bool exists = row < static_cast<uint32_t>(args.rows);

    Shares shares = {};
    uint4 a[kSteps], b[kSteps];
    if (exists) {
        const float lse_a = args.lse_a[row];
        const float lse_b = args.lse_b[row];
        const int64_t at = int64_t{row} * args.chunks + lane;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
            a[i] = b[i] = make_uint4(0, 0, 0, 0);
            if (lane + i * lanes >= args.chunks) continue;
            a[i] = args.out_a[at + i * lanes];
            b[i] = args.out_b[at + i * lanes];
        }
        // -0, which adding leaves anything as it is; what a side without slots holds may be NaN.
        const uint4 nothing = make_uint4(0x80008000u, 0x80008000u, 0x80008000u, 0x80008000u);
        shares = shares_of(lse_a, lse_b);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
            if (lse_a == -INFINITY) a[i] = nothing;
            if (lse_b == -INFINITY) b[i] = nothing;
            if (shares.lse == -INFINITY) a[i] = make_uint4(0, 0, 0, 0);
        }
    }
    // In place, lse is one of the two that all lanes of the row have to read first.
    __syncwarp();
    if (!exists) return;
    const int64_t at = int64_t{row} * args.chunks + lane;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
        if (lane + i * lanes >= args.chunks) continue;
        args.out[at + i * lanes] = make_uint4(merge_pair(a[i].x, b[i].x, shares), merge_pair(a[i].y, b[i].y, shares),
                                              merge_pair(a[i].z, b[i].z, shares), merge_pair(a[i].w, b[i].w, shares));
    }
    if (lane == 0) args.lse[row] = shares.lse;
}

void launch(const kdt_merge_attn_states_params& p) {
    MergeArgs args = {};
    args.out_a = static_cast<const uint4*>(p.out_a);
    args.lse_a = p.lse_a;
    args.out_b = static_cast<const uint4*>(p.out_b);
    args.lse_b = p.lse_b;
    args.out = static_cast<uint4*>(p.out);
    args.lse = p.lse;
    args.rows = p.rows;
    args.chunks = p.head_dim / kChunkValues;
    while ((1 << args.lanes_log2) < args.chunks && (1 << args.lanes_log2) < kWarpSize) ++args.lanes_log2;
    const int rows_per_block = kMergeThreads >> args.lanes_log2;
    const int blocks = (p.rows - 1) / rows_per_block + 1;
    const cudaStream_t stream = static_cast<cudaStream_t>(p.stream);
    if (args.chunks > kWarpSize)
        merge<2><<<blocks, kMergeThreads, 0, stream>>>(args);
    else
        merge<1><<<blocks, kMergeThreads, 0, stream>>>(args);
    check_launch("the launch of merge_attn_states's kernel");
}

}  // namespace
}  // namespace kdt::cuda

extern "C" kdt_status kdt_merge_attn_states_workspace_size(const kdt_merge_attn_states_params* params, size_t* bytes) {
    return kdt::guarded([&] {
        const kdt_merge_attn_states_params p = kdt::read_params(params);
        kdt::check_bytes_out("merge_attn_states", bytes);
        kdt::check_merge_attn_states_sizes(p);
        kdt::cuda::current_device();
        *bytes = 0;
    });
}

extern "C" kdt_status kdt_merge_attn_states(const kdt_merge_attn_states_params* params) {
    return kdt::guarded([&] {
        const kdt_merge_attn_states_params p = kdt::read_params(params);
        kdt::check_merge_attn_states(p);
        if (p.rows > 0) {
            // Read and written 16 bytes at a time.
            kdt::check_alignment("merge_attn_states", "out_a", p.out_a, 16);
            kdt::check_alignment("merge_attn_states", "out_b", p.out_b, 16);
            kdt::check_alignment("merge_attn_states", "out", p.out, 16);
        }
        kdt::cuda::current_device();
        if (p.rows == 0) return;
        kdt::cuda::launch(p);
    });
}
