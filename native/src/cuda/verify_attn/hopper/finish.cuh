// SPDX-License-Identifier: Apache-2.0
//
// From a block's sums to the answer. With one split a block writes its rows. With several, each block of a cluster adds
// up its part of the columns over the cluster's splits, read from their shared memory; and with several clusters a
// split, the last of them to arrive adds up what all left in the workspace. Splits are added in their order whoever
// comes last, so the same inputs give the same bits.
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_FINISH_CUH
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_FINISH_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ticket.cuh"
#include "cuda/verify_attn/hopper/layout.cuh"
#include "cuda/verify_attn/hopper/softmax.cuh"

namespace kdt::cuda::verify_attn::hopper {

constexpr float kLn2 = 0.69314718f;

__device__ __forceinline__ void sync_consumers() {
    ptx::named_barrier_sync<kConsumers>(kAllConsumers);
}

__device__ __forceinline__ int64_t output_row(const Args& args, const Work& work, int r) {
    return int64_t{work.b} * args.num_rows + work.first_row + r;
}

// All rows of the block are pads, known before anything was computed.
__device__ __forceinline__ void write_nothing(const Args& args, const Work& work, int status) {
    if (work.group != 0 || work.split != 0) return;
    const int thread = threadIdx.x;
    if (work.tile == 0 && thread == 0 && args.status != nullptr) args.status[work.b] = status;
    if (thread < work.rows) args.lse[output_row(args, work, thread)] = -INFINITY;
    if (work.rows == 0) return;
    uint4* const out = reinterpret_cast<uint4*>(args.out + output_row(args, work, 0) * kRank);
    for (int i = thread; i < work.rows * kRank / 8; i += kThreads) out[i] = make_uint4(0, 0, 0, 0);
}

// The whole sum of weights of this thread's rows, and their lse to shared memory; answers what to scale the output by:
// 0 for a row that saw nothing.
__device__ __forceinline__ void finish_rows(const Args& args, const Work& work, RowState& state, int side, int warp,
                                            int lane, Shared& shared, float (&scale)[2]) {
    const int row = warp * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = state.sum[h];
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        if (lane % 4 == 0) shared.sums[side][row + 8 * h] = sum;
    }
    // The loading group has checked all pages, and nobody reads the stages any more.
    ptx::named_barrier_sync<kThreads - 32>(kMainLoopDone);
    const int first_node = node_of(args, work.first_row);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int r = row + 8 * h;
        const int node = node_of(args, work.first_row + r) - first_node;
        const bool live = r < work.rows && (shared.live_nodes >> node & 1) != 0;
        // A pad has a sum as well, of the prefix or NaN.
        const float sum = live ? shared.sums[0][r] + shared.sums[1][r] : 0.0f;
        scale[h] = sum == 0.0f ? 0.0f : 1.0f / sum;
        if (side == 0 && lane % 4 == 0) shared.lse[r] = sum == 0.0f ? -INFINITY : state.reference[h] + log2f(sum);
    }
}

// Where 8 columns of a row lie among a block's staged rows of 16-bit values, swizzled against bank conflicts.
__device__ __forceinline__ uint32_t staged_offset(int r, int chunk) {
    return static_cast<uint32_t>(r * kRank * 2 + ((chunk ^ (r & 7)) << 4));
}

__device__ __forceinline__ uint32_t pack_bf16(float x, float y) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

