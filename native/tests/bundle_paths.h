// SPDX-License-Identifier: Apache-2.0
#ifndef KDTREE_TESTS_BUNDLE_PATHS_H
#define KDTREE_TESTS_BUNDLE_PATHS_H

#include <string>
#include <vector>

// The KDTR files named on the command line.
inline std::vector<std::string>& bundle_paths() {
    static std::vector<std::string> paths;
    return paths;
}

#endif  // KDTREE_TESTS_BUNDLE_PATHS_H
