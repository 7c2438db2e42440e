// SPDX-License-Identifier: Apache-2.0
//
// The sum of a row tile's splits. Each block of a cluster adds up its part of the columns over the cluster's splits,
// read from their shared memory; where a row tile has several clusters, its *groups*, their sums meet in the workspace,
// and the blocks that wrote them share out the rows. Splits are added in their order whoever comes when, so the same
// inputs give the same bits.
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_REDUCE_CUH
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_REDUCE_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/meeting.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/verify_attn/hopper/finish.cuh"
#include "cuda/verify_attn/hopper/layout.cuh"

namespace kdt::cuda::verify_attn::hopper {

// Turns the lse of `count` parts of a row into their shares of the whole, and answers the whole's lse. Four
// neighbouring lanes have a row; lane `quarter` of them parts quarter, quarter + 4 ...
template <int kEach>
__device__ __forceinline__ float share_out(float (&parts)[kEach]) {
    float maximum = -INFINITY;
#pragma unroll
    for (int i = 0; i < kEach; ++i) maximum = fmaxf(maximum, parts[i]);
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 2));
    const float base = maximum == -INFINITY ? 0.0f : maximum;  // a pad, or NaN
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        parts[i] = ptx::exp2_approx(parts[i] - base);
        total += parts[i];
    }
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    const float scale = total == 0.0f ? 0.0f : ptx::reciprocal_approx(total);
#pragma unroll
    for (int i = 0; i < kEach; ++i) parts[i] = parts[i] == 0.0f ? 0.0f : parts[i] * scale;
    return total == 0.0f ? -INFINITY : base + ptx::log2_approx(total);
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

// Which 8-column chunks of which rows of the block's part a thread adds up: rows first, first + step .. below `rows`.
struct Chunks {
    int chunk;
    int first;
    int step;

    __device__ Chunks(const Args& args, const Work& work, int thread) {
        const int begin = kRank / 8 * work.split / args.cluster_splits;
        const int width = kRank / 8 * (work.split + 1) / args.cluster_splits - begin;
        step = kConsumers / width;
        // thread / width, exact for so small numbers.
        const int row = static_cast<int>((static_cast<float>(thread) + 0.5f) / static_cast<float>(width));
        chunk = begin + thread - row * width;
        first = row < step ? row : kRows;
    }
};

// The rows' shares of the cluster's splits, the lse of their sum, and whether any split was refused.
__device__ __forceinline__ int share_out_splits(const Args& args, int thread, Shared& shared, Shares& shares) {
    constexpr int kEach = kMaxClusterSplits / 4;
    const int splits = args.cluster_splits;
    const int row = thread / 4;
    const int quarter = thread % 4;
    float parts[kEach];
    float units[2][kEach];
    int refused = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int s = quarter + 4 * i;
        parts[i] = -INFINITY;
        if (s >= splits) continue;
        parts[i] = ptx::cluster_load_float(ptx::cluster_address(ptx::shared_address(&shared.lse[row]), s));
        units[0][i] = ptx::cluster_load_float(ptx::cluster_address(ptx::shared_address(&shared.units[0][row]), s));
        units[1][i] = ptx::cluster_load_float(ptx::cluster_address(ptx::shared_address(&shared.units[1][row]), s));
        refused |= ptx::cluster_load_int(ptx::cluster_address(ptx::shared_address(&shared.refused), s));
    }
    const float lse = share_out(parts);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int s = quarter + 4 * i;
        if (s >= splits) continue;
        shares.of_splits[0][s][row] = parts[i] * units[0][i];
        shares.of_splits[1][s][row] = parts[i] * units[1][i];
    }
    if (quarter == 0) shared.total_lse[row] = lse;
    return __reduce_or_sync(kAllLanes, static_cast<unsigned>(refused)) != 0 ? KDT_REQ_BAD_PAGE : 0;
}

