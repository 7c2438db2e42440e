// SPDX-License-Identifier: Apache-2.0
//
// What a time stamp does to the sums of the round: the same on both backends.
#ifndef KDT_ENGINE_STAMPS_H
#define KDT_ENGINE_STAMPS_H

#include "engine/ops.h"

#if defined(__CUDACC__)
#define KDT_ENGINE_BOTH __host__ __device__
#else
#define KDT_ENGINE_BOTH
#endif

namespace kdt::engine {

KDT_ENGINE_BOTH inline void take_stamp(Stamps& stamps, int64_t now, int32_t index, bool ends) {
    if (index == 0) {
        if (stamps.end != 0) {
            stamps.idle += now - stamps.end;
            ++stamps.gaps;
        }
        stamps.begin = now;
    } else {
        stamps.spans[index] += now - stamps.last;
    }
    stamps.last = now;
    if (!ends) return;
    stamps.busy += now - stamps.begin;
    stamps.end = now;
    ++stamps.rounds;
}

}  // namespace kdt::engine

#undef KDT_ENGINE_BOTH

#endif  // KDT_ENGINE_STAMPS_H