// The block's rows times `scale` to shared memory, in the format that pack makes of two values. Rows of pads may be NaN
// (their queries may hold anything), which their scale of 0 does not clear; they count for nothing.
template <class Pack>
__device__ __forceinline__ void stage_rows(const float (&out)[128], const float (&scale)[2], int side, int warp,
                                           int lane, Shared& shared, Pack pack) {
    const uint32_t at =
        ptx::shared_address(&shared.stages[0][0]) + staged_offset(warp * 16 + lane % 16, side * 32 + lane / 16);
#pragma unroll
    for (int n = 0; n < 32; n += 2) {
        uint32_t pairs[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            pairs[i] = pack(out[4 * n + 2 * i] * scale[i % 2], out[4 * n + 2 * i + 1] * scale[i % 2]);
        ptx::stmatrix_x4(at ^ (n << 4), pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

// A split's rows, of weight 1, in f16 and units of a power of two that is their own: half a row's greatest value lies
// between 1 and 2 of them. That is eight times as exact as bf16, which would show in the sum of splits.
__device__ __forceinline__ void stage_split(const float (&out)[128], const float (&scale)[2], int side, int warp,
                                            int lane, Shared& shared) {
    float greatest[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 128; ++i) greatest[i / 2 % 2] = fmaxf(greatest[i / 2 % 2], fabsf(out[i]));
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        greatest[h] = fmaxf(greatest[h], __shfl_xor_sync(kAllLanes, greatest[h], 1));
        greatest[h] = fmaxf(greatest[h], __shfl_xor_sync(kAllLanes, greatest[h], 2)) * scale[h];
        // The exponent alone; 1 for zeros, subnormals and what is no number.
        const uint32_t exponent = __float_as_uint(greatest[h]) & 0x7f800000u;
        const bool ordinary = exponent != 0 && exponent < 0x7f000000u;
        if (lane % 4 == 0)
            shared.units[side][warp * 16 + lane / 4 + 8 * h] = ordinary ? __uint_as_float(exponent) : 1.0f;
        inverse[h] = ordinary ? scale[h] * __uint_as_float(0x7f000000u - exponent) : scale[h];
    }
    stage_rows(out, inverse, side, warp, lane, shared, [](float x, float y) { return ptx::pack_f16(x, y); });
}

// The only split: staged rows to the output, in whole lines.
__device__ __forceinline__ void write_rows(const Args& args, const Work& work, const float (&scale)[2], int side,
                                           int warp, int lane, Shared& shared) {
    const unsigned char* const staged = &shared.stages[0][0];
    const bool refused = shared.refused != 0;
    // Four lanes a row: bit 4 i stands for row i or i + 8 of the warp.
    const uint32_t low_pads = __ballot_sync(kAllLanes, scale[0] == 0.0f);
    const uint32_t high_pads = __ballot_sync(kAllLanes, scale[1] == 0.0f);
    // A warp's rows are its own.
    __syncwarp();
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
        const int r = warp * 16 + i;
        if (r >= work.rows) break;
        const bool pad = refused || ((i < 8 ? low_pads : high_pads) >> (i % 8 * 4) & 1) != 0;
        const uint4 chunk =
            pad ? make_uint4(0, 0, 0, 0) : *reinterpret_cast<const uint4*>(staged + staged_offset(r, side * 32 + lane));
        reinterpret_cast<uint4*>(args.out + output_row(args, work, r) * kRank + side * 256)[lane] = chunk;
    }
    if (side == 0) {
        const int r = warp * 16 + lane;
        if (lane < 16 && r < work.rows)
            args.lse[output_row(args, work, r)] = refused ? -INFINITY : shared.lse[r] * kLn2;
    }
    if (work.tile == 0 && side == 0 && warp == 0 && lane == 0 && args.status != nullptr)
        args.status[work.b] = shared.refused;
}

// Turns the lse of `count` parts of a row into their shares of the whole, and tells the whole's lse.
template <int kMaxCount, class Lse>
__device__ __forceinline__ void share_out(int r, int count, Shared& shared, Lse lse_of) {
    float lse[kMaxCount];
#pragma unroll
    for (int s = 0; s < kMaxCount; ++s) lse[s] = s < count ? lse_of(s) : -INFINITY;
    float maximum = -INFINITY;
#pragma unroll
    for (int s = 0; s < kMaxCount; ++s) maximum = fmaxf(maximum, lse[s]);
    const float base = maximum == -INFINITY ? 0.0f : maximum;  // a pad, or NaN
    float total = 0.0f;
#pragma unroll
    for (int s = 0; s < kMaxCount; ++s) {
        lse[s] = ptx::exp2_approx(lse[s] - base);
        total += lse[s];
    }
    const float scale = total == 0.0f ? 0.0f : 1.0f / total;
#pragma unroll
    for (int s = 0; s < kMaxCount; ++s)
        if (s < count) shared.shares[s][r] = lse[s] == 0.0f ? 0.0f : lse[s] * scale;
    shared.total_lse[r] = total == 0.0f ? -INFINITY : base + log2f(total);
}

// sum += weight * eight f16 values.
__device__ __forceinline__ void add_weighted(float (&sum)[8], float weight, const uint4& values) {
    if (weight == 0.0f) return;
    const uint32_t pairs[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float low, high;
        ptx::unpack_f16(pairs[i], low, high);
        sum[2 * i] += weight * low;
        sum[2 * i + 1] += weight * high;
    }
}

// sum += weight * eight f32 values.
__device__ __forceinline__ void add_weighted(float (&sum)[8], float weight, const float4& low, const float4& high) {
    if (weight == 0.0f) return;
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += weight * values[i];
}

__device__ __forceinline__ uint4 to_bf16(const float (&v)[8]) {
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}

// This block's part of the columns, over all splits: the splits of the cluster, then the clusters.
__device__ __forceinline__ void add_splits(const Args& args, const Work& work, int thread, Shared& shared) {
    const int splits = args.cluster_splits;
    const uint32_t staged = ptx::shared_address(&shared.stages[0][0]);
    const int chunk_bits = __ffs(kRank / 8 / splits) - 1;  // of 8 columns, in this block's part of a row
    const int first_chunk = work.split << chunk_bits;
    const int last_chunk_in_part = (1 << chunk_bits) - 1;

    if (thread < kRows) {
        const uint32_t at = ptx::shared_address(&shared.lse[thread]);
        share_out<kMaxClusterSplits>(thread, splits, shared,
                                     [&](int s) { return ptx::cluster_load_float(ptx::cluster_address(at, s)); });
        // With two splits or more, a block's columns lie in one half.
        const uint32_t units_at = ptx::shared_address(&shared.units[first_chunk / 32][thread]);
        float units[kMaxClusterSplits];
#pragma unroll
        for (int s = 0; s < kMaxClusterSplits; ++s)
            if (s < splits) units[s] = ptx::cluster_load_float(ptx::cluster_address(units_at, s));
#pragma unroll
        for (int s = 0; s < kMaxClusterSplits; ++s)
            if (s < splits) shared.shares[s][thread] *= units[s];
    }
    int refused = 0;
#pragma unroll
    for (int s = 0; s < kMaxClusterSplits; ++s)
        if (s < splits) refused |= ptx::cluster_load_int(ptx::cluster_address(ptx::shared_address(&shared.refused), s));
    sync_consumers();

    const bool last_level = args.groups == 1;
    const int64_t unit = int64_t{work.b} * args.tiles + work.tile;
    const int64_t part = unit * args.groups + work.group;
    float4* const partial = reinterpret_cast<float4*>(args.partials.out + part * kRows * kRank);
    uint4* const out = reinterpret_cast<uint4*>(args.out + output_row(args, work, 0) * kRank);
    const uint4 nothing = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (int i = thread; i < work.rows << chunk_bits; i += kConsumers) {
        const int r = i >> chunk_bits;
        const int chunk = first_chunk + (i & last_chunk_in_part);
        uint4 values[kMaxClusterSplits];
#pragma unroll
        for (int s = 0; s < kMaxClusterSplits; ++s)
            if (s < splits)
                values[s] = ptx::cluster_load_uint4(ptx::cluster_address(staged + staged_offset(r, chunk), s));
        float sum[8] = {};
#pragma unroll
        for (int s = 0; s < kMaxClusterSplits; ++s)
            if (s < splits) add_weighted(sum, shared.shares[s][r], values[s]);
        if (last_level) {
            out[r * (kRank / 8) + chunk] = refused != 0 ? nothing : to_bf16(sum);
        } else {
            partial[(r * (kRank / 8) + chunk) * 2] = make_float4(sum[0], sum[1], sum[2], sum[3]);
            partial[(r * (kRank / 8) + chunk) * 2 + 1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
        }
    }
    // The other blocks of the cluster may go when this one has read their rows; the wait is at the kernel's end.
    ptx::cluster_arrive();

    if (!last_level) {
        const int64_t slice = part * splits + work.split;
        if (thread < kRows) args.partials.lse[slice * kRows + thread] = shared.total_lse[thread];
        if (thread == 0) args.partials.status[slice] = refused;
        sync_consumers();
        if (thread == 0)
            shared.is_last = is_last_arriver(&args.partials.tickets[unit * splits + work.split], args.groups) ? 1 : 0;
        sync_consumers();
        if (shared.is_last == 0) return;
        const int64_t first_slice = unit * args.groups * splits + work.split;
        if (thread < kRows)
            share_out<kMaxGroups>(thread, args.groups, shared, [&](int g) {
                return __ldcg(&args.partials.lse[(first_slice + g * splits) * kRows + thread]);
            });
        refused = 0;
        for (int g = 0; g < args.groups; ++g) refused |= __ldcg(&args.partials.status[first_slice + g * splits]);
        sync_consumers();
        const float4* const partials =
            reinterpret_cast<const float4*>(args.partials.out) + unit * args.groups * kRows * (kRank / 4);
#pragma unroll 1
        for (int i = thread; i < work.rows << chunk_bits; i += kConsumers) {
            const int r = i >> chunk_bits;
            const int chunk = first_chunk + (i & last_chunk_in_part);
            float sum[8] = {};
#pragma unroll 4
            for (int g = 0; g < args.groups; ++g) {
                const float4* const from = &partials[(int64_t{g} * kRows + r) * (kRank / 4) + chunk * 2];
                add_weighted(sum, shared.shares[g][r], __ldcg(from), __ldcg(from + 1));
            }
            out[r * (kRank / 8) + chunk] = refused != 0 ? nothing : to_bf16(sum);
        }
    }
    if (work.split != 0) return;
    if (thread < work.rows)
        args.lse[output_row(args, work, thread)] = refused != 0 ? -INFINITY : shared.total_lse[thread] * kLn2;
    if (work.tile == 0 && thread == 0 && args.status != nullptr) args.status[work.b] = refused;
}

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_FINISH_CUH