// The same of the groups, from what all left in the workspace.
__device__ __forceinline__ int share_out_groups(const Args& args, int64_t first_slice, int thread, Shared& shared,
                                                Shares& shares) {
    constexpr int kEach = kMaxGroups / 4;
    const int row = thread / 4;
    const int quarter = thread % 4;
    float parts[kEach];
    int refused = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int g = quarter + 4 * i;
        parts[i] = -INFINITY;
        if (g >= args.groups) continue;
        const int64_t slice = first_slice + g * args.cluster_splits;
        parts[i] = __ldcg(&args.partials.lse[slice * kRows + row]);
        refused |= __ldcg(&args.partials.status[slice]);
    }
    const float lse = share_out(parts);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
        if (quarter + 4 * i < args.groups) shares.of_groups[quarter + 4 * i][row] = parts[i];
    if (quarter == 0) shared.total_lse[row] = lse;
    return __reduce_or_sync(kAllLanes, static_cast<unsigned>(refused)) != 0 ? KDT_REQ_BAD_PAGE : 0;
}

// Where the rows of the cluster's sum go: to the answer, or to the workspace if there are other clusters.
struct Sink {
    uint4* out;       // of the block's first row, at the thread's chunk
    float4* partial;  // the same, or nullptr
    bool refused;

    __device__ __forceinline__ void store(int r, const float (&sum)[8]) const {
        if (partial != nullptr) {
            partial[r * (kRank / 4)] = make_float4(sum[0], sum[1], sum[2], sum[3]);
            partial[r * (kRank / 4) + 1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
        } else {
            out[r * (kRank / 8)] = refused ? make_uint4(0, 0, 0, 0) : to_bf16(sum);
        }
    }
};

// The sum over the cluster's splits of the block's part of the columns. A thread goes through its rows and, row by row,
// the splits; loads of kAtOnce of them are under way at a time.
__device__ __forceinline__ void add_cluster(const Args& args, const Work& work, const Chunks& chunks, const Sink& sink,
                                            Shared& shared, const Shares& shares) {
    constexpr int kAtOnce = 8;
    const int splits = args.cluster_splits;
    const float(&weights)[kMaxClusterSplits][kRows] = shares.of_splits[chunks.chunk / (kRank / 16)];
    const uint32_t staged = ptx::shared_address(&shared.stages[0][0]);
    int load_row = chunks.first;
    int load_split = 0;
    int row = chunks.first;
    int split = 0;
    float sum[8] = {};
#pragma unroll 1
    while (row < work.rows) {
        uint4 values[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (load_row < work.rows)
                values[i] = ptx::cluster_load_uint4(
                    ptx::cluster_address(staged + staged_offset(load_row, chunks.chunk), load_split));
            if (++load_split == splits) {
                load_split = 0;
                load_row += chunks.step;
            }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (row >= work.rows) break;
            add_weighted(sum, weights[split][row], values[i]);
            if (++split < splits) continue;
            sink.store(row, sum);
#pragma unroll
            for (int k = 0; k < 8; ++k) sum[k] = 0.0f;
            split = 0;
            row += chunks.step;
        }
    }
}

// The sum over the groups of rows begin .. end of the block's part of the columns, from the workspace.
__device__ __forceinline__ void add_groups(const Args& args, const Work& work, int begin, int end, int thread,
                                           const Sink& sink, const Shares& shares) {
    constexpr int kAtOnce = 4;
    const int first_chunk = kRank / 8 * work.split / args.cluster_splits;
    const int width = kRank / 8 * (work.split + 1) / args.cluster_splits - first_chunk;
    const int64_t unit = int64_t{work.b} * args.tiles + work.tile;
    const float4* const partials =
        reinterpret_cast<const float4*>(args.partials.out) + unit * args.groups * kRows * (kRank / 4);
#pragma unroll 1
    for (int i = thread; i < (end - begin) * width; i += kConsumers) {
        const int r = begin + i / width;
        const int chunk = first_chunk + i % width;
        float sum[8] = {};
#pragma unroll 1
        for (int first = 0; first < args.groups; first += kAtOnce) {
            float4 low[kAtOnce], high[kAtOnce];
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) {
                const int g = min(first + k, args.groups - 1);
                const float4* const from = partials + (int64_t{g} * kRows + r) * (kRank / 4) + chunk * 2;
                low[k] = __ldcg(from);
                high[k] = __ldcg(from + 1);
            }
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k)
                if (first + k < args.groups) add_weighted(sum, shares.of_groups[first + k][r], low[k], high[k]);
        }
        sink.out[r * (kRank / 8) + chunk] = sink.refused ? make_uint4(0, 0, 0, 0) : to_bf16(sum);
    }
}

