// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_CORE_BUILD_INFO_H
#define KDTREE_CORE_BUILD_INFO_H

namespace kdt {

// The JSON object of kdt_build_info(): what the build files passed in KDT_BUILD_* and the compiler's own version.
const char* build_info() noexcept;

}  // namespace kdt

#endif  // KDTREE_CORE_BUILD_INFO_H
