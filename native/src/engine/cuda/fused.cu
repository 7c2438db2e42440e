// SPDX-License-Identifier: Apache-2.0
//
// Norms inside the products that follow them. With small weights a launch costs more than the norm of 8 rows, so each
// block of a product makes it anew for its rows, in shared memory.
#include "cuda/overlap.cuh"
#include "engine/cuda/latent.cuh"
#include "engine/cuda/narrow.cuh"
#include "engine/cuda/queue.h"
#include "engine/cuda/rows.h"
#include "engine/unfused.h"

namespace kdt::engine {
namespace {

using cuda::kAllLanes;
using cuda::kWarpSize;

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
static_assert(kWarps == kTileRows, "a warp norms a row");
constexpr int kMaxIn = 1024;
constexpr int kLaneRow = kWarpSize * kChunk;  // values of a row that a chunk a lane covers
constexpr int kMaxSteps = kMaxIn / kLaneRow;
constexpr int kRowStride = kMaxIn + 32;  // the first lanes of two rows stand in different banks
constexpr int64_t kSmallWeights = int64_t{1} << 21;
// From here on so many blocks make the same norm anew that it is worth a launch of its own.
constexpr int kManyRows = 256;
constexpr int kNope = KDT_QK_NOPE_HEAD_DIM;
constexpr int kPe = KDT_QK_ROPE_HEAD_DIM;

struct RowsArgs {
    const Bf16* x;
    int64_t x_stride;
    const Bf16* delta;  // may be NULL, as may the next two
    Bf16* sum;          // [rows, in]
    Bf16* feature;
    int64_t feature_stride;
    const Bf16* norm;
    float eps;
    int rows;
    int in;
};

using NormedRows = Bf16[kTileRows][kRowStride];

// By one warp: row `row` of rmsnorm(x + delta) * norm; zeros beyond the last row, and up to a whole step of the
// product.
template <int kSteps>
__device__ __forceinline__ void norm_row(const RowsArgs& args, int row, bool keeps, Bf16* to, int lane) {
    if (row >= args.rows) {
        for (int at = lane * kChunk; at < args.in + kNarrowStep && at < kRowStride; at += kWarpSize * kChunk)
            *reinterpret_cast<uint4*>(to + at) = make_uint4(0, 0, 0, 0);
        return;
    }
    float values[kSteps][kChunk], weights[kSteps][kChunk];
    float squares = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        const int at = (s * kWarpSize + lane) * kChunk;
        if (at >= args.in) continue;
        load_chunk(args.x + row * args.x_stride + at, values[s]);
        load_chunk(args.norm + at, weights[s]);
        if (args.delta != nullptr) {
            float more[kChunk];
            load_chunk(args.delta + int64_t{row} * args.in + at, more);
#pragma unroll
            for (int i = 0; i < kChunk; ++i) values[s][i] = rounded<Bf16>(values[s][i] + more[i]);
        }
#pragma unroll
        for (int i = 0; i < kChunk; ++i) squares += values[s][i] * values[s][i];
    }
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) squares += __shfl_xor_sync(kAllLanes, squares, step);
    const float scale = rsqrtf(squares / static_cast<float>(args.in) + args.eps);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        const int at = (s * kWarpSize + lane) * kChunk;
        if (at >= args.in) continue;
        if (keeps && args.sum != nullptr) store_chunk(args.sum + int64_t{row} * args.in + at, values[s]);
        if (keeps && args.feature != nullptr) store_chunk(args.feature + row * args.feature_stride + at, values[s]);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) values[s][i] *= scale * weights[s][i];
        store_chunk(to + at, values[s]);
    }
}

// The 8 rows times 16 features of w (NULL: none there) by the whole block; to be followed by a barrier.
template <int kUnroll>
__device__ __forceinline__ void multiply_rows(const NormedRows& rows, NarrowWeights<kUnroll>& weights, const Bf16* low,
                                              const Bf16* high, int in, NarrowShared<1>& shared) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const Bf16* const x_rows[1] = {rows[lane / 4]};
    float sums[1][4] = {};
    narrow_sums<1>(sums, weights, low, high, x_rows, warp * kNarrowStep, lane % 4 * kChunk, kWarps * kNarrowStep, in);
    shared.put(warp, lane, sums);
}

// Where this lane's two rows of w are, for the 16 features from `feature` on.
struct WeightRows {
    const Bf16 *low, *high;
};
__device__ __forceinline__ WeightRows weight_rows(const Bf16* w, int feature, int out, int in) {
    const int g = static_cast<int>(threadIdx.x) % kWarpSize / 4;
    return {feature + g < out ? w + int64_t{feature + g} * in : nullptr,
            feature + g + 8 < out ? w + int64_t{feature + g + 8} * in : nullptr};
}

// ---- norm_gemm, norm_gate

struct NormGemmArgs {
    RowsArgs rows;
    const Bf16* w;
    Bf16* y;
    int out;
};

__device__ __forceinline__ float gated(float gate, float up) {
    return gate / (1.0f + expf(-gate)) * up;
}

