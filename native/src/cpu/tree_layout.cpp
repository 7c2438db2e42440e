// SPDX-License-Identifier: Apache-2.0
#include "cpu/tree_layout.h"

#include <algorithm>

#include "core/checks.h"

namespace kdt {

void write_mask(const int32_t* parents, int32_t num_nodes, int32_t num_outputs, uint64_t* mask) {
    const int32_t words = mask_words(num_outputs);
    std::fill(mask, mask + int64_t{num_outputs} * words, 0);
    mask[0] = 1;
    for (int32_t i = 1; i < num_nodes; ++i) {
        uint64_t* const row = mask + int64_t{i} * words;
        // A parent's bits end at its own index, which is below i.
        std::copy_n(mask + int64_t{parents[i]} * words, i / 64 + 1, row);
        row[i / 64] |= uint64_t{1} << (i % 64);
    }
}

void write_dfs_order(const int32_t* parents, const int32_t* first_child, const int32_t* next_sibling,
                     int32_t num_outputs, int32_t* order) {
    int32_t count = 0;
    for (int32_t node = 0; node >= 0;) {
        order[count++] = node;
        if (first_child[node] >= 0) {
            node = first_child[node];
            continue;
        }
        while (node >= 0 && next_sibling[node] < 0) node = parents[node];
        if (node >= 0) node = next_sibling[node];
    }
    std::fill(order + count, order + num_outputs, -1);
}

}  // namespace kdt
