// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_CUDA_CARVE_CUH
#define KDTREE_CUDA_CARVE_CUH

#include <cstddef>

namespace kdt::cuda {

// Hands out consecutive blocks of one piece of memory, shared or global. With a NULL base it only measures, so that
// the host's size and the kernel's pointers come from the same lines.
class Carve {
  public:
    static constexpr size_t kAlignment = 16;

    __host__ __device__ explicit Carve(void* base) : base_(static_cast<char*>(base)), used_(0) {}

    template <class T>
    __host__ __device__ T* take(size_t count) {
        char* const block = base_ + used_;
        used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
        return reinterpret_cast<T*>(block);
    }

    // Goes on behind `other`, a copy of this one that has handed out blocks since: several copies can so use the same
    // memory at different times.
    __host__ __device__ void skip(const Carve& other) {
        if (other.used_ > used_) used_ = other.used_;
    }

    __host__ __device__ size_t bytes() const { return used_; }

  private:
    char* base_;
    size_t used_;
};

}  // namespace kdt::cuda

#endif  // KDTREE_CUDA_CARVE_CUH
