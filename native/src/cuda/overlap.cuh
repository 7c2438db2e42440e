// SPDX-License-Identifier: Apache-2.0
//
// Launches that overlap the kernel before them (programmatic dependent launch, CUDA C++ Programming Guide): the blocks
// come to the multiprocessors while the previous kernel of the stream still runs, and wait there for its end instead of
// in the queue. A kernel of a microsecond is mostly launch, and behind a kernel that lets the next one come early this
// hides most of it; behind any other it changes nothing. The order of the stream stays what it is.
#ifndef KDTREE_CUDA_OVERLAP_CUH
#define KDTREE_CUDA_OVERLAP_CUH

#include <type_traits>

#include "cuda/cuda_check.h"

namespace kdt::cuda {

// At the head of every kernel that goes through launch_overlapped(): waits until the kernels before it are complete and
// their writes visible. No access to global memory may stand before it.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next such kernel come once every block has said so or is done. It belongs behind the wait and the loads:
// said before the wait, whole rows of later kernels come and stand by, which costs a kernel of many blocks more than it
// saves.
__device__ __forceinline__ void let_next_kernel_come() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// kernel<<<grid, threads, shared_bytes, stream>>>(arguments...), overlapped where the code that runs was compiled with
// the wait: on an older GPU, and on a newer one from older PTX, it is an ordinary launch.
template <class... Arguments>
void launch_overlapped(void (*kernel)(Arguments...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                       const std::remove_const_t<Arguments>&... arguments) {
    cudaFuncAttributes compiled = {};
    KDT_CUDA_CHECK(cudaFuncGetAttributes(&compiled, kernel));
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = compiled.ptxVersion >= 90 ? 1 : 0;
    check(cudaLaunchKernelEx(&config, kernel, arguments...), "cudaLaunchKernelEx");
}

// The same without dynamic shared memory.
template <class Arguments>
void launch_overlapped(void (*kernel)(Arguments), dim3 grid, int threads, cudaStream_t stream,
                       const Arguments& arguments) {
    launch_overlapped(kernel, grid, threads, size_t{0}, stream, arguments);
}

}  // namespace kdt::cuda

#endif  // KDTREE_CUDA_OVERLAP_CUH
