// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <memory>

#include "core/error.h"
#include "engine/cuda/cublas_api.h"

namespace kdt::engine {
namespace {

// Values of cuBLAS's enumerations.
constexpr int kSuccess = 0;
constexpr int kNoTranspose = 0;
constexpr int kTranspose = 1;
constexpr int kComputeF32 = 68;
constexpr int kDefaultAlgorithm = -1;
// With f32 operands no TF32, with bf16 ones no bf16 sums between the parts of a split.
constexpr int kNoReducedPrecision = 16;

constexpr const char* kFiles[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};

}  // namespace

struct Cublas::Calls {
    int (*create)(void** handle);
    int (*destroy)(void* handle);
    int (*set_stream)(void* handle, cudaStream_t stream);
    int (*set_workspace)(void* handle, void* workspace, size_t bytes);
    int (*set_math_mode)(void* handle, int mode);
    int (*get_version)(void* handle, int* version);
    const char* (*status_string)(int status);
    int (*gemm)(void* handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha, const void* a,
                cudaDataType a_type, int lda, const void* b, cudaDataType b_type, int ldb, const void* beta, void* c,
                cudaDataType c_type, int ldc, int compute, int algorithm);
};

std::unique_ptr<Cublas> Cublas::load(const char* file, cudaStream_t stream, void* workspace, size_t workspace_bytes) {
    void* library = nullptr;
    if (file != nullptr) {
        library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            const char* const why = dlerror();
            fail(KDT_UNSUPPORTED, "cuBLAS could not be loaded: %s", why == nullptr ? file : why);
        }
    } else {
        for (const char* const candidate : kFiles)
            if (library == nullptr) library = dlopen(candidate, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return nullptr;
    }
    return std::unique_ptr<Cublas>(new Cublas(library, stream, workspace, workspace_bytes));
}

Cublas::Cublas(void* library, cudaStream_t stream, void* workspace, size_t workspace_bytes) : library_(library) {
    auto calls = std::make_unique<Calls>();
    const auto find = [&](auto& call, const char* symbol) {
        void* const found = dlsym(library_, symbol);
        if (found == nullptr) fail(KDT_UNSUPPORTED, "the cuBLAS that was loaded has no %s", symbol);
        call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(found);
    };
    try {
        find(calls->create, "cublasCreate_v2");
        find(calls->destroy, "cublasDestroy_v2");
        find(calls->set_stream, "cublasSetStream_v2");
        find(calls->set_workspace, "cublasSetWorkspace_v2");
        find(calls->set_math_mode, "cublasSetMathMode");
        find(calls->get_version, "cublasGetVersion_v2");
        find(calls->status_string, "cublasGetStatusString");
        find(calls->gemm, "cublasGemmEx");
        calls_ = calls.get();
        check(calls->create(&handle_), "cublasCreate");
        check(calls->set_stream(handle_, stream), "cublasSetStream");  // it forgets a workspace set before
        check(calls->set_workspace(handle_, workspace, workspace_bytes), "cublasSetWorkspace");
        check(calls->set_math_mode(handle_, kNoReducedPrecision), "cublasSetMathMode");
        int version = 0;
        check(calls->get_version(handle_, &version), "cublasGetVersion");
        name_ = "cuBLAS " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
                std::to_string(version % 100);
    } catch (...) {
        if (handle_ != nullptr) calls->destroy(handle_);
        dlclose(library_);
        throw;
    }
    calls.release();
}

Cublas::~Cublas() {
    calls_->destroy(handle_);
    dlclose(library_);
    delete calls_;
}

void Cublas::check(int status, const char* call) const {
    if (status != kSuccess) fail(KDT_CUDA_ERROR, "%s failed: %s", call, calls_->status_string(status));
}

void Cublas::gemm(cudaDataType type, const void* x, int x_stride, const void* w, void* y, cudaDataType y_type, int rows,
                  int in, int out) {
    const float one = 1.0f, zero = 0.0f;
    // cuBLAS counts by columns: its matrices are ours transposed, y^T = w x^T.
    check(calls_->gemm(handle_, kTranspose, kNoTranspose, out, rows, in, &one, w, type, in, x, type, x_stride, &zero, y,
                       y_type, out, kComputeF32, kDefaultAlgorithm),
          "cublasGemmEx");
}

}  // namespace kdt::engine
