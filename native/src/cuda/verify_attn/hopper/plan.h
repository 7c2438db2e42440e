// SPDX-License-Identifier: Apache-2.0
//
// How many splits a row tile's slots get, and how blocks form clusters: whatever should be fastest by a simple model of
// the GPU. Only sizes count, so equal calls split equally.
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_PLAN_H
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_PLAN_H

#include <algorithm>
#include <cstdint>

namespace kdt::cuda::verify_attn::hopper {

struct Plan {
    int cluster_splits;  // splits of a row tile in one cluster
    int groups;          // clusters a row tile's splits are spread over
};

struct PlanInput {
    int64_t batch;
    int64_t row_tiles;   // of a request
    int64_t slot_tiles;  // of a request: a bound, lengths are known to the GPU only
    int64_t multiprocessors;
};

// In units of the time a block takes for one tile of slots (about 1.4 us on an H200, where these were fitted).
struct PlanCosts {
    double block = 4.0;        // start and end of a block
    double cluster_sum = 5.0;  // splits added within a cluster
    double group_sum = 3.0;    // and between clusters,
    double group = 0.15;       // for each of them
};

// Clusters that run at a time. Processing clusters (GPCs) are not all of the same size, and none is a multiple of every
// cluster's: these are the multiprocessors of an H200's 132 that take part (cudaOccupancyMaxActiveClusters).
inline int64_t clusters_at_once(int64_t multiprocessors, int blocks) {
    constexpr int64_t kUsable[] = {132, 132, 117, 120, 110, 102, 105, 120};
    return std::max<int64_t>(1, multiprocessors * kUsable[blocks - 1] / 132 / blocks);
}

inline Plan choose_plan(const PlanInput& in, int max_cluster_splits, int max_groups) {
    const PlanCosts costs;
    Plan best = {1, 1};
    double best_time = 1e300;
    for (int splits = 1; splits <= max_cluster_splits; ++splits) {
        // Groups add up what clusters have added before: a lone block would do it alone, for all columns.
        for (int groups = 1; groups <= (splits == 1 ? 1 : max_groups); ++groups) {
            const int64_t all_splits = int64_t{splits} * groups;
            if (all_splits > 1 && all_splits > in.slot_tiles) break;
            const int64_t clusters = in.batch * in.row_tiles * groups;
            const int64_t at_once = clusters_at_once(in.multiprocessors, splits);
            if (groups > 1 && clusters > at_once) break;  // groups wait for each other
            const double rounds = static_cast<double>((clusters + at_once - 1) / at_once);
            const double tiles = static_cast<double>((in.slot_tiles + all_splits - 1) / all_splits);
            const double time = rounds * (tiles + costs.block) + (splits > 1 ? costs.cluster_sum : 0.0) +
                                (groups > 1 ? costs.group_sum + costs.group * groups : 0.0);
            if (time <= best_time) {  // of equals the largest cluster
                best_time = time;
                best = {splits, groups};
            }
        }
    }
    return best;
}

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_PLAN_H
