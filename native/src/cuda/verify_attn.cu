// SPDX-License-Identifier: Apache-2.0
//
// verify_attn: MLA-absorb attention of a draft tree on mma.sync tensor cores, for sm_80 and later; on Hopper another
// kernel serves most calls (verify_attn/hopper/).
//
// One latent serves all heads as key (576 values) and as value (its first 512), so rows of all heads share each tile of
// latents. The tree costs nothing over the prefix: prefix tiles carry no mask, and tree tiles that no row of a block
// sees are skipped. Long requests are split over several blocks, whose partial results a second kernel adds. How large
// the tiles are, and how many the splits, is a matter of sizes and of the GPU alone.
#include <algorithm>
#include <cstdint>

#include "core/checks.h"
#include "core/workspace.h"
#include "cuda/cuda_check.h"
#include "cuda/verify_attn/attend.cuh"
#include "cuda/verify_attn/combine.cuh"
#include "cuda/verify_attn/hopper/launch.h"
#include "cuda/verify_attn/layout.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda::verify_attn {
namespace {

using WideTile = Tile<64, 64>;    // 227 KB of shared memory a block: sm_90, sm_100
using MediumTile = Tile<64, 32>;  // 163 KB: sm_80
using SmallTile = Tile<16, 32>;   // 99 KB: sm_86, sm_89, sm_120; and few rows anywhere

enum class Shape { wide, medium, small };

int64_t ceil_divide(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// Slot tiles that a row tile has to take, as far as sizes tell.
template <class T>
int64_t expected_tiles(const kdt_verify_attn_params& p) {
    if (p.tail_only != 0) {
        // Those that no row sees are skipped: what a large tree leaves depends on its shape, and on the nodes at hand.
        const int64_t nodes = ceil_divide(T::kRows, p.num_qo_heads);
        return std::min<int64_t>(ceil_divide(p.max_nodes, T::kSlots), 8 + nodes);
    }
    // A prefix has less than 2^31 slots, whatever the table could hold.
    const int64_t slots = std::min<int64_t>(int64_t{p.max_pages_per_seq} * p.page_size, INT32_MAX);
    return ceil_divide(slots, T::kSlots) + 1;
}

struct Plan {
    int splits;
    int64_t cost;  // about what an H200 takes, in tenths of a microsecond
};

// The number of splits that should be fastest: rounds of blocks over the GPU, each as long as its share of the tiles
// plus what a block costs besides, and the second kernel. Only sizes count, so equal calls split equally.
template <class T>
Plan choose_splits(const kdt_verify_attn_params& p, const Device& device) {
    // Far beyond what can be launched all plans are alike, and costs must fit their type.
    const int64_t units =
        std::min<int64_t>(p.batch * ceil_divide(int64_t{p.max_nodes} * p.num_qo_heads, T::kRows), 1 << 22);
    const int64_t tiles = expected_tiles<T>(p);
    const int64_t at_once =
        std::max<int64_t>(1, int64_t{device.multiprocessors} *
                                 std::min<int64_t>(T::kBlocksPerMultiprocessor,
                                                   device.shared_per_multiprocessor / (T::kSharedBytes + 1024)));
    const int64_t smallest_share = kMinSplitSlots / T::kSlots;
    const int64_t most = std::min<int64_t>(kMaxSplits, ceil_divide(tiles, smallest_share));
    Plan best = {1, ceil_divide(units, at_once) * (tiles * T::kTileCost + T::kBlockCost)};
    for (int64_t splits = 2; splits <= most; ++splits) {
        const int64_t share = std::max(smallest_share, ceil_divide(tiles, splits));
        const int64_t cost =
            ceil_divide(units * splits, at_once) * (share * T::kTileCost + T::kBlockCost) + kReductionCost;
        if (cost < best.cost) best = {static_cast<int>(splits), cost};
    }
    return best;
}

// Whether the GPU has room for a tile, and the code it runs was compiled with it: PTX of a smaller architecture,
// compiled by the driver for this GPU, was not.
template <class T>
bool is_compiled(const Device& device) {
    if (device.shared_per_block < T::kSharedBytes) return false;
    cudaFuncAttributes attributes = {};
    KDT_CUDA_CHECK(cudaFuncGetAttributes(&attributes, attend<T>));
    return arch_shared_bytes(attributes.ptxVersion) >= T::kSharedBytes;
}

// Large tiles multiply more for what they load, small ones spread little work over more multiprocessors.
Shape choose_shape(const kdt_verify_attn_params& p, const Device& device) {
    if (int64_t{p.max_nodes} * p.num_qo_heads <= SmallTile::kRows) return Shape::small;
    const int64_t small = choose_splits<SmallTile>(p, device).cost;
    if (is_compiled<WideTile>(device))
        return choose_splits<WideTile>(p, device).cost < small ? Shape::wide : Shape::small;
    if (!is_compiled<MediumTile>(device)) return Shape::small;
    return choose_splits<MediumTile>(p, device).cost < small ? Shape::medium : Shape::small;
}

template <class T>
Args make_args(const kdt_verify_attn_params& p, const Device& device) {
    Args args = {};
    args.q_nope = static_cast<const __nv_bfloat16*>(p.q_nope);
    args.q_pe = static_cast<const __nv_bfloat16*>(p.q_pe);
    args.kv_cache = static_cast<const __nv_bfloat16*>(p.kv_cache);
    args.block_table = p.block_table;
    args.seq_lens = p.seq_lens;
    args.tree_mask = p.tree_mask;
    args.num_nodes = p.num_nodes;
    args.out = static_cast<__nv_bfloat16*>(p.out);
    args.lse = p.lse;
    args.status = p.status;
    args.batch = p.batch;
    args.max_nodes = p.max_nodes;
    args.words = (p.max_nodes + 63) / 64;
    args.num_qo_heads = p.num_qo_heads;
    args.num_rows = p.max_nodes * p.num_qo_heads;
    args.num_pages = p.num_pages;
    args.page_size = p.page_size;
    args.max_pages_per_seq = p.max_pages_per_seq;
    args.scale_log2 = p.softmax_scale * 1.44269504f;
    args.tail_only = p.tail_only != 0;
    args.tiles = static_cast<int>(ceil_divide(args.num_rows, T::kRows));
    args.splits = choose_splits<T>(p, device).splits;
    if (int64_t{p.batch} * args.tiles * args.splits > INT32_MAX || int64_t{p.batch} * args.num_rows > INT32_MAX)
        fail(KDT_UNSUPPORTED, "verify_attn: a batch of %d with %d rows each is more than this backend can launch",
             p.batch, args.num_rows);
    return args;
}

template <class T>
void take_workspace(Workspace& workspace, Args& args) {
    if (args.splits == 1) return;
    const size_t units = static_cast<size_t>(args.batch) * args.tiles * args.splits;
    args.partials.out = workspace.take<float>(units * T::kRows * kRank);
    args.partials.lse = workspace.take<float>(units * T::kRows);
    args.partials.status = workspace.take<int32_t>(units);
}

template <class T>
size_t needed_workspace(Args args) {
    Workspace measure;
    take_workspace<T>(measure, args);
    return measure.bytes();
}

template <class T>
void launch(const kdt_verify_attn_params& p, const Device& device) {
    Args args = make_args<T>(p, device);
    check_workspace("verify_attn", p.workspace, p.workspace_size, needed_workspace<T>(args));
    if (p.batch == 0) return;
    Workspace workspace(p.workspace);
    take_workspace<T>(workspace, args);

    const cudaStream_t stream = static_cast<cudaStream_t>(p.stream);
    allow_shared(attend<T>, T::kSharedBytes, device);
    attend<T><<<args.batch * args.tiles * args.splits, kThreads, T::kSharedBytes, stream>>>(args);
    check_launch("the launch of verify_attn's kernel");
    if (args.splits == 1) return;
    launch_combine<T::kRows>(args, stream);
    check_launch("the launch of verify_attn's reduction");
}

// Calls `use` with the tile shape for these sizes on this GPU.
template <class Use>
void with_tile(const kdt_verify_attn_params& p, const Device& device, Use use) {
    switch (choose_shape(p, device)) {
        case Shape::wide:
            return use(WideTile());
        case Shape::medium:
            return use(MediumTile());
        case Shape::small:
            return use(SmallTile());
    }
}

// Whether the call goes to the Hopper kernel; throws if it must and cannot.
bool takes_hopper(const kdt_verify_attn_params& p, const Device& device) {
    if (p.path == KDT_ATTN_PORTABLE) return false;
    // Few rows on small pages are bound by the gathering of latents, which two small blocks a multiprocessor do faster.
    const bool few_rows = int64_t{p.max_nodes} * p.num_qo_heads <= SmallTile::kRows;
    if (p.path == KDT_ATTN_BEST && few_rows && p.page_size % WideTile::kSlots != 0) return false;
    const char* const why_not = hopper::why_not(p, device);
    if (why_not != nullptr && p.path == KDT_ATTN_HOPPER)
        fail(KDT_UNSUPPORTED, "verify_attn: the Hopper path cannot serve this call: %s", why_not);
    return why_not == nullptr;
}

}  // namespace
}  // namespace kdt::cuda::verify_attn

