// SPDX-License-Identifier: Apache-2.0
//
// The symbols that are the same in every backend.
#include "core/build_info.h"
#include "core/error.h"
#include "kdtree/kdtree.h"

extern "C" {

uint32_t kdt_abi_version(void) {
    return KDT_ABI_VERSION;
}

const char* kdt_build_info(void) {
    return kdt::build_info();
}

const char* kdt_last_error(void) {
    return kdt::last_error();
}

}  // extern "C"
