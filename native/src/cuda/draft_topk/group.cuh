// SPDX-License-Identifier: Apache-2.0
//
// Groups: the logits of one 16-byte load, eight bf16 or four f32.
#ifndef KDTREE_CUDA_DRAFT_TOPK_GROUP_CUH
#define KDTREE_CUDA_DRAFT_TOPK_GROUP_CUH

#include <cmath>
#include <cstdint>

#include "cuda/draft_topk/layout.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/packed.cuh"

namespace kdt::cuda::draft_topk {

constexpr float kLog2e = 1.44269504f;

__device__ __forceinline__ float exp_of(float x) {
    return ptx::exp2_approx(x * kLog2e);
}

template <class T>
struct Group;

template <>
struct Group<uint16_t> {
    static constexpr int kLogits = 8;
    static constexpr uint32_t kNothing = 0xff80ff80u;  // -inf

    __device__ static float low(uint32_t word) { return __uint_as_float(word << 16); }
    __device__ static float high(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

    // The largest of each half of the words.
    __device__ static uint32_t packed_max(uint32_t a, uint32_t b) { return ptx::max_bf16x2(a, b); }
    __device__ static float unpacked_max(uint32_t packed) { return fmaxf(low(packed), high(packed)); }

    template <class Exp>
    __device__ static float sum_of(const uint4& words, Exp exp) {
        return (pair(words.x, exp) + pair(words.y, exp)) + (pair(words.z, exp) + pair(words.w, exp));
    }

    // Moves all logits one place up and puts `raw` into the lowest.
    __device__ static void shift_in(uint4& words, uint16_t raw) {
        words.w = words.w << 16 | words.z >> 16;
        words.z = words.z << 16 | words.y >> 16;
        words.y = words.y << 16 | words.x >> 16;
        words.x = words.x << 16 | raw;
    }

  private:
    template <class Exp>
    __device__ static float pair(uint32_t word, Exp exp) {
        return exp(low(word)) + exp(high(word));
    }
};

template <>
struct Group<float> {
    static constexpr int kLogits = 4;
    static constexpr uint32_t kNothing = 0xff800000u;  // -inf

    __device__ static uint32_t packed_max(uint32_t a, uint32_t b) {
        return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
    }
    __device__ static float unpacked_max(uint32_t packed) { return __uint_as_float(packed); }

    template <class Exp>
    __device__ static float sum_of(const uint4& words, Exp exp) {
        return (exp(__uint_as_float(words.x)) + exp(__uint_as_float(words.y))) +
               (exp(__uint_as_float(words.z)) + exp(__uint_as_float(words.w)));
    }

    __device__ static void shift_in(uint4& words, float raw) {
        words = make_uint4(__float_as_uint(raw), words.x, words.y, words.z);
    }
};

template <class T>
__device__ __forceinline__ uint4 no_group() {
    return make_uint4(Group<T>::kNothing, Group<T>::kNothing, Group<T>::kNothing, Group<T>::kNothing);
}

template <class T>
__device__ __forceinline__ uint32_t packed_max(const uint4& words) {
    return Group<T>::packed_max(Group<T>::packed_max(words.x, words.y), Group<T>::packed_max(words.z, words.w));
}

// One block's share of a row. Groups lie at addresses divisible by 16: where the row does not begin at one, the row's
// first group begins before it, and the place of a logit in the groups is its token id plus `shift`.
template <class T>
struct Segment {
    const T* row;
    int vocab_size;
    int shift;
    int whole_begin;   // the segment's groups that hold nothing but logits of the row: all but the row's first
    int whole_end;     // and last perhaps
    int ragged_begin;  // those two, or -1
    int ragged_end;

    __device__ Segment(const T* row, const Plan& plan, int rank)
        : row(row), vocab_size(plan.vocab_size), ragged_begin(-1), ragged_end(-1) {
        constexpr int kLogits = Group<T>::kLogits;
        shift = static_cast<int>(reinterpret_cast<uintptr_t>(row) % kGroupBytes / sizeof(T));
        const int64_t places = int64_t{plan.vocab_size} + shift;
        const int row_whole_begin = shift != 0 ? 1 : 0;
        const int row_whole_end = static_cast<int>(places / kLogits);
        const int row_end = static_cast<int>((places + kLogits - 1) / kLogits);
        const int64_t first = int64_t{rank} * plan.segment;
        const int begin = first < row_end ? static_cast<int>(first) : row_end;
        const int end = row_end - begin < plan.segment ? row_end : begin + plan.segment;
        whole_begin = begin > row_whole_begin ? begin : row_whole_begin;
        whole_end = end < row_whole_end ? end : row_whole_end;
        if (begin < end && begin < row_whole_begin) ragged_begin = begin;
        if (begin < end && end > row_whole_end && end - 1 != ragged_begin) ragged_end = end - 1;
    }

    __device__ __forceinline__ uint4 load(int group) const {
        if (group >= whole_end) return no_group<T>();
        return __ldg(address(group));
    }

    __device__ __forceinline__ const uint4* address(int group) const {
        return reinterpret_cast<const uint4*>(row - shift) + group;
    }

    // Whether the warp whose lanes hold groups in a row has any; `group` is that of the calling lane.
    __device__ __forceinline__ bool has_any(int group) const {
        return group - static_cast<int>(threadIdx.x) % kWarpSize < whole_end;
    }

    // A group of which only a part belongs to the row; -inf in place of the rest.
    __device__ uint4 load_ragged(int group) const {
        uint4 words = no_group<T>();
#pragma unroll 1
        for (int i = Group<T>::kLogits - 1; i >= 0; --i) {
            const uint32_t token = token_of(group, i);
            if (is_token(token))
                Group<T>::shift_in(words, row[token]);
            else
                Group<T>::shift_in(words, nothing());
        }
        return words;
    }

    // Unsigned, so that a place before the row is no token either.
    __device__ __forceinline__ uint32_t token_of(int group, int i) const {
        return static_cast<uint32_t>(group) * Group<T>::kLogits + static_cast<uint32_t>(i - shift);
    }
    __device__ __forceinline__ bool is_token(uint32_t token) const { return token < static_cast<uint32_t>(vocab_size); }

  private:
    __device__ static T nothing();
};

template <>
__device__ inline uint16_t Segment<uint16_t>::nothing() {
    return 0xff80u;
}

template <>
__device__ inline float Segment<float>::nothing() {
    return -INFINITY;
}

}  // namespace kdt::cuda::draft_topk

#endif  // KDTREE_CUDA_DRAFT_TOPK_GROUP_CUH
