// SPDX-License-Identifier: Apache-2.0
//
// A CBLAS found at run time, so that the library itself neither needs one to build nor to load.
#ifndef KDT_ENGINE_CPU_BLAS_H
#define KDT_ENGINE_CPU_BLAS_H

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace kdt::engine {

class Blas {
  public:
    // `library`: a file or a name that the loader knows; NULL: the usual names, one after the other. The library is set
    // to one thread where it is an OpenBLAS: the threads are this engine's own.
    explicit Blas(const char* library);

    const std::string& name() const { return name_; }

    // y[rows, out] = x[rows, in] * w[out, in]^T, all f32.
    void multiply(int32_t rows, int32_t out, int32_t in, const float* x, int64_t x_stride, const float* w, float* y,
                  int64_t y_stride) const;

    // The most rows that one product with a w of this shape can have, of 8, 4, 2 and 1, such that equal rows give equal
    // results to the bit, wherever they stand. Some kernels sum the rows of one call in different orders; found by
    // trying, once a shape.
    int32_t uniform_rows(int32_t out, int32_t in);

  private:
    using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                           const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc);

    void find_symbols(void* library);
    bool rows_agree(int32_t rows, int32_t out, int32_t in) const;

    Sgemm sgemm_ = nullptr;
    std::string name_;
    std::map<std::pair<int32_t, int32_t>, int32_t> uniform_rows_;
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_CPU_BLAS_H
