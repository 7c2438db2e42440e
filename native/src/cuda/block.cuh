// SPDX-License-Identifier: Apache-2.0
//
// Sums, prefix sums and maxima over a block. All results are integers, so their order of evaluation does not show.
#ifndef KDTREE_CUDA_BLOCK_CUH
#define KDTREE_CUDA_BLOCK_CUH

#include <cstdint>

namespace kdt::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarpSize = 32;

__device__ __forceinline__ int64_t warp_max(int64_t value) {
#pragma unroll
    for (int step = kWarpSize / 2; step > 0; step /= 2) {
        const int64_t other = __shfl_xor_sync(kAllLanes, value, step);
        value = other > value ? other : value;
    }
    return value;
}

// The sum of the values of the lanes up to this one.
template <class T>
__device__ __forceinline__ T warp_scan(T value) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int step = 1; step < kWarpSize; step *= 2) {
        const T other = __shfl_up_sync(kAllLanes, value, step);
        if (lane >= step) value += other;
    }
    return value;
}

// One value a thread in, the same answer in every thread out; each call is one barrier. The warps' totals go through
// two buffers in turn: by the time a buffer is written again, the barrier of the call between has passed, so nobody
// still reads it and no second barrier is needed.
template <int kThreads>
class Block {
  public:
    static_assert(kThreads % kWarpSize == 0 && kThreads <= 1024, "whole warps, and one lane for the total of each");
    static constexpr int kWarps = kThreads / kWarpSize;

    struct Shared {
        uint32_t totals[2][kWarps];
        int64_t wide[2][kWarps];
    };

    __device__ explicit Block(Shared& shared)
        : shared_(shared), lane_(static_cast<int>(threadIdx.x) % kWarpSize), warp_(threadIdx.x / kWarpSize) {}

    __device__ uint32_t sum(uint32_t value) {
        uint32_t* const totals = next_buffer(shared_.totals);
        value = __reduce_add_sync(kAllLanes, value);
        if (lane_ == 0) totals[warp_] = value;
        __syncthreads();
        return __reduce_add_sync(kAllLanes, lane_ < kWarps ? totals[lane_] : 0u);
    }

    __device__ uint32_t max(uint32_t value) {
        uint32_t* const totals = next_buffer(shared_.totals);
        value = __reduce_max_sync(kAllLanes, value);
        if (lane_ == 0) totals[warp_] = value;
        __syncthreads();
        return __reduce_max_sync(kAllLanes, lane_ < kWarps ? totals[lane_] : 0u);
    }

    // Non-negative values.
    __device__ int64_t max_wide(int64_t value) {
        int64_t* const maxima = next_buffer(shared_.wide);
        value = warp_max(value);
        if (lane_ == 0) maxima[warp_] = value;
        __syncthreads();
        return warp_max(lane_ < kWarps ? maxima[lane_] : 0);
    }

    // The sum of the values of the threads before this one; `total` is that of all.
    __device__ uint32_t exclusive_scan(uint32_t value, uint32_t& total) {
        uint32_t* const totals = next_buffer(shared_.totals);
        const uint32_t inclusive = warp_scan(value);
        if (lane_ == kWarpSize - 1) totals[warp_] = inclusive;
        __syncthreads();
        const uint32_t through = warp_scan(lane_ < kWarps ? totals[lane_] : 0u);
        total = __shfl_sync(kAllLanes, through, kWarps - 1);
        const uint32_t before = __shfl_sync(kAllLanes, through, warp_ == 0 ? 0 : warp_ - 1);
        return inclusive - value + (warp_ == 0 ? 0u : before);
    }

    // As above, the value of this thread included.
    __device__ int64_t inclusive_scan_wide(int64_t value, int64_t& total) {
        int64_t* const totals = next_buffer(shared_.wide);
        const int64_t inclusive = warp_scan(value);
        if (lane_ == kWarpSize - 1) totals[warp_] = inclusive;
        __syncthreads();
        const int64_t through = warp_scan(lane_ < kWarps ? totals[lane_] : int64_t{0});
        total = __shfl_sync(kAllLanes, through, kWarps - 1);
        const int64_t before = __shfl_sync(kAllLanes, through, warp_ == 0 ? 0 : warp_ - 1);
        return inclusive + (warp_ == 0 ? 0 : before);
    }

  private:
    template <class T>
    __device__ T* next_buffer(T (&buffers)[2][kWarps]) {
        phase_ ^= 1;
        return buffers[phase_];
    }

    Shared& shared_;
    const int lane_;
    const int warp_;
    int phase_ = 0;
};

}  // namespace kdt::cuda

#endif  // KDTREE_CUDA_BLOCK_CUH