template <int kSteps, bool kGated>
__global__ void __launch_bounds__(kThreads) norm_and_multiply(const NormGemmArgs args) {
    constexpr int kUnroll = kSteps == 1 || kGated ? 1 : 2;  // all the weights, where a row is a step of each warp
    constexpr int kParts = kGated ? 2 : 1;
    __shared__ __align__(16) NormedRows rows;
    __shared__ NarrowShared<1> shared[kParts];
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int in = args.rows.in;
    const int feature = static_cast<int>(blockIdx.x) * kNarrowFeatures;
    const int first_row = static_cast<int>(blockIdx.y) * kTileRows;
    // Weights are not written while kernels run: they need not be waited for.
    WeightRows w[kParts];
    NarrowWeights<kUnroll> weights[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        w[part] = weight_rows(args.w + int64_t{part} * args.out * in, feature, args.out, in);
        weights[part].load(w[part].low, w[part].high, warp * kNarrowStep + lane % 4 * kChunk, kWarps * kNarrowStep, in);
    }
    cuda::wait_for_earlier_kernels();
    norm_row<kSteps>(args.rows, first_row + warp, blockIdx.x == 0, rows[warp], lane);
    cuda::let_next_kernel_come();
    __syncthreads();
#pragma unroll
    for (int part = 0; part < kParts; ++part)
        multiply_rows(rows, weights[part], w[part].low, w[part].high, in, shared[part]);
    __syncthreads();
    const int item = static_cast<int>(threadIdx.x);
    const int row = item / kNarrowFeatures, column = item % kNarrowFeatures;
    if (row >= kTileRows || first_row + row >= args.rows.rows || feature + column >= args.out) return;
    float value = shared[0].total(kWarps, row, column);
    if constexpr (kGated) value = gated(value, shared[1].total(kWarps, row, column));
    args.y[int64_t{first_row + row} * args.out + feature + column] = from_float<Bf16>(value);
}

// Small, bf16, and nothing that cannot be read in chunks.
bool fuses(Dtype dtype, const NormInput& input, const void* w, int rows, int in, int64_t out) {
    return rows < kManyRows && dtype == KDT_BF16 && in <= kMaxIn && in % kChunk == 0 && in * out <= kSmallWeights &&
           in_chunks<Bf16>(input.residual, in) && in_chunks<Bf16>(input.delta, in) &&
           in_chunks<Bf16>(input.residual_out, in) && in_chunks<Bf16>(input.feature, input.feature_stride) &&
           in_chunks<Bf16>(input.norm, in) && in_chunks<Bf16>(w, in);
}

template <bool kGated>
void launch_norm_gemm(Queue& queue, const NormInput& input, const void* w, void* y, int rows, int in, int out) {
    NormGemmArgs args = {};
    args.rows.x = static_cast<const Bf16*>(input.residual);
    args.rows.x_stride = in;
    args.rows.delta = static_cast<const Bf16*>(input.delta);
    args.rows.sum = input.delta == nullptr ? nullptr : static_cast<Bf16*>(input.residual_out);
    args.rows.feature = static_cast<Bf16*>(input.feature);
    args.rows.feature_stride = input.feature_stride;
    args.rows.norm = static_cast<const Bf16*>(input.norm);
    args.rows.eps = input.eps;
    args.rows.rows = rows;
    args.rows.in = in;
    args.w = static_cast<const Bf16*>(w);
    args.y = static_cast<Bf16*>(y);
    args.out = out;
    const dim3 grid(static_cast<unsigned>(ceil_div(out, kNarrowFeatures)),
                    static_cast<unsigned>(ceil_div(rows, kTileRows)));
    const auto kernel = in <= kLaneRow ? norm_and_multiply<1, kGated> : norm_and_multiply<kMaxSteps, kGated>;
    cuda::launch_overlapped(kernel, grid, kThreads, queue.impl()->stream, args);
}

// ---- mla_inputs: blocks of 16 query values and 8 rows, and behind them blocks of 8 latents

struct MlaArgs {
    RowsArgs rows;
    const Bf16* q_b;
    Bf16* q_nope;
    Bf16* q_pe;
    LatentArgs latents;
    int num_heads;
};

