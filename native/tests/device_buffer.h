// SPDX-License-Identifier: Apache-2.0
//
// Memory of the kind the library under test works on: host memory for the CPU library, device memory when compiled with
// KDT_TEST_CUDA. This is the only place where the two test programs differ.
#ifndef KDTREE_TESTS_DEVICE_BUFFER_H
#define KDTREE_TESTS_DEVICE_BUFFER_H

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#if defined(KDT_TEST_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace device {

#if defined(KDT_TEST_CUDA)

constexpr const char* kBackend = "cuda";

inline void require(cudaError_t result, const char* call) {
    if (result != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(result));
}

// Empty when a device can be used, else the reason.
inline std::string unavailable() {
    int count = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess) return cudaGetErrorString(result);
    return count > 0 ? "" : "no CUDA device";
}

inline void* allocate(size_t bytes) {
    void* memory = nullptr;
    require(cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
}
inline void release(void* memory) {
    cudaFree(memory);
}
inline void upload(void* to, const void* from, size_t bytes) {
    require(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}
inline void download(void* to, const void* from, size_t bytes) {
    require(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
}
inline void synchronize() {
    require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

#else

constexpr const char* kBackend = "cpu";

inline std::string unavailable() {
    return "";
}
inline void* allocate(size_t bytes) {
    // As generous as cudaMalloc: kernels may rely on an allocation's alignment.
    void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
inline void release(void* memory) {
    std::free(memory);
}
inline void upload(void* to, const void* from, size_t bytes) {
    std::memcpy(to, from, bytes);
}
inline void download(void* to, const void* from, size_t bytes) {
    std::memcpy(to, from, bytes);
}
inline void synchronize() {}

#endif

}  // namespace device

#endif  // KDTREE_TESTS_DEVICE_BUFFER_H