extern "C" kdt_status kdt_verify_attn_workspace_size(const kdt_verify_attn_params* params, size_t* bytes) {
    namespace attn = kdt::cuda::verify_attn;
    return kdt::guarded([&] {
        const kdt_verify_attn_params p = kdt::read_params(params);
        kdt::check_bytes_out("verify_attn", bytes);
        kdt::check_verify_attn_sizes(p);
        const kdt::cuda::Device device = kdt::cuda::current_device();
        if (attn::takes_hopper(p, device)) {
            *bytes = attn::hopper::needed_workspace(p, device);
            return;
        }
        attn::with_tile(p, device, [&](auto tile) {
            *bytes = attn::needed_workspace<decltype(tile)>(attn::make_args<decltype(tile)>(p, device));
        });
    });
}

extern "C" kdt_status kdt_verify_attn(const kdt_verify_attn_params* params) {
    namespace attn = kdt::cuda::verify_attn;
    return kdt::guarded([&] {
        const kdt_verify_attn_params p = kdt::read_params(params);
        kdt::check_verify_attn(p);
        if (p.batch > 0) {
            // Read and written 16 bytes at a time.
            kdt::check_alignment("verify_attn", "q_nope", p.q_nope, 16);
            kdt::check_alignment("verify_attn", "q_pe", p.q_pe, 16);
            kdt::check_alignment("verify_attn", "kv_cache", p.kv_cache, 16);
            kdt::check_alignment("verify_attn", "out", p.out, 16);
        }
        const kdt::cuda::Device device = kdt::cuda::current_device();
        if (attn::takes_hopper(p, device)) return attn::hopper::launch(p, device);
        attn::with_tile(p, device, [&](auto tile) { attn::launch<decltype(tile)>(p, device); });
    });
}
