// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <utility>

#include "cuda/cuda_check.h"
#include "engine/ops.h"

namespace kdt::engine {

Memory::Memory(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    if (cudaMalloc(&data_, bytes) == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        data_ = nullptr;
        fail(KDT_INTERNAL, "the GPU has no %zu bytes of memory left", bytes);
    }
    cuda::check(cudaGetLastError(), "cudaMalloc");
    const cudaError_t cleared = cudaMemset(data_, 0, bytes);
    // The default stream does not order the queues' own: nothing may come before the zeros.
    const cudaError_t waited = cudaStreamSynchronize(nullptr);
    if (cleared != cudaSuccess || waited != cudaSuccess) {
        cudaFree(data_);
        cuda::check(cleared, "cudaMemset");
        cuda::check(waited, "cudaStreamSynchronize");
    }
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Memory::~Memory() {
    if (data_ != nullptr) cudaFree(data_);
}

SharedMemory::SharedMemory(size_t bytes) {
    if (bytes == 0) return;
    KDT_CUDA_CHECK(cudaHostAlloc(&host_, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    const cudaError_t mapped = cudaHostGetDevicePointer(&device_, host_, 0);
    if (mapped != cudaSuccess) {
        cudaFreeHost(host_);
        cuda::check(mapped, "cudaHostGetDevicePointer");
    }
    std::memset(host_, 0, bytes);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : host_(std::exchange(other.host_, nullptr)), device_(std::exchange(other.device_, nullptr)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(device_, other.device_);
    return *this;
}

SharedMemory::~SharedMemory() {
    if (host_ != nullptr) cudaFreeHost(host_);
}

}  // namespace kdt::engine
