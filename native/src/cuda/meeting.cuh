// SPDX-License-Identifier: Apache-2.0
//
// Blocks that each leave a partial result and then share out the adding up, so that no second kernel is needed and no
// multiprocessor reads alone what all have written. Whoever has come waits a while for the others; once all have come,
// those who wait claim shares, and the last to come takes what is left. So the work gets done even where blocks cannot
// run at the same time, and nobody waits for ever.
//
// The words lie in the workspace, whose contents mean nothing when a call begins: a count is valid only together with a
// tag in the same word, and the claims are set to zero by the last to come, before the others can see that it came.
// Who claims the last share clears the count: a replayed graph finds no stale one.
#ifndef KDTREE_CUDA_MEETING_CUH
#define KDTREE_CUDA_MEETING_CUH

#include <cstdint>

#include "cuda/ticket.cuh"

namespace kdt::cuda {

struct Meeting {
    uint64_t arrived;
    uint32_t claimed;
    uint32_t unused;
};

enum class Attendance { early, last, gone };

constexpr long long kMeetingPatience = 20000;  // clocks

// To be called by one thread of each of `count` blocks, after a barrier behind the block's stores. `gone`: whatever is
// to be done, others do it. Otherwise what the others stored is visible to that thread and, after another barrier, to
// its block.
__device__ inline Attendance attend_meeting(Meeting* meeting, int count) {
    __threadfence();
    auto* const word = reinterpret_cast<unsigned long long*>(&meeting->arrived);
    auto* const now = reinterpret_cast<volatile unsigned long long*>(word);
    unsigned long long seen = *now;
    bool last = false;
    for (;;) {
        const uint64_t before = (seen & ~uint64_t{0xffff}) == kTicketTag ? seen & 0xffff : 0;
        last = before + 1 == static_cast<uint64_t>(count);
        if (last) {
            *reinterpret_cast<volatile uint32_t*>(&meeting->claimed) = 0;
            __threadfence();
        }
        const unsigned long long found = atomicCAS(word, seen, kTicketTag | (before + 1));
        if (found == seen) break;
        seen = found;
    }
    if (!last) {
        const long long begin = clock64();
        for (;;) {
            seen = *now;
            if (seen == (kTicketTag | static_cast<uint64_t>(count))) break;
            // Cleared: all is claimed.
            if (seen == 0 || clock64() - begin > kMeetingPatience) return Attendance::gone;
        }
    }
    __threadfence();
    return last ? Attendance::last : Attendance::early;
}

// The next of `shares`; -1 when none is left. By the same thread.
__device__ inline int claim_share(Meeting* meeting, int shares) {
    const uint32_t share = atomicAdd(&meeting->claimed, 1u);
    if (share + 1 == static_cast<uint32_t>(shares))
        atomicExch(reinterpret_cast<unsigned long long*>(&meeting->arrived), 0ull);
    return share < static_cast<uint32_t>(shares) ? static_cast<int>(share) : -1;
}

}  // namespace kdt::cuda

#endif  // KDTREE_CUDA_MEETING_CUH
