// SPDX-License-Identifier: Apache-2.0
//
// Activations of either dtype, read and written eight at a time (16 or 32 bytes), computed with in f32.
#ifndef KDTREE_ENGINE_CUDA_ACT_CUH
#define KDTREE_ENGINE_CUDA_ACT_CUH

#include <cuda_bf16.h>

#include <cstdint>

#include "core/error.h"
#include "engine/ops.h"

namespace kdt::engine {

using Bf16 = __nv_bfloat16;

constexpr int kChunk = 8;

__device__ __forceinline__ float to_float(float value) {
    return value;
}
__device__ __forceinline__ float to_float(Bf16 value) {
    return __bfloat162float(value);
}

template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}
template <>
__device__ __forceinline__ Bf16 from_float<Bf16>(float value) {
    return __float2bfloat16_rn(value);
}

// What is left of a value once it has been stored.
template <class T>
__device__ __forceinline__ float rounded(float value) {
    return to_float(from_float<T>(value));
}

__device__ __forceinline__ float low_half(uint32_t pair) {
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_half(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

// Addresses are multiples of the chunk's bytes, or of 16.
__device__ __forceinline__ void load_chunk(const float* from, float (&values)[kChunk]) {
    const float4 a = *reinterpret_cast<const float4*>(from);
    const float4 b = *reinterpret_cast<const float4*>(from + 4);
    values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
    values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
}
__device__ __forceinline__ void load_chunk(const Bf16* from, float (&values)[kChunk]) {
    const uint4 a = *reinterpret_cast<const uint4*>(from);
    values[0] = low_half(a.x), values[1] = high_half(a.x), values[2] = low_half(a.y), values[3] = high_half(a.y);
    values[4] = low_half(a.z), values[5] = high_half(a.z), values[6] = low_half(a.w), values[7] = high_half(a.w);
}
__device__ __forceinline__ void store_chunk(float* to, const float (&values)[kChunk]) {
    *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
    *reinterpret_cast<float4*>(to + 4) = make_float4(values[4], values[5], values[6], values[7]);
}
__device__ __forceinline__ void store_chunk(Bf16* to, const float (&values)[kChunk]) {
    *reinterpret_cast<uint4*>(to) = make_uint4(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]),
                                               pack_bf16(values[4], values[5]), pack_bf16(values[6], values[7]));
}

// The same at any address, where it is not known to be such a multiple.
template <bool kInChunks, class T>
__device__ __forceinline__ void load_values(const T* from, float (&values)[kChunk]) {
    if constexpr (kInChunks) {
        load_chunk(from, values);
    } else {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) values[i] = to_float(from[i]);
    }
}

// Whether rows that start at `pointer` and are `stride` values apart can be read in chunks. NULL can.
template <class T>
bool in_chunks(const void* pointer, int64_t stride) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride % static_cast<int64_t>(16 / sizeof(T)) == 0;
}

// body(T()) for the type that `dtype` names.
template <class Body>
void by_dtype(Dtype dtype, const Body& body) {
    if (dtype == KDT_F32)
        body(float());
    else if (dtype == KDT_BF16)
        body(Bf16());
    else
        fail_argument("dtype is %d, wanted KDT_F32 or KDT_BF16", static_cast<int>(dtype));
}

__host__ __device__ inline int ceil_div(int64_t a, int64_t b) {
    return static_cast<int>((a + b - 1) / b);
}

}  // namespace kdt::engine

#endif  // KDTREE_ENGINE_CUDA_ACT_CUH
