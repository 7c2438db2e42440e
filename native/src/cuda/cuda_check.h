// SPDX-License-Identifier: Apache-2.0
//
// Host side of every CUDA call: a runtime error becomes kdt::Error with the text of the call that failed, and what a
// launch needs to know of the GPU comes from one place.
#ifndef KDTREE_CUDA_CUDA_CHECK_H
#define KDTREE_CUDA_CUDA_CHECK_H

#include <cuda_runtime.h>

#include <cstddef>

#include "core/error.h"

namespace kdt::cuda {

// Nothing to run on, as opposed to a run that failed.
inline bool means_no_device(cudaError_t error) {
    switch (error) {
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorInitializationError:
        case cudaErrorStubLibrary:
        case cudaErrorSystemDriverMismatch:
        case cudaErrorSystemNotReady:
        case cudaErrorCompatNotSupportedOnDevice:
            return true;
        default:
            return false;
    }
}

// Throws what `error` means, naming `call`. The runtime also keeps the error of a failed call for a later
// cudaGetLastError(); reading it here clears it, so that it is never blamed on the next call.
inline void check(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return;
    cudaGetLastError();
    if (means_no_device(error)) fail(KDT_NO_DEVICE, "no usable GPU or driver: %s: %s", call, cudaGetErrorString(error));
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction)
        fail(KDT_UNSUPPORTED, "this library was not built for the current GPU: %s: %s", call,
             cudaGetErrorString(error));
    fail(KDT_CUDA_ERROR, "%s failed: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

// After a kernel launch, which returns nothing.
inline void check_launch(const char* kernel) {
    check(cudaGetLastError(), kernel);
}

#define KDT_CUDA_CHECK(expression) ::kdt::cuda::check((expression), #expression)

// The current device, as far as launch plans depend on it.
struct Device {
    int multiprocessors;
    int shared_per_block;  // bytes a block may have after opting in
    int shared_per_multiprocessor;
    int compute_capability;  // 90 for 9.0
};

inline Device current_device() {
    int index = 0;
    KDT_CUDA_CHECK(cudaGetDevice(&index));
    Device device = {};
    KDT_CUDA_CHECK(cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, index));
    KDT_CUDA_CHECK(cudaDeviceGetAttribute(&device.shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
    KDT_CUDA_CHECK(
        cudaDeviceGetAttribute(&device.shared_per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, index));
    int major = 0, minor = 0;
    KDT_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
    KDT_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
    device.compute_capability = major * 10 + minor;
    return device;
}

// Lets `kernel` be launched with `bytes` of dynamic shared memory; beyond 48 KB, its static shared memory included, a
// kernel has to ask.
template <class Kernel>
void allow_shared(Kernel* kernel, size_t bytes, const Device& device) {
    if (bytes > static_cast<size_t>(device.shared_per_block))
        fail(KDT_UNSUPPORTED, "a block needs %zu bytes of shared memory and the current GPU gives %d", bytes,
             device.shared_per_block);
    if (bytes <= 40 * 1024) return;
    KDT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace kdt::cuda

#endif  // KDTREE_CUDA_CUDA_CHECK_H
