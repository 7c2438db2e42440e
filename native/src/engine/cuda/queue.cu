// SPDX-License-Identifier: Apache-2.0
//
// Queue: a stream with its cuBLAS handle; Recording: a CUDA graph captured from it.
#include <utility>

#include "engine/cuda/queue.h"

namespace kdt::engine {
namespace {

constexpr size_t kBlasWorkspaceBytes = size_t{32} << 20;  // what cuBLAS's manual advises for Hopper

}  // namespace

Queue::Impl::Impl(const char* blas_library)
    : device(cuda::current_device()),
      blas_workspace(kBlasWorkspaceBytes),
      partials(kMaxPartials * sizeof(uint64_t)),
      arrivals(kMaxArrivals * sizeof(uint32_t)) {
    // Blocking neither way with the default stream, which other users of the GPU in this process may keep busy.
    KDT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    try {
        blas = Cublas::load(blas_library, stream, blas_workspace.data(), blas_workspace.bytes());
    } catch (...) {
        cudaStreamDestroy(stream);
        throw;
    }
}

Queue::Impl::~Impl() {
    cudaStreamSynchronize(stream);
    blas.reset();
    cudaStreamDestroy(stream);
}

Queue::Queue(const char* blas_library) : impl_(std::make_unique<Impl>(blas_library)) {}
Queue::~Queue() = default;

void Queue::upload(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return;
    KDT_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, impl_->stream));
    wait();  // pinned memory is read only then
}

void Queue::download(void* to, const void* from, size_t bytes) {
    if (bytes != 0) KDT_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, impl_->stream));
    wait();
}

void Queue::copy(void* to, const void* from, size_t bytes) {
    if (bytes != 0) KDT_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, impl_->stream));
}

void Queue::zero(void* to, size_t bytes) {
    if (bytes != 0) KDT_CUDA_CHECK(cudaMemsetAsync(to, 0, bytes, impl_->stream));
}

void Queue::wait() {
    KDT_CUDA_CHECK(cudaStreamSynchronize(impl_->stream));
}

void* Queue::stream() const {
    return impl_->stream;
}

const char* Queue::blas_name() const {
    return impl_->blas == nullptr ? "none: cuBLAS was not found" : impl_->blas->name().c_str();
}

kdt_mla_mode mla_mode() {
    return KDT_MLA_AUTO;
}

struct Recording::Impl {
    cudaStream_t stream = nullptr;
    cudaGraphExec_t graph = nullptr;
};

// Captured without a run before it, which would change the slots. Relaxed: the first use of a kernel loads it, which a
// stricter capture forbids.
Recording::Recording(Queue& queue, std::function<void()> work) : impl_(std::make_unique<Impl>()) {
    impl_->stream = queue.impl()->stream;
    KDT_CUDA_CHECK(cudaStreamBeginCapture(impl_->stream, cudaStreamCaptureModeRelaxed));
    cudaGraph_t graph = nullptr;
    try {
        work();
    } catch (...) {
        cudaStreamEndCapture(impl_->stream, &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
        cudaGetLastError();
        throw;
    }
    KDT_CUDA_CHECK(cudaStreamEndCapture(impl_->stream, &graph));
    const cudaError_t built = cudaGraphInstantiate(&impl_->graph, graph, 0);
    cudaGraphDestroy(graph);
    cuda::check(built, "cudaGraphInstantiate");
    const cudaError_t sent = cudaGraphUpload(impl_->graph, impl_->stream);
    if (sent != cudaSuccess) {
        cudaGraphExecDestroy(impl_->graph);
        cuda::check(sent, "cudaGraphUpload");
    }
}

Recording::~Recording() {
    cudaGraphExecDestroy(impl_->graph);
}

void Recording::replay() {
    KDT_CUDA_CHECK(cudaGraphLaunch(impl_->graph, impl_->stream));
}

}  // namespace kdt::engine
