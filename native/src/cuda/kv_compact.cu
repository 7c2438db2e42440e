// SPDX-License-Identifier: Apache-2.0
//
// kv_compact: every thread owns 16 bytes of a row in one layer of one request, reads them of all rows that move, and
// then writes them where they go. Sources and targets overlap, but no two threads share a byte: neither a barrier nor
// an order between threads is needed, and all reads are in flight at once.
#include <cstdint>

#include "core/checks.h"
#include "cuda/block.cuh"
#include "cuda/cuda_check.h"
#include "cuda/overlap.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kChunk = 16;
constexpr int kMaxGridY = 65535;
static_assert(KDT_MAX_DRAFT_HORIZON + 1 <= kWarpSize, "one warp reads a path, an entry a lane");

struct CompactArgs {
    unsigned char* kv_cache;
    const int32_t* block_table;
    const int32_t* seq_lens;
    const int32_t* accepted_path;
    int32_t* status;
    int batch;
    int draft_horizon;
    int num_layers;
    int num_pages;
    int page_size;
    int max_pages_per_seq;
    int row_bytes;
};

// Byte offsets in a layer.
struct Move {
    int64_t from, to;
};

struct Shared {
    Move moves[KDT_MAX_DRAFT_HORIZON];
    int count;
};

// Run by one whole warp: lane k has entry k of the path. A path rises, so once a node is out of its place all later
// ones are: the moves are the last nodes of the path, and keep their order.
__device__ __forceinline__ void plan_moves(const CompactArgs& args, int64_t b, bool reports, Shared& shared) {
    const int lane = static_cast<int>(threadIdx.x);
    const int prefix = args.seq_lens[b];
    const int node = lane <= args.draft_horizon ? args.accepted_path[b * (args.draft_horizon + 1) + lane] : -1;
    const int before = __shfl_up_sync(kAllLanes, node, 1);
    const bool sound = lane == 0 ? node == 0 || node == -1 : node == -1 || (before >= 0 && node > before);
    const unsigned on_path = __ballot_sync(kAllLanes, node >= 0);
    const unsigned moved = __ballot_sync(kAllLanes, node > lane);
    const int last = __shfl_sync(kAllLanes, node, __popc(on_path) - 1);
    int status = 0;
    int count = 0;
    if (!__all_sync(kAllLanes, sound)) {
        status = KDT_REQ_BAD_TREE;
    } else if (moved != 0) {
        const int64_t slots = int64_t{args.max_pages_per_seq} * args.page_size;
        if (prefix < 0 || int64_t{prefix} + last >= slots) {
            status = KDT_REQ_BAD_LENGTH;
        } else {
            const int32_t* const pages = args.block_table + b * args.max_pages_per_seq;
            Move move = {0, 0};
            bool paged = true;
            if (node > lane) {
                // Sums of two non-negative int32: they fit.
                const uint32_t source = static_cast<uint32_t>(prefix) + static_cast<uint32_t>(node);
                const uint32_t target = static_cast<uint32_t>(prefix) + static_cast<uint32_t>(lane);
                const uint32_t size = static_cast<uint32_t>(args.page_size);
                const int source_page = pages[source / size];
                const int target_page = pages[target / size];
                paged = source_page >= 0 && source_page < args.num_pages && target_page >= 0 &&
                        target_page < args.num_pages;
                move = {(int64_t{source_page} * args.page_size + source % size) * args.row_bytes,
                        (int64_t{target_page} * args.page_size + target % size) * args.row_bytes};
            }
            if (!__all_sync(kAllLanes, paged)) {
                status = KDT_REQ_BAD_PAGE;
            } else {
                count = __popc(moved);
                if (node > lane) shared.moves[lane - (__ffs(moved) - 1)] = move;
            }
        }
    }
    if (lane == 0) {
        shared.count = count;
        if (reports && args.status != nullptr) args.status[b] = status;
    }
}

template <int kMoves>
__global__ void __launch_bounds__(kThreads) compact_rows(const CompactArgs args) {
    __shared__ Shared shared;
    const unsigned chunks = static_cast<unsigned>(args.row_bytes / kChunk);
    const unsigned item = blockIdx.x * kThreads + threadIdx.x;
    const unsigned layer = item / chunks;
    const int64_t layer_bytes = int64_t{args.num_pages} * args.page_size * args.row_bytes;
    unsigned char* const column = args.kv_cache + layer * layer_bytes + int64_t{item - layer * chunks} * kChunk;
    wait_for_earlier_kernels();
    for (int64_t b = blockIdx.y; b < args.batch; b += gridDim.y) {
        if (b != blockIdx.y) __syncthreads();  // these moves take the place of the last ones
        if (threadIdx.x < kWarpSize) plan_moves(args, b, blockIdx.x == 0, shared);
        __syncthreads();
        if (layer >= static_cast<unsigned>(args.num_layers)) continue;
        const int count = shared.count;
        uint4 held[kMoves];
#pragma unroll
        for (int m = 0; m < kMoves; ++m)
            if (m < count) held[m] = *reinterpret_cast<const uint4*>(column + shared.moves[m].from);
        let_next_kernel_come();
#pragma unroll
        for (int m = 0; m < kMoves; ++m)
            if (m < count) *reinterpret_cast<uint4*>(column + shared.moves[m].to) = held[m];
    }
}

}  // namespace
}  // namespace kdt::cuda

extern "C" kdt_status kdt_kv_compact_workspace_size(const kdt_kv_compact_params* params, size_t* bytes) {
    return kdt::guarded([&] {
        const kdt_kv_compact_params p = kdt::read_params(params);
        kdt::check_bytes_out("kv_compact", bytes);
        kdt::check_kv_compact_sizes(p);
        kdt::cuda::current_device();
        *bytes = 0;
    });
}

extern "C" kdt_status kdt_kv_compact(const kdt_kv_compact_params* params) {
    return kdt::guarded([&] {
        using namespace kdt::cuda;
        const kdt_kv_compact_params p = kdt::read_params(params);
        kdt::check_kv_compact(p);
        current_device();
        if (p.batch == 0) return;
        const CompactArgs args = {static_cast<unsigned char*>(p.kv_cache),
                                  p.block_table,
                                  p.seq_lens,
                                  p.accepted_path,
                                  p.status,
                                  p.batch,
                                  p.draft_horizon,
                                  p.num_layers,
                                  p.num_pages,
                                  p.page_size,
                                  p.max_pages_per_seq,
                                  p.row_bytes};
        const int64_t items = int64_t{p.num_layers} * (p.row_bytes / kChunk);
        if (items > INT32_MAX)
            kdt::fail(KDT_UNSUPPORTED, "kv_compact: num_layers %d with row_bytes %d is more than one launch moves",
                      p.num_layers, p.row_bytes);
        // One block at least: it writes the status.
        const unsigned blocks = items == 0 ? 1 : static_cast<unsigned>((items + kThreads - 1) / kThreads);
        const dim3 grid(blocks, static_cast<unsigned>(p.batch < kMaxGridY ? p.batch : kMaxGridY));
        const cudaStream_t stream = static_cast<cudaStream_t>(p.stream);
        if (p.draft_horizon <= 7)
            launch_overlapped(compact_rows<7>, grid, kThreads, stream, args);
        else if (p.draft_horizon <= 15)
            launch_overlapped(compact_rows<15>, grid, kThreads, stream, args);
        else
            launch_overlapped(compact_rows<KDT_MAX_DRAFT_HORIZON>, grid, kThreads, stream, args);
    });
}
