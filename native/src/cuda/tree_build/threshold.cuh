// SPDX-License-Identifier: Apache-2.0
//
// A cost that at least tree_budget candidates do not exceed, and few more: expanding up to it finds the best ones
// without a heap. It comes from counting candidates by cost in a histogram of 64 bins, depth after depth.
//
// Only the excess of an entry over the best of its row is rounded (up) to bins: a path of d entries, most of them of
// rank 0, then carries the rounding of its few deviations and of one spine, rather than d roundings. Rounding is always
// up, so what is counted at or below a bin truly costs no more: the threshold is never too low. Further passes zoom in
// on what the first one found.
#ifndef KDTREE_CUDA_TREE_BUILD_THRESHOLD_CUH
#define KDTREE_CUDA_TREE_BUILD_THRESHOLD_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/tree_build/layout.cuh"
#include "cuda/tree_build/rows.cuh"

namespace kdt::cuda::tree_build {

constexpr int kRangePoints = 16;

// The threads that convolve are teams of one thread a bin.
constexpr int kMaxTeams = 8;

struct ThresholdShared {
    uint32_t found[kRangePoints];
    int spine_bin[kMaxRows];
    uint32_t paths[2 * kBins];  // of the candidates at one depth, by excess; zeros before bin 0
    uint32_t sums[kMaxTeams][kBins];
    int bin;
};

// The range R_j = largest * 2^(-j/2).
__device__ __forceinline__ int64_t range_point(int64_t largest, int j) {
    const int64_t halved = largest >> (j / 2);
    return j % 2 == 0 ? halved : (halved * 181) >> 8;
}

// A range to start from. The spine with one deviation (depth d, rank r) makes sum(usable) candidates whose costs are
// known at once: the smallest R_j with at least `budget` of them, or the largest when there are fewer.
template <int kThreads>
__device__ int64_t first_range(const Sizes& sizes, const Rows& rows, const RowsShared& survey,
                               ThresholdShared& shared) {
    const int lane = threadIdx.x % kWarpSize;
    const int64_t widest = lane < rows.depth ? survey.spine[lane] + rows.row(lane + 1)[rows.count(lane + 1) - 1] : 0;
    const int64_t largest = warp_max(widest);
    for (int j = threadIdx.x / kWarpSize; j < kRangePoints; j += kThreads / kWarpSize) {
        const int64_t range = range_point(largest, j);
        uint32_t found = 0;
        if (lane < rows.depth)
            found = count_up_to(rows.row(lane + 1), rows.count(lane + 1), range - survey.spine[lane]);
        found = __reduce_add_sync(kAllLanes, found);
        if (lane == 0) shared.found[j] = found;
    }
    __syncthreads();
    int best = 0;
    for (int j = 1; j < kRangePoints; ++j)
        if (shared.found[j] >= static_cast<uint32_t>(sizes.budget)) best = j;
    return range_point(largest, best);
}

// Bin i holds candidates of cost at most first + i * width.
struct Bins {
    int64_t first;
    int64_t width;

    __device__ int64_t top(int bin) const { return first + bin * width; }

