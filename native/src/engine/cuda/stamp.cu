// SPDX-License-Identifier: Apache-2.0
//
// Time stamps of the device inside a recorded round.
#include "cuda/cuda_check.h"
#include "engine/cuda/queue.h"
#include "engine/stamps.h"

namespace kdt::engine {
namespace {

__global__ void read_clock(Stamps* stamps, int index, bool ends) {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    take_stamp(*stamps, static_cast<int64_t>(now), index, ends);
}

}  // namespace

// An ordinary launch, which overlaps nothing: it stands behind the end of the kernel before it.
void stamp(Queue& queue, Stamps* stamps, int32_t index, bool ends) {
    read_clock<<<1, 1, 0, queue.impl()->stream>>>(stamps, index, ends);
    KDT_CUDA_CHECK(cudaGetLastError());
}

}  // namespace kdt::engine
