// SPDX-License-Identifier: Apache-2.0
//
// Rows of act values in f32. For an engine of f32 a row is used where it stands; for bf16 it is widened into the
// caller's buffer, and rounded when it is stored.
#ifndef KDT_ENGINE_CPU_ROWS_H
#define KDT_ENGINE_CPU_ROWS_H

#include <cstdint>
#include <vector>

#include "cpu/parallel.h"
#include "engine/ops.h"

namespace kdt::engine {

// The values [offset, offset + count) of an act array, in f32: its own memory, or `buffer`.
const float* load(Dtype dtype, const void* from, int64_t offset, int32_t count, float* buffer);
// Where to put values that store() then writes to [offset, offset + count): the array itself, or `buffer`.
float* place(Dtype dtype, void* to, int64_t offset, float* buffer);
// Writes what was put there; nothing is left to do for f32.
void store(Dtype dtype, const float* values, void* to, int64_t offset, int32_t count);

// f32 copies, whatever the dtype.
void read_values(Dtype dtype, const void* from, int64_t offset, int32_t count, float* to);
void write_values(Dtype dtype, const float* from, void* to, int64_t offset, int32_t count);

// The sum of squares: sixteen partial sums, then those in order, so that a row's bits depend on its values alone.
float sum_of_squares(const float* x, int32_t count);

// Pairs (i, i + 1) when `interleaved`, else (i, i + count / 2), rotated by cos_sin [count / 2, 2].
void rotate(float* x, int32_t count, const float* cos_sin, bool interleaved);

// A position's row of the table, the nearest one for positions outside.
inline const float* row_of(const Rope& rope, int64_t position) {
    const int64_t last = rope.max_positions - 1;
    return rope.cos_sin + (position < 0 ? 0 : position > last ? last : position) * rope.pairs * 2;
}

// body(row, scratch) for each row, where scratch is `width` floats of the thread's own; work_ns a row decides about
// threads.
template <class Body>
void for_rows(int64_t rows, int64_t width, double work_ns, const Body& body) {
    const int threads = plan_threads(rows, work_ns * static_cast<double>(rows));
    std::vector<float> scratch(static_cast<size_t>(threads) * static_cast<size_t>(width));
    parallel_for(rows, threads, [&](int64_t row, int lane) { body(row, scratch.data() + lane * width); });
}

}  // namespace kdt::engine

#endif  // KDT_ENGINE_CPU_ROWS_H