// lse of rows begin .. end, and the request's status, once they are known to this block.
__device__ __forceinline__ void write_lse(const Args& args, const Work& work, int begin, int end, int thread,
                                          bool refused, const Shared& shared) {
    if (work.split != 0) return;
    const int r = begin + thread;
    if (r < min(end, work.rows)) args.lse[output_row(args, work, r)] = refused ? -INFINITY : shared.total_lse[r] * kLn2;
    if (work.tile == 0 && begin == 0 && thread == 0 && args.status != nullptr)
        args.status[work.b] = refused ? KDT_REQ_BAD_PAGE : 0;
}

// This block's part of the columns, over all splits: the splits of the cluster, then the clusters. Loops stay rolled:
// this code runs once, and fetching instructions would take longer than waiting for shared memory.
__device__ __forceinline__ void add_splits(const Args& args, const Work& work, int thread, Shared& shared) {
    Shares& shares = *reinterpret_cast<Shares*>(shared.queries);
    const int splits = args.cluster_splits;
    const int refused = share_out_splits(args, thread, shared, shares);
    const Chunks chunks(args, work, thread);
    sync_consumers();

    uint4* const out = reinterpret_cast<uint4*>(args.out + output_row(args, work, 0) * kRank);
    const int64_t unit = int64_t{work.b} * args.tiles + work.tile;
    const int64_t part = unit * args.groups + work.group;
    float4* const partial = reinterpret_cast<float4*>(args.partials.out + part * kRows * kRank) + chunks.chunk * 2;
    const bool last_level = args.groups == 1;
    add_cluster(args, work, chunks, {out + chunks.chunk, last_level ? nullptr : partial, refused != 0}, shared, shares);
    // The other blocks of the cluster may go when this one has read their rows; the wait is at the kernel's end.
    ptx::cluster_arrive();
    if (last_level) {
        write_lse(args, work, 0, kRows, thread, refused != 0, shared);
        return;
    }

    const int64_t slice = part * splits + work.split;
    if (thread < kRows) args.partials.lse[slice * kRows + thread] = shared.total_lse[thread];
    if (thread == 0) args.partials.status[slice] = refused;
    sync_consumers();
    // Shares are of rows, as many as groups.
    Meeting* const meeting = &args.partials.meetings[unit * splits + work.split];
    Attendance attendance = Attendance::gone;
    if (thread == 0) {
        attendance = attend_meeting(meeting, args.groups);
        shared.claim = attendance == Attendance::gone ? -1 : claim_share(meeting, args.groups);
    }
    sync_consumers();
    if (shared.claim < 0) return;
    const bool any_refused =
        share_out_groups(args, unit * args.groups * splits + work.split, thread, shared, shares) != 0;
    sync_consumers();
#pragma unroll 1
    for (int claim = shared.claim; claim >= 0; claim = shared.claim) {
        const int begin = kRows * claim / args.groups;
        const int end = min(kRows * (claim + 1) / args.groups, work.rows);
        add_groups(args, work, begin, end, thread, {out, nullptr, any_refused}, shares);
        write_lse(args, work, begin, end, thread, any_refused, shared);
        sync_consumers();
        if (thread == 0) shared.claim = attendance == Attendance::last ? claim_share(meeting, args.groups) : -1;
        sync_consumers();
    }
}

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_REDUCE_CUH
