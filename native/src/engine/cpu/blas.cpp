// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/blas.h"

#include <dlfcn.h>

#include <cstring>
#include <vector>

#include "core/error.h"
#include "engine/keyed_random.h"

namespace kdt::engine {
namespace {

constexpr int kRowMajor = 101;
constexpr int kNoTranspose = 111;
constexpr int kTranspose = 112;

constexpr const char* kUsualNames[] = {"libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libblas.so.3",
                                       "libcblas.so",      "libblas.so",     "libblis.so.4",  "libmkl_rt.so.2"};

// scipy-openblas32, a build of OpenBLAS on PyPI, has a prefix before all names.
constexpr const char* kPrefixes[] = {"", "scipy_"};

void* symbol(void* library, const char* name) {
    for (const char* const prefix : kPrefixes)
        if (void* const found = dlsym(library, (std::string(prefix) + name).c_str())) return found;
    return nullptr;
}

}  // namespace

Blas::Blas(const char* library) {
    // The handle is kept for the process: others may use the same library.
    if (library != nullptr) {
        void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr)
            fail(KDT_UNSUPPORTED, "engine_create: the BLAS library cannot be loaded: %s", dlerror());
        name_ = library;
        find_symbols(handle);
        if (sgemm_ == nullptr)
            fail(KDT_UNSUPPORTED, "engine_create: '%s' has no cblas_sgemm, so it is no CBLAS with 32-bit integers",
                 library);
        return;
    }
    for (const char* const usual : kUsualNames) {
        void* const handle = dlopen(usual, RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) continue;
        name_ = usual;
        find_symbols(handle);
        if (sgemm_ != nullptr) return;
    }
    fail(KDT_UNSUPPORTED,
         "engine_create: no BLAS library was found (libopenblas, libcblas, libblas, libblis, libmkl_rt); name one in "
         "blas_library, for example the file of the Python package scipy-openblas32");
}

void Blas::find_symbols(void* library) {
    sgemm_ = reinterpret_cast<Sgemm>(symbol(library, "cblas_sgemm"));
    if (void* const config = symbol(library, "openblas_get_config"))
        name_ += std::string(": ") + reinterpret_cast<char* (*)()>(config)();
    if (void* const threads = symbol(library, "openblas_set_num_threads"))
        reinterpret_cast<void (*)(int)>(threads)(1);
}

void Blas::multiply(int32_t rows, int32_t out, int32_t in, const float* x, int64_t x_stride, const float* w, float* y,
                    int64_t y_stride) const {
    sgemm_(kRowMajor, kNoTranspose, kTranspose, rows, out, in, 1.0f, x, static_cast<int>(x_stride), w, in, 0.0f, y,
           static_cast<int>(y_stride));
}

bool Blas::rows_agree(int32_t rows, int32_t out, int32_t in) const {
    std::vector<float> x(static_cast<size_t>(rows) * in), w(static_cast<size_t>(out) * in),
        y(static_cast<size_t>(rows) * out);
    for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(uniform(word(1, i)) - 0.5);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(uniform(word(2, i % in)) - 0.5);
    multiply(rows, out, in, x.data(), in, w.data(), y.data(), out);
    for (int32_t r = 1; r < rows; ++r)
        if (std::memcmp(y.data(), y.data() + int64_t{r} * out, out * sizeof(float)) != 0) return false;
    return true;
}

int32_t Blas::uniform_rows(int32_t out, int32_t in) {
    const auto known = uniform_rows_.find({out, in});
    if (known != uniform_rows_.end()) return known->second;
    int32_t rows = 8;
    while (rows > 1 && !rows_agree(rows, out, in)) rows /= 2;
    uniform_rows_.emplace(std::make_pair(out, in), rows);
    return rows;
}

}  // namespace kdt::engine
