// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_TESTS_ENGINE_OPTIONS_H
#define KDTREE_TESTS_ENGINE_OPTIONS_H

#include <string>
#include <vector>

// What the command line says.
struct Options {
    std::string blas;  // empty: the library's default names
    std::vector<std::string> bundles;
    const char* blas_or_null() const { return blas.empty() ? nullptr : blas.c_str(); }
};

inline Options& options() {
    static Options all;
    return all;
}

#endif  // KDTREE_TESTS_ENGINE_OPTIONS_H