    // The bin where costs of a spine begin, rounded up; far off ones are as good as just outside.
    __device__ int of_spine(int64_t cost) const {
        const int64_t above = cost - first;
        if (above > (kBins - 1) * width) return kBins;
        if (above <= -kBins * width) return -kBins;
        return static_cast<int>(above >= 0 ? (above + width - 1) / width : -(-above / width));
    }
};

// Lowers shared.bin, kBins at first, to the smallest bin at or below which `budget` candidates are, if there is one.
// `within[d - 1][i]` = entries of row d whose excess is at most i * width. Ends without a barrier.
//
// Depth after depth: (candidates by excess) * (entries of the next row up to an excess) = candidates up to an excess.
// Numbers saturate at the budget: candidates beyond it on one depth, and their descendants, come too late to matter.
template <int kThreads>
__device__ void find_bin(const Sizes& sizes, const Rows& rows, const uint16_t* within, ThresholdShared& shared) {
    constexpr int kTeams = kThreads / kBins < kMaxTeams ? kThreads / kBins : kMaxTeams;
    const int bin = threadIdx.x % kBins;
    const int team = threadIdx.x / kBins;
    const bool works = team < kTeams;  // the others only keep the barriers company
    const uint32_t budget = sizes.budget;
    const auto up_to = [&](int i) {
        uint32_t sum = 0;
#pragma unroll
        for (int k = 0; k < kTeams; ++k) sum += shared.sums[k][i];
        return min(sum, budget);
    };
    if (team == 0) {
        shared.paths[bin] = 0;
        shared.paths[kBins + bin] = bin == 0 ? 1 : 0;
    }
    __syncthreads();

    uint32_t total = 0;  // candidates of all depths in this bin or below, by cost
    for (int d = 1; d <= rows.depth; ++d) {
        const int shift = shared.spine_bin[d - 1];
        if (shift >= kBins) break;  // deeper spines cost no less
        if (works) {
            const uint16_t* const entries = within + (d - 1) * kBins;
            uint32_t sum = 0;
#pragma unroll
            for (int i = 0; i < kBins; i += kTeams) sum += entries[i + team] * shared.paths[kBins + bin - i - team];
            shared.sums[team][bin] = sum;
        }
        __syncthreads();
        if (team == 0) {
            const uint32_t here = up_to(bin);
            shared.paths[kBins + bin] = here - (bin == 0 ? 0 : up_to(bin - 1));
            // A spine below the bins: all bins see more of its depth.
            if (bin >= shift) total += shift == 0 ? here : up_to(min(bin - shift, kBins - 1));
        }
        __syncthreads();
    }
    if (team == 0 && total >= budget) atomicMin(&shared.bin, bin);
}

// find_bin() by all threads; -1 when there are too few candidates.
template <int kThreads>
__device__ int find_bin_together(const Sizes& sizes, const Rows& rows, const RowsShared& survey, uint16_t* within,
                                 ThresholdShared& shared, const Bins& bins) {
    const int thread = threadIdx.x;
    for (int i = thread; i < rows.depth * kBins; i += kThreads) {
        const int64_t* const row = rows.row(i / kBins + 1);
        within[i] = count_up_to(row, rows.count(i / kBins + 1), row[0] + (i % kBins) * bins.width);
    }
    if (thread < rows.depth) shared.spine_bin[thread] = bins.of_spine(survey.spine[thread + 1]);
    if (thread == 0) shared.bin = kBins;
    __syncthreads();
    find_bin<kThreads>(sizes, rows, within, shared);
    __syncthreads();
    const int bin = shared.bin;
    __syncthreads();  // before the next call says otherwise
    return bin < kBins ? bin : -1;
}

// Bins that end at `threshold` and are as narrow as the excess of candidates up to there allows. With flat rows that is
// far narrower than the costs are high: the whole cost is in the spine.
__device__ inline Bins bins_below(const Rows& rows, const RowsShared& survey, int64_t threshold) {
    const int lane = threadIdx.x % kWarpSize;
    int64_t excess = 0;
    if (lane < rows.depth) excess = max(int64_t{0}, min(threshold - survey.spine[lane + 1], survey.reach[lane + 1]));
    const int64_t width = warp_max(excess) / (kBins - 1) + 1;
    return {threshold - (kBins - 1) * width, width};
}

// A cost that at least `budget` candidates do not exceed; kMaxCost when there are fewer than that in all.
template <int kThreads>
__device__ int64_t find_threshold(const Sizes& sizes, const Rows& rows, const RowsShared& survey, uint16_t* within,
                                  ThresholdShared& shared) {
    constexpr int kMaxZooms = 3;
    int64_t range = first_range<kThreads>(sizes, rows, survey, shared);
    Bins bins = {0, range / (kBins - 1) + 1};
    int bin = find_bin_together<kThreads>(sizes, rows, survey, within, shared, bins);
    while (bin < 0) {
        if (range >= kMaxCost) return kMaxCost;
        range = 2 * range + 1;
        bins.width = range / (kBins - 1) + 1;
        bin = find_bin_together<kThreads>(sizes, rows, survey, within, shared, bins);
    }
    int64_t threshold = bins.top(bin);
    for (int zoom = 0; zoom < kMaxZooms; ++zoom) {
        bins = bins_below(rows, survey, threshold);
        bin = find_bin_together<kThreads>(sizes, rows, survey, within, shared, bins);
        // Rounding can hide candidates at the edge from the finer bins: then the coarser answer stands.
        if (bin >= 0) threshold = bins.top(bin);
        if (bin != 0) break;  // in bin 0 the answer may lie below the bins: look again
    }
    return threshold;
}

}  // namespace kdt::cuda::tree_build

#endif  // KDTREE_CUDA_TREE_BUILD_THRESHOLD_CUH