template <int kSteps>
__global__ void __launch_bounds__(kThreads) make_mla_inputs(const MlaArgs args) {
    constexpr int kUnroll = kSteps == 1 ? 1 : 2;
    constexpr int kHead = kNope + kPe;
    static_assert(kHead % kNarrowFeatures == 0 && kNope % kNarrowFeatures == 0, "a block's values are of one kind");
    __shared__ __align__(16) NormedRows rows;
    __shared__ NarrowShared<1> shared;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int in = args.rows.in;
    const int out = args.num_heads * kHead;
    const int feature = static_cast<int>(blockIdx.x) * kNarrowFeatures;
    const int first_row = static_cast<int>(blockIdx.y) * kTileRows;
    if (feature >= out) {
        cuda::wait_for_earlier_kernels();
        if (first_row + warp < args.rows.rows) store_latent<Bf16, true>(args.latents, first_row + warp, lane);
        return;
    }
    const WeightRows w = weight_rows(args.q_b, feature, out, in);
    NarrowWeights<kUnroll> weights;
    weights.load(w.low, w.high, warp * kNarrowStep + lane % 4 * kChunk, kWarps * kNarrowStep, in);
    // A thread a pair of values in the end.
    const int row = static_cast<int>(threadIdx.x) / (kNarrowFeatures / 2);
    const int pair = static_cast<int>(threadIdx.x) % (kNarrowFeatures / 2);
    const int head = feature / kHead, at = feature % kHead + 2 * pair;
    const bool writes = row < kTileRows && first_row + row < args.rows.rows;
    cuda::wait_for_earlier_kernels();
    float2 turn = {1.0f, 0.0f};
    if (writes && at >= kNope)
        turn = rope_at(args.latents.rope, args.latents.positions[first_row + row])[(at - kNope) / 2];
    norm_row<kSteps>(args.rows, first_row + warp, false, rows[warp], lane);
    cuda::let_next_kernel_come();
    __syncthreads();
    multiply_rows(rows, weights, w.low, w.high, in, shared);
    __syncthreads();
    if (!writes) return;
    float a = shared.total(kWarps, row, 2 * pair), b = shared.total(kWarps, row, 2 * pair + 1);
    const int64_t place = int64_t{first_row + row} * args.num_heads + head;
    rotate(turn, a, b);
    Bf16* const to = at < kNope ? args.q_nope + place * kNope + at : args.q_pe + place * kPe + (at - kNope);
    *reinterpret_cast<uint32_t*>(to) = pack_bf16(a, b);
}

}  // namespace

void norm_gemm(Queue& queue, Dtype dtype, const NormInput& input, const void* w, void* y, int32_t rows, int32_t in,
               int32_t out) {
    if (rows == 0) return;
    if (fuses(dtype, input, w, rows, in, out)) {
        launch_norm_gemm<false>(queue, input, w, y, rows, in, out);
        return;
    }
    add_rmsnorm_apart(queue, dtype, input, rows, in);
    gemm(queue, dtype, input.hidden, in, w, y, dtype, rows, in, out);
}

void norm_gate(Queue& queue, Dtype dtype, const NormInput& input, const void* gate_up, void* both, void* product,
               int32_t rows, int32_t in, int32_t intermediate) {
    if (rows == 0) return;
    if (fuses(dtype, input, gate_up, rows, in, 2 * int64_t{intermediate})) {
        launch_norm_gemm<true>(queue, input, gate_up, product, rows, in, intermediate);
        return;
    }
    add_rmsnorm_apart(queue, dtype, input, rows, in);
    gemm(queue, dtype, input.hidden, in, gate_up, both, dtype, rows, in, 2 * intermediate);
    silu_mul(queue, dtype, both, product, rows, intermediate);
}

void mla_inputs(Queue& queue, Dtype dtype, const MlaInputs& a) {
    const int rows = a.batch * a.max_nodes;
    if (rows == 0) return;
    const int in = a.q_lora_rank, out = a.num_heads * (kNope + kPe);
    const int stride = in + KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM;
    const bool fused = rows < kManyRows && dtype == KDT_BF16 && in > 0 && in <= kMaxIn && in % kChunk == 0 &&
                       int64_t{in} * out <= kSmallWeights && in_chunks<Bf16>(a.first, stride) &&
                       in_chunks<Bf16>(a.q_norm, in) && in_chunks<Bf16>(a.q_b, in) &&
                       in_chunks<Bf16>(a.kv_norm, kChunk);
    if (!fused) {
        mla_inputs_unfused(queue, dtype, a);
        return;
    }
    MlaArgs args = {};
    args.rows.x = static_cast<const Bf16*>(a.first);
    args.rows.x_stride = stride;
    args.rows.norm = static_cast<const Bf16*>(a.q_norm);
    args.rows.eps = a.eps;
    args.rows.rows = rows;
    args.rows.in = in;
    args.q_b = static_cast<const Bf16*>(a.q_b);
    args.q_nope = static_cast<Bf16*>(a.q_nope);
    args.q_pe = static_cast<Bf16*>(a.q_pe);
    args.num_heads = a.num_heads;
    args.latents = {
        args.rows.x + in, stride,  a.kv_norm, a.positions, a.seq_lens, a.num_nodes, static_cast<Bf16*>(a.layer_cache),
        a.rope,           a.pages, a.eps,     a.max_nodes, rows};
    const dim3 grid(static_cast<unsigned>(ceil_div(out, kNarrowFeatures) + 1),
                    static_cast<unsigned>(ceil_div(rows, kTileRows)));
    const auto kernel = in <= kLaneRow ? make_mla_inputs<1> : make_mla_inputs<kMaxSteps>;
    cuda::launch_overlapped(kernel, grid, kThreads, queue.impl()->stream, args);
}

}  // namespace kdt::engine
