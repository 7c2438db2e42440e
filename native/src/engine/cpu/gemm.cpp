// SPDX-License-Identifier: Apache-2.0
//
// gemm: a block of weights stays in cache while all rows are multiplied with it, one matrix-vector product a row.
//
// A BLAS's matrix-matrix product sums a row in an order that depends on how many rows come with it and on where among
// them the row stands: with OpenBLAS on AVX2, rows 6 to 11 of a call get other last bits than rows 0 to 5. One call a
// row has the same bits always, and for the few rows of a decode round it is the faster one too: nothing is packed.
//
// bf16: the weights stay bf16 in memory and a block of them is widened for its rows; sums are f32, the result is
// rounded.
#include <algorithm>
#include <vector>

#include "cpu/parallel.h"
#include "engine/cpu/queue_impl.h"
#include "engine/cpu/rows.h"
#include "engine/ops.h"

namespace kdt::engine {
namespace {

constexpr int64_t kBlockValues = 32768;  // 128 KB of weights in f32: half of a second-level cache

float* grown(std::vector<float>& values, int64_t count) {
    if (values.size() < static_cast<size_t>(count)) values.resize(static_cast<size_t>(count));
    return values.data();
}

// The rows in f32, one behind the other.
const float* packed_input(Queue::Impl& impl, Dtype dtype, const void* x, int64_t x_stride, int32_t rows, int32_t in) {
    if (dtype == KDT_F32 && x_stride == in) return static_cast<const float*>(x);
    float* const input = grown(impl.input, int64_t{rows} * in);
    for (int64_t r = 0; r < rows; ++r) read_values(dtype, x, r * x_stride, in, input + r * in);
    return input;
}

}  // namespace

void gemm(Queue& queue, Dtype dtype, const void* x, int64_t x_stride, const void* w, void* y, Dtype y_dtype,
          int32_t rows, int32_t in, int32_t out) {
    Queue::Impl& impl = *queue.impl();
    const float* const input = packed_input(impl, dtype, x, x_stride, rows, in);
    const auto block = static_cast<int32_t>(std::clamp<int64_t>(kBlockValues / in, 1, out));
    const int64_t blocks = (int64_t{out} + block - 1) / block;
    const int threads = plan_threads(blocks, 0.05 * in * out * rows);
    const int64_t lane_values = block * (dtype == KDT_F32 ? 1 : int64_t{in} + 1);
    float* const scratch = grown(impl.blocks, threads * lane_values);
    parallel_for(blocks, threads, [&](int64_t at, int lane) {
        const auto first = static_cast<int32_t>(at * block);
        const int32_t width = std::min(block, out - first);
        float* const result = scratch + lane * lane_values;
        const float* const weights = load(dtype, w, int64_t{first} * in, width * in, result + block);
        for (int64_t r = 0; r < rows; ++r) {
            float* const to = place(y_dtype, y, r * out + first, result);
            impl.blas.multiply(width, in, weights, input + r * in, to);
            store(y_dtype, to, y, r * out + first, width);
        }
    });
}

}  // namespace kdt::engine
