// SPDX-License-Identifier: Apache-2.0
//
// The end of a round. One block keeps the slots' books, a warp a slot; the others gather features.
//
// The books' reader is the host, which looks while rounds run: tokens are visible before their number, that before the
// slot's end, and everything before the number of rounds.
#include "cuda/block.cuh"
#include "cuda/overlap.cuh"
#include "engine/cuda/act.cuh"
#include "engine/cuda/queue.h"

namespace kdt::engine {
namespace {

using cuda::kAllLanes;
using cuda::kWarpSize;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kStopTokens = 8;
constexpr int kHistogram = KDT_MAX_DRAFT_HORIZON + 2;
static_assert(KDT_MAX_DRAFT_HORIZON + 1 <= kWarpSize, "a token a lane");

struct CommitArgs {
    Accepted accepted;
    Slots slots;
    Outputs outputs;
    const char* features;
    char* context;
    int64_t row_bytes;
    int context_rows;
    int batch;
    int blocks_a_row;
};

__device__ __forceinline__ bool is_valid_length(const CommitArgs& args, int length) {
    return length >= 1 && length <= args.accepted.horizon + 1;
}

// What the host sees of a slot, in host memory, which is far. Nothing but the last commit has written it: it can be
// asked for while the round's other kernels still run.
struct Counts {
    int num_tokens, rounds, status;
    int64_t accepted;
    int times;  // lane k: the histogram's entry k + 1
};
static_assert(kHistogram == kWarpSize + 1, "an entry a lane, and nothing has length 0");

__device__ __forceinline__ Counts read_counts(const Outputs& outputs, int b, int lane) {
    return {outputs.num_tokens[b], outputs.rounds[b], outputs.status[b], outputs.accepted[b],
            outputs.histogram[b * kHistogram + 1 + lane]};
}

// One warp. Lane k holds the round's token k.
__device__ void keep_books(const CommitArgs& args, int b, int lane, const Counts& counts) {
    const Slots& slots = args.slots;
    const Outputs& outputs = args.outputs;
    const int active = slots.active[b];
    const int length = args.accepted.acceptance_length[b];
    const int remaining = slots.remaining[b];
    const int prefix = slots.seq_lens[b];
    const int bonus = args.accepted.bonus_tokens[b];
    if (active == 0) {
        if (lane == 0) slots.context_counts[b] = 0;
        return;
    }
    const bool possible = is_valid_length(args, length);
    const int times = __shfl_sync(kAllLanes, counts.times, possible ? length - 1 : 0);
    const int32_t* const path = args.accepted.accepted_path + int64_t{b} * (args.accepted.horizon + 1);
    const int node = possible && lane < length ? path[lane] : 0;
    const bool valid = possible && __all_sync(kAllLanes, node >= 0 && node < args.accepted.max_nodes);
    const int next = __shfl_down_sync(kAllLanes, node, 1);
    const int token =
        valid && lane + 1 < length ? args.accepted.token_ids[int64_t{b} * args.accepted.max_nodes + next] : bonus;
    bool stops = false;
#pragma unroll
    for (int i = 0; i < kStopTokens; ++i) stops = stops || slots.stop_tokens[b * kStopTokens + i] == token;
    const unsigned stopping = __ballot_sync(kAllLanes, valid && lane < length && token >= 0 && stops);
    int emitted = valid ? length : 0;
    bool finished = !valid;
    if (stopping != 0 && __ffs(static_cast<int>(stopping)) <= emitted) {
        emitted = __ffs(static_cast<int>(stopping));
        finished = true;
    }
    if (emitted >= remaining) {
        // A stop token beyond what is still allowed is not reached; the request ends either way.
        emitted = remaining > 0 ? remaining : 0;
        finished = true;
    }
    const int64_t at = int64_t{counts.num_tokens} + lane;
    const int64_t count = int64_t{counts.num_tokens} + emitted;
    if (lane < emitted && at >= 0 && at < outputs.capacity) outputs.tokens[int64_t{b} * outputs.capacity + at] = token;
    __threadfence_system();
    __syncwarp();
    if (lane != 0) return;
    int status = counts.status;
    for (int i = 0; i < args.accepted.num_statuses; ++i) status |= args.accepted.statuses[i][b];
    outputs.status[b] = status;
    if (valid) {
        outputs.rounds[b] = counts.rounds + 1;
        outputs.accepted[b] = counts.accepted + length;
        outputs.histogram[b * kHistogram + length] = times + 1;
        slots.roots[b] = bonus;
        slots.seq_lens[b] = prefix + length;
    }
    slots.context_starts[b] = prefix;
    slots.context_counts[b] = valid ? length : 0;
    slots.remaining[b] = remaining - emitted;
    outputs.num_tokens[b] = count < outputs.capacity ? static_cast<int>(count) : outputs.capacity;
    if (!finished) return;
    slots.active[b] = 0;
    __threadfence_system();
    outputs.finished[b] = 1;
}

__global__ void __launch_bounds__(kThreads) finish_round(const CommitArgs args) {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    Counts counts = {};
    if (blockIdx.x == 0 && warp < args.batch) counts = read_counts(args.outputs, warp, lane);
    cuda::wait_for_earlier_kernels();
    if (blockIdx.x > 0) {
        // Whoever is not active gets rows that nobody reads: `active` is changing in block 0 meanwhile.
        const int item = static_cast<int>(blockIdx.x) - 1;
        const int part = item % args.blocks_a_row;
        const int entry = item / args.blocks_a_row % (args.accepted.horizon + 1);
        const int b = item / args.blocks_a_row / (args.accepted.horizon + 1);
        const int length = args.accepted.acceptance_length[b];
        if (!is_valid_length(args, length) || entry >= length || entry >= args.context_rows) return;
        const int node = args.accepted.accepted_path[b * (args.accepted.horizon + 1) + entry];
        if (node < 0 || node >= args.accepted.max_nodes) return;
        const char* const from = args.features + (int64_t{b} * args.accepted.max_nodes + node) * args.row_bytes;
        char* const to = args.context + (int64_t{b} * args.context_rows + entry) * args.row_bytes;
        const int64_t at = int64_t{part} * kThreads + threadIdx.x;
        const int64_t step = int64_t{args.blocks_a_row} * kThreads;
        if ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % sizeof(uint4) == 0 &&
            args.row_bytes % static_cast<int64_t>(sizeof(uint4)) == 0) {
            for (int64_t i = at; i < args.row_bytes / static_cast<int64_t>(sizeof(uint4)); i += step)
                reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
        } else {
            for (int64_t i = at; i < args.row_bytes / 2; i += step)
                reinterpret_cast<uint16_t*>(to)[i] = reinterpret_cast<const uint16_t*>(from)[i];
        }
        return;
    }
    for (int b = warp; b < args.batch; b += kWarps) {
        if (b != warp) counts = read_counts(args.outputs, b, lane);
        keep_books(args, b, lane, counts);
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x != 0) return;
    const int round = *args.slots.round + 1;
    *args.slots.round = round;
    *args.outputs.rounds_done = round;
}

}  // namespace

void commit(Queue& queue, Dtype dtype, const Accepted& accepted, const Context& context, Slots slots, Outputs outputs,
            int32_t batch) {
    CommitArgs args = {};
    args.accepted = accepted;
    args.slots = slots;
    args.outputs = outputs;
    args.batch = batch;
    args.blocks_a_row = 1;
    int64_t blocks = 1;
    if (context.features != nullptr) {
        args.features = static_cast<const char*>(context.features);
        args.context = static_cast<char*>(context.rows);
        args.row_bytes = context.width * static_cast<int64_t>(size_of(dtype));
        args.context_rows = context.max_rows;
        args.blocks_a_row = ceil_div(args.row_bytes, 2 * kThreads * static_cast<int64_t>(sizeof(uint4)));
        blocks += int64_t{batch} * (accepted.horizon + 1) * args.blocks_a_row;
    }
    cuda::launch_overlapped(finish_round, dim3(static_cast<unsigned>(blocks)), kThreads, queue.impl()->stream, args);
}

}  // namespace kdt::engine
