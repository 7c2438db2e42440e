// SPDX-License-Identifier: Apache-2.0
//
// gemm: few rows or small weights by kernels of our own, which overlap their neighbours and sum each row in the same
// order however many there are; what is large by cuBLAS.
#include "cuda/overlap.cuh"
#include "engine/cuda/narrow.cuh"
#include "engine/cuda/queue.h"

namespace kdt::engine {
namespace {

using cuda::kAllLanes;
using cuda::kWarpSize;

// Up to here launches are what a product costs, and beyond it cuBLAS' tiles pay; for a handful of rows somewhat later.
constexpr int64_t kSmallWeights = int64_t{1} << 21;
constexpr int64_t kMediumWeights = int64_t{1} << 24;
constexpr int kFewRows = kTileRows;
constexpr int kMaxGridY = 65535;

struct GemmArgs {
    const void* x;
    int64_t x_stride;
    const void* w;
    void* y;
    int rows;
    int in;
    int out;
};

// ---- bf16 on tensor cores

template <class Y, int kTiles>
__global__ void __launch_bounds__(256) narrow(const GemmArgs args) {
    constexpr int kUnroll = kTiles <= 2 ? 4 : kTiles <= 4 ? 2 : 1;
    __shared__ NarrowShared<kTiles> shared;
    const int warps = static_cast<int>(blockDim.x) / kWarpSize;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int g = lane / 4, t = lane % 4;
    const int feature = static_cast<int>(blockIdx.x) * kNarrowFeatures;
    const int first_row = static_cast<int>(blockIdx.y) * kTiles * kTileRows;
    const Bf16* const w = static_cast<const Bf16*>(args.w);
    const Bf16* const low = feature + g < args.out ? w + int64_t{feature + g} * args.in : nullptr;
    const Bf16* const high = feature + g + 8 < args.out ? w + int64_t{feature + g + 8} * args.in : nullptr;
    const int stride = warps * kNarrowStep;
    const int begin = warp * kNarrowStep, offset = t * kChunk;
    // Weights were written long before the kernels of a round: they need not be waited for.
    NarrowWeights<kUnroll> weights;
    weights.load(low, high, begin + offset, stride, args.in);
    const Bf16* x_rows[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
        const int row = first_row + tile * kTileRows + g;
        x_rows[tile] = row < args.rows ? static_cast<const Bf16*>(args.x) + row * args.x_stride : nullptr;
    }
    float sums[kTiles][4] = {};
    cuda::wait_for_earlier_kernels();
    narrow_sums<kTiles>(sums, weights, low, high, x_rows, begin, offset, stride, args.in);
    cuda::let_next_kernel_come();
    shared.put(warp, lane, sums);
    __syncthreads();
    for (int item = static_cast<int>(threadIdx.x); item < kTiles * kTileRows * kNarrowFeatures;
         item += static_cast<int>(blockDim.x)) {
        const int row = item / kNarrowFeatures, column = item % kNarrowFeatures;
        if (first_row + row >= args.rows || feature + column >= args.out) continue;
        static_cast<Y*>(args.y)[int64_t{first_row + row} * args.out + feature + column] =
            from_float<Y>(shared.total(warps, row, column));
    }
}

// Few rows a block, since a tile more is a round of loads more, unless there are then more blocks than run at once.
template <class Y>
void launch_narrow(const GemmArgs& args, const Queue::Impl& impl) {
    const int64_t features = ceil_div(args.out, kNarrowFeatures);
    const int64_t at_once = int64_t{4} * impl.device.multiprocessors;
    int tiles = 1;
    while (tiles < 8 && features * ceil_div(args.rows, tiles * kTileRows) > at_once) tiles *= 2;
    const auto kernel = tiles == 1   ? narrow<Y, 1>
                        : tiles == 2 ? narrow<Y, 2>
                        : tiles == 4 ? narrow<Y, 4>
                                     : narrow<Y, 8>;
    const dim3 grid(static_cast<unsigned>(features), static_cast<unsigned>(ceil_div(args.rows, tiles * kTileRows)));
    cuda::launch_overlapped(kernel, grid, narrow_warps(args.in) * kWarpSize, impl.stream, args);
}

// ---- f32, and bf16 of odd sizes: a warp takes one of w's rows, a lane every 32nd chunk of it

constexpr int kDotRows = 8;
constexpr int kDotWarps = 8;

template <class T, class Y, bool kInChunks>
__global__ void __launch_bounds__(kDotWarps* kWarpSize) dot_rows(const GemmArgs args) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int feature = static_cast<int>(blockIdx.x) * kDotWarps + static_cast<int>(threadIdx.x) / kWarpSize;
    const int first_row = static_cast<int>(blockIdx.y) * kDotRows;
    cuda::wait_for_earlier_kernels();
    if (feature >= args.out) return;
    const T* const w = static_cast<const T*>(args.w) + int64_t{feature} * args.in;
    const T* const x = static_cast<const T*>(args.x) + first_row * args.x_stride;
    const int rows = args.rows - first_row < kDotRows ? args.rows - first_row : kDotRows;
    float sums[kDotRows] = {};
    constexpr int kWidth = kInChunks ? kChunk : 1;
    for (int at = lane * kWidth; at < args.in; at += kWarpSize * kWidth) {
        if constexpr (kInChunks) {
            float weights[kChunk];
            load_chunk(w + at, weights);
#pragma unroll
            for (int r = 0; r < kDotRows; ++r) {
                if (r >= rows) break;
                float values[kChunk];
                load_chunk(x + r * args.x_stride + at, values);
#pragma unroll
                for (int i = 0; i < kChunk; ++i) sums[r] += weights[i] * values[i];
            }
        } else {
            const float weight = to_float(w[at]);
#pragma unroll
            for (int r = 0; r < kDotRows; ++r)
                if (r < rows) sums[r] += weight * to_float(x[r * args.x_stride + at]);
        }
    }
    cuda::let_next_kernel_come();
#pragma unroll
    for (int r = 0; r < kDotRows; ++r)
#pragma unroll
        for (int step = kWarpSize / 2; step > 0; step /= 2) sums[r] += __shfl_xor_sync(kAllLanes, sums[r], step);
#pragma unroll
    for (int r = 0; r < kDotRows; ++r)
        if (lane == r && r < rows)
            static_cast<Y*>(args.y)[int64_t{first_row + r} * args.out + feature] = from_float<Y>(sums[r]);
}

template <class T, class Y, bool kInChunks>
void launch_dots(const GemmArgs& args, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(ceil_div(args.out, kDotWarps)),
                    static_cast<unsigned>(ceil_div(args.rows, kDotRows)));
    cuda::launch_overlapped(dot_rows<T, Y, kInChunks>, grid, kDotWarps * kWarpSize, stream, args);
}

}  // namespace

