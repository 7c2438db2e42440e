// SPDX-License-Identifier: Apache-2.0
//
// gemm: blocks of outputs over threads, rows in calls of one size each. A BLAS sums in an order that depends on the
// sizes of a call; calls of always the same size, the last one padded with zeros, give a row the same bits whether it
// comes alone or with others.
//
// bf16: the weights stay bf16 in memory and a block of them is widened for its calls; sums are f32, the result is
// rounded.
#include <algorithm>
#include <cstring>

#include "cpu/parallel.h"
#include "engine/cpu/queue_impl.h"
#include "engine/cpu/rows.h"
#include "engine/ops.h"

namespace kdt::engine {
namespace {

constexpr int32_t kBlock = 128;  // outputs a call: 128 KB of weights when `in` is 256

// At least `count` values.
float* grown(std::vector<float>& values, int64_t count) {
    if (values.size() < static_cast<size_t>(count)) values.resize(static_cast<size_t>(count));
    return values.data();
}

struct Product {
    Dtype dtype;
    const void* w;
    void* y;
    Dtype y_dtype;
    int32_t rows, in, out;
    const float* x;  // [rows rounded up to `tile`, in], zeros behind the last row
    int32_t tile;
};

// The input in f32, its last tile filled up with zero rows.
const float* tiled_input(Queue::Impl& impl, Dtype dtype, const void* x, int64_t x_stride, int32_t rows, int32_t in,
                         int32_t tile) {
    const int64_t padded = (int64_t{rows} + tile - 1) / tile * tile;
    if (dtype == KDT_F32 && padded == rows && x_stride == in) return static_cast<const float*>(x);
    float* const input = grown(impl.input, padded * in);
    for (int64_t r = 0; r < rows; ++r) read_values(dtype, x, r * x_stride, in, input + r * in);
    std::fill(input + int64_t{rows} * in, input + padded * in, 0.0f);
    return input;
}

// Outputs [first, first + width) of all rows.
void multiply_block(Queue::Impl& impl, const Product& p, int32_t first, int32_t width, int lane) {
    const auto at = static_cast<size_t>(lane);
    float* const buffer = p.dtype == KDT_F32 ? nullptr : grown(impl.weights[at], int64_t{width} * p.in);
    const float* const weights = load(p.dtype, p.w, int64_t{first} * p.in, width * p.in, buffer);
    float* const result = grown(impl.results[at], int64_t{p.tile} * width);
    for (int32_t row = 0; row < p.rows; row += p.tile) {
        const int32_t count = std::min(p.tile, p.rows - row);
        impl.blas.multiply(p.tile, width, p.in, p.x + int64_t{row} * p.in, p.in, weights, result, width);
        for (int32_t r = 0; r < count; ++r)
            write_values(p.y_dtype, result + int64_t{r} * width, p.y, (int64_t{row} + r) * p.out + first, width);
    }
}

}  // namespace

void gemm(Queue& queue, Dtype dtype, const void* x, int64_t x_stride, const void* w, void* y, Dtype y_dtype,
          int32_t rows, int32_t in, int32_t out) {
    if (rows == 0) return;
    Queue::Impl& impl = *queue.impl();
    int32_t tile = impl.blas.uniform_rows(std::min(out, kBlock), in);
    if (out > kBlock && out % kBlock != 0) tile = std::min(tile, impl.blas.uniform_rows(out % kBlock, in));
    const Product p = {dtype, w, y, y_dtype, rows, in, out, tiled_input(impl, dtype, x, x_stride, rows, in, tile), tile};
    const int64_t blocks = (int64_t{out} + kBlock - 1) / kBlock;
    const double calls = static_cast<double>((rows + tile - 1) / tile);
    const int threads = plan_threads(blocks, 0.4 * in * out * calls);
    const size_t lanes = std::max(static_cast<size_t>(threads), impl.weights.size());
    impl.weights.resize(lanes);
    impl.results.resize(lanes);
    parallel_for(blocks, threads, [&](int64_t block, int lane) {
        const auto first = static_cast<int32_t>(block * kBlock);
        multiply_block(impl, p, first, std::min(kBlock, out - first), lane);
    });
}

}  // namespace kdt::engine
