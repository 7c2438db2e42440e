// SPDX-License-Identifier: Apache-2.0
//
// A CBLAS found at run time, so that the library itself neither needs one to build nor to load.
#ifndef KDT_ENGINE_CPU_BLAS_H
#define KDT_ENGINE_CPU_BLAS_H

#include <cstdint>
#include <string>

namespace kdt::engine {

class Blas {
  public:
    // `library`: a file or a name that the loader knows; NULL: the usual names, one after the other. The library is set
    // to one thread where it is an OpenBLAS: the threads are this engine's own.
    explicit Blas(const char* library);

    const std::string& name() const { return name_; }

    // y[out] = w[out, in] * x[in], all f32.
    void multiply(int32_t out, int32_t in, const float* w, const float* x, float* y) const {
        constexpr int kRowMajor = 101, kNoTranspose = 111;
        sgemv_(kRowMajor, kNoTranspose, out, in, 1.0f, w, in, x, 1, 0.0f, y, 1);
    }

  private:
    using Sgemv = void (*)(int order, int transpose, int m, int n, float alpha, const float* a, int lda, const float* x,
                           int x_step, float beta, float* y, int y_step);

    void find_symbols(void* library);

    Sgemv sgemv_ = nullptr;
    std::string name_;
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_CPU_BLAS_H