void gemm(Queue& queue, Dtype dtype, const void* x, int64_t x_stride, const void* w, void* y, Dtype y_dtype,
          int32_t rows, int32_t in, int32_t out) {
    if (rows == 0 || out == 0) return;
    const Queue::Impl& impl = *queue.impl();
    const GemmArgs args = {x, x_stride, w, y, rows, in, out};
    const bool small = int64_t{in} * out <= kSmallWeights && rows <= kMaxGridY * kDotRows;
    by_dtype(dtype, [&](auto value) {
        using T = decltype(value);
        const bool chunks = in % kChunk == 0 && in_chunks<T>(x, x_stride) && in_chunks<T>(w, in);
        const bool ours = impl.blas == nullptr || small ||
                          (dtype == KDT_BF16 && chunks && rows <= kFewRows && int64_t{in} * out <= kMediumWeights);
        if (!ours) {
            const auto type = [](Dtype of) { return of == KDT_F32 ? CUDA_R_32F : CUDA_R_16BF; };
            impl.blas->gemm(type(dtype), x, static_cast<int>(x_stride), w, y, type(y_dtype), rows, in, out);
            return;
        }
        by_dtype(y_dtype, [&](auto y_value) {
            using Y = decltype(y_value);
            if constexpr (std::is_same_v<T, Bf16>) {
                if (chunks)
                    launch_narrow<Y>(args, impl);
                else
                    launch_dots<T, Y, false>(args, impl.stream);
            } else {
                if (chunks)
                    launch_dots<T, Y, true>(args, impl.stream);
                else
                    launch_dots<T, Y, false>(args, impl.stream);
            }
        });
    });
}

}  // namespace kdt::engine
