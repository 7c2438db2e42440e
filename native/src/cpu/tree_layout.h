// SPDX-License-Identifier: Apache-2.0
//
// What follows from a finished tree's parents and links, one request at a time.
#ifndef KDTREE_CPU_TREE_LAYOUT_H
#define KDTREE_CPU_TREE_LAYOUT_H

#include <cstdint>

namespace kdt {

// mask [num_outputs, words]: a node sees what its parent sees, and itself; pads see nothing.
void write_mask(const int32_t* parents, int32_t num_nodes, int32_t num_outputs, uint64_t* mask);

// order [num_outputs]: nodes in pre-order, then -1.
void write_dfs_order(const int32_t* parents, const int32_t* first_child, const int32_t* next_sibling,
                     int32_t num_outputs, int32_t* order);

}  // namespace kdt

#endif  // KDTREE_CPU_TREE_LAYOUT_H
