// SPDX-License-Identifier: Apache-2.0
//
// Who arrives last: blocks that share a piece of work each leave a partial result and take a ticket; the last one adds
// the partials up, so that no second kernel is needed.
//
// Tickets live in the workspace, whose contents mean nothing when a call begins. So a count is valid only together with
// a tag in the same word; any other word counts as zero. The last arriver clears the word: a replayed graph finds no
// stale count. Memory that by chance holds the 48-bit tag would be miscounted: one word in 2^48.
#ifndef KDTREE_CUDA_TICKET_CUH
#define KDTREE_CUDA_TICKET_CUH

#include <cstdint>

namespace kdt::cuda {

constexpr uint64_t kTicketTag = 0x6b64'7469'636bull << 16;  // "kdtick"
constexpr int kMaxTickets = 0xffff;

// To be called by one thread of each of `count` blocks, after a barrier behind the block's stores. True for the last:
// what the other blocks stored is visible to that thread and, after another barrier, to its block.
__device__ inline bool is_last_arriver(uint64_t* ticket, int count) {
    __threadfence();
    auto* const word = reinterpret_cast<unsigned long long*>(ticket);
    unsigned long long seen = *reinterpret_cast<volatile unsigned long long*>(word);
    bool last = false;
    for (;;) {
        const uint64_t before = (seen & ~uint64_t{0xffff}) == kTicketTag ? seen & 0xffff : 0;
        last = before + 1 == static_cast<uint64_t>(count);
        const unsigned long long next = last ? 0 : kTicketTag | (before + 1);
        const unsigned long long found = atomicCAS(word, seen, next);
        if (found == seen) break;
        seen = found;
    }
    __threadfence();
    return last;
}

}  // namespace kdt::cuda

#endif  // KDTREE_CUDA_TICKET_CUH
