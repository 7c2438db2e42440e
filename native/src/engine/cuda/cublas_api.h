// SPDX-License-Identifier: Apache-2.0
//
// The few calls of cuBLAS (C API v2) that the engine makes, as found in the library at run time: neither its headers
// nor its file are needed to build, and a machine that only runs the kernels needs neither.
#ifndef KDTREE_ENGINE_CUDA_CUBLAS_API_H
#define KDTREE_ENGINE_CUDA_CUBLAS_API_H

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <cstddef>
#include <memory>
#include <string>

namespace kdt::engine {

// cuBLAS, loaded from a file, with one handle on one stream. Its workspace is the caller's, so that a call allocates
// nothing and may be captured.
class Cublas {
  public:
    // file NULL: libcublas.so of CUDA 13 or 12, wherever the loader finds it, or nullptr where it finds none.
    static std::unique_ptr<Cublas> load(const char* file, cudaStream_t stream, void* workspace, size_t workspace_bytes);
    ~Cublas();
    Cublas(const Cublas&) = delete;
    Cublas& operator=(const Cublas&) = delete;

    // y [rows, out] = x [rows, in] * w [out, in]^T, row-major, f32 sums; x and w of `type`.
    void gemm(cudaDataType type, const void* x, int x_stride, const void* w, void* y, cudaDataType y_type, int rows,
              int in, int out);

    const std::string& name() const { return name_; }

  private:
    struct Calls;

    Cublas(void* library, cudaStream_t stream, void* workspace, size_t workspace_bytes);
    void check(int status, const char* call) const;

    void* library_ = nullptr;
    void* handle_ = nullptr;
    Calls* calls_ = nullptr;
    std::string name_;
};

}  // namespace kdt::engine

#endif  // KDTREE_ENGINE_CUDA_CUBLAS_API_H
