// SPDX-License-Identifier: Apache-2.0
//
// Weights: from one type to the other, and made up. None of this is timed.
#include "engine/cuda/act.cuh"
#include "engine/cuda/queue.h"
#include "engine/keyed_random.h"

namespace kdt::engine {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 4096;

int blocks_for(int64_t count) {
    const int64_t blocks = (count + kThreads - 1) / kThreads;
    return static_cast<int>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

template <class From, class To>
__global__ void __launch_bounds__(kThreads) convert_values(const From* from, To* to, int64_t count) {
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads)
        to[i] = from_float<To>(to_float(from[i]));
}

template <class T>
__global__ void __launch_bounds__(kThreads) make_normal(T* to, int64_t count, float deviation, uint64_t seed) {
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads)
        to[i] = from_float<T>(deviation * normal_value(seed, static_cast<uint64_t>(i)));
}

template <class T>
__global__ void __launch_bounds__(kThreads) make_constant(T* to, int64_t count, float value) {
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads)
        to[i] = from_float<T>(value);
}

}  // namespace

void convert(Queue& queue, const void* from, Dtype from_dtype, void* to, Dtype to_dtype, int64_t count) {
    if (count == 0) return;
    by_dtype(from_dtype, [&](auto from_value) {
        by_dtype(to_dtype, [&](auto to_value) {
            using From = decltype(from_value);
            using To = decltype(to_value);
            convert_values<<<blocks_for(count), kThreads, 0, queue.impl()->stream>>>(static_cast<const From*>(from),
                                                                                     static_cast<To*>(to), count);
            cuda::check_launch("the launch of the weights' conversion");
        });
    });
}

void fill_normal(Queue& queue, void* to, Dtype dtype, int64_t count, float deviation, uint64_t seed) {
    if (count == 0) return;
    by_dtype(dtype, [&](auto value) {
        make_normal<<<blocks_for(count), kThreads, 0, queue.impl()->stream>>>(static_cast<decltype(value)*>(to), count,
                                                                              deviation, seed);
        cuda::check_launch("the launch of fill_normal's kernel");
    });
}

void fill_constant(Queue& queue, void* to, Dtype dtype, int64_t count, float constant) {
    if (count == 0) return;
    by_dtype(dtype, [&](auto value) {
        make_constant<<<blocks_for(count), kThreads, 0, queue.impl()->stream>>>(static_cast<decltype(value)*>(to),
                                                                                count, constant);
        cuda::check_launch("the launch of fill_constant's kernel");
    });
}

}  // namespace kdt::engine
