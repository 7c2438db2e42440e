// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/blas.h"

#include <dlfcn.h>

#include "core/error.h"

namespace kdt::engine {
namespace {

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
        if (handle == nullptr) fail(KDT_UNSUPPORTED, "engine_create: the BLAS library cannot be loaded: %s", dlerror());
        name_ = library;
        find_symbols(handle);
        if (sgemv_ == nullptr)
            fail(KDT_UNSUPPORTED, "engine_create: '%s' has no cblas_sgemv, so it is no CBLAS with 32-bit integers",
                 library);
        return;
    }
    for (const char* const usual : kUsualNames) {
        void* const handle = dlopen(usual, RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) continue;
        name_ = usual;
        find_symbols(handle);
        if (sgemv_ != nullptr) return;
    }
    fail(KDT_UNSUPPORTED,
         "engine_create: no BLAS library was found (libopenblas, libcblas, libblas, libblis, libmkl_rt); name one in "
         "blas_library, for example the file of the Python package scipy-openblas32");
}

void Blas::find_symbols(void* library) {
    sgemv_ = reinterpret_cast<Sgemv>(symbol(library, "cblas_sgemv"));
    if (void* const config = symbol(library, "openblas_get_config"))
        name_ += std::string(": ") + reinterpret_cast<char* (*)()>(config)();
    if (void* const threads = symbol(library, "openblas_set_num_threads")) reinterpret_cast<void (*)(int)>(threads)(1);
}

}  // namespace kdt::engine
