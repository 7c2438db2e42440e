// SPDX-License-Identifier: Apache-2.0
//
// verify_mla on tensor cores, wgmma on sm_90a and mma.sync from sm_80 on: two projections around verify_attn (absorb
// mode), or keys and values of every head made from the latents and plain attention over them (mha mode).
#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/checks.h"
#include "core/verify_mla_absorb.h"
#include "core/verify_mla_cost.h"
#include "core/workspace.h"
#include "cuda/cuda_check.h"
#include "cuda/verify_mla/attend.cuh"
#include "cuda/verify_mla/combine.cuh"
#include "cuda/verify_mla/layout.cuh"
#include "cuda/verify_mla/narrow.cuh"
#include "cuda/verify_mla/project.cuh"
#include "cuda/verify_mla/requests.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda::verify_mla {
namespace {

// FLOP/s of projections, of verify_attn and of attention with heads, all on wgmma and at sizes that fill an H200;
// bytes/s; and what a launch and its first and last blocks cost: few rows of mha wait longer. What counts is their
// proportion, which moves the number of nodes from which mha is taken. On mma.sync the two attentions are about equally
// fast (250e12 and 210e12 there): a chip without wgmma would do well to take mha earlier than these figures say.
constexpr MlaRates kRates = {400e12, 600e12, 270e12, 4.0e12, 3.5e-6, 8.5e-6};

// Keys and values of a chunk of units: small enough to stay in a large L2, or one unit where that takes more.
constexpr int64_t kChunkBytes = 64 << 20;
constexpr int64_t kSlotBytes = (kKey + kValue) * 2;

// Projections are narrow up to this many blocks a multiprocessor.
constexpr int kNarrowBlocks = 4;

int64_t ceil_divide(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

int blocks(int64_t count) {
    if (count > INT32_MAX)
        fail(KDT_UNSUPPORTED, "verify_mla: %lld blocks are more than this backend can launch",
             static_cast<long long>(count));
    return static_cast<int>(count);
}

// ---- absorb mode

void take_absorb(Workspace& workspace, const kdt_verify_mla_params& p, Args& args, kdt_verify_attn_params& attn) {
    const size_t values = static_cast<size_t>(p.batch) * p.max_nodes * p.num_qo_heads * kRank;
    args.absorbed = workspace.take<__nv_bfloat16>(values);
    args.latent_out = workspace.take<__nv_bfloat16>(values);
    require(kdt_verify_attn_workspace_size(&attn, &attn.workspace_size));
    attn.workspace = workspace.take<char>(attn.workspace_size);
}

void launch_absorb(const kdt_verify_mla_params& p, Args args, const Device& device) {
    kdt_verify_attn_params attn = absorbed_attention(p);
    Workspace workspace(p.workspace);
    take_absorb(workspace, p, args, attn);
    attn.q_nope = args.absorbed;
    attn.out = args.latent_out;

    const cudaStream_t stream = static_cast<cudaStream_t>(p.stream);
    const int64_t rows = int64_t{p.batch} * p.max_nodes;
    // Both projections have 8 blocks for a head and 8 rows when they are narrow.
    if (ceil_divide(rows, kNarrowRows) * 8 * p.num_qo_heads <= kNarrowBlocks * int64_t{device.multiprocessors}) {
        const int count = static_cast<int>(rows);
        launch_narrow<kNope, kRank>({args.q_nope, args.w_uk, args.absorbed, count, p.num_qo_heads}, stream);
        require(kdt_verify_attn(&attn));
        launch_narrow<kRank, kValue>({args.latent_out, args.w_uv, args.out, count, p.num_qo_heads}, stream);
        return;
    }
    const int64_t row_tiles = ceil_divide(rows, kTile);
    const int before = blocks(row_tiles * p.num_qo_heads * kAbsorbTiles);
    const int behind = blocks(row_tiles * p.num_qo_heads);
    allow_shared(absorb_queries, kGemmSharedBytes, device);
    allow_shared(project_out, kGemmSharedBytes, device);
    absorb_queries<<<before, kThreads, kGemmSharedBytes, stream>>>(args);
    check_launch("the launch of verify_mla's absorption");
    require(kdt_verify_attn(&attn));
    project_out<<<behind, kThreads, kGemmSharedBytes, stream>>>(args);
    check_launch("the launch of verify_mla's output projection");
}

// ---- mha mode

// The number of splits that should be fastest, in units of a slot tile's time: rounds of blocks over the GPU, each as
// long as its share of the tiles plus what a block costs besides, and the reduction. Only sizes count, so that equal
// calls split equally.
int choose_splits(int64_t slots, int64_t row_tiles, const Device& device) {
    constexpr int64_t kBlockCost = 3;
    constexpr int64_t kSmallestShare = 4;
    const int64_t tiles = ceil_divide(slots, kSlots) + 1;
    const int64_t at_once =
        int64_t{device.multiprocessors} *
        std::max(1, std::min(kMostBlocks, device.shared_per_multiprocessor / (kAttendSharedBytes + 1024)));
    int64_t best_cost = INT64_MAX;
    int best = 1;
    for (int64_t splits = 1; splits <= std::min<int64_t>(kMaxSplits, ceil_divide(tiles, kSmallestShare)); ++splits) {
        const int64_t cost = ceil_divide(row_tiles * splits, at_once) * (ceil_divide(tiles, splits) + kBlockCost) +
                             (splits > 1 ? kBlockCost : 0);
        if (cost < best_cost) {
            best_cost = cost;
            best = static_cast<int>(splits);
        }
    }
    return best;
}

void plan_mha(const kdt_verify_mla_params& p, Args& args, const Device& device) {
    // A prefix has less than 2^31 slots, whatever the table could hold.
    const int64_t most = int64_t{INT32_MAX} + KDT_MAX_TREE_BUDGET + 1;
    args.slots = std::min<int64_t>(int64_t{p.max_pages_per_seq} * p.page_size, most);
    const int64_t all = int64_t{p.batch} * p.num_qo_heads;
    const int64_t in_chunk = std::max<int64_t>(1, kChunkBytes / (args.slots * kSlotBytes));
    const int64_t chunks = ceil_divide(all, in_chunk);
    args.units = chunks == 0 ? 0 : static_cast<int>(ceil_divide(all, chunks));
    args.tiles = static_cast<int>(ceil_divide(p.max_nodes, kRows));
    args.splits = choose_splits(args.slots, int64_t{args.units} * args.tiles, device);
}

void take_mha(Workspace& workspace, Args& args) {
    // A tile that starts inside a unit may end behind it.
    const size_t slots = static_cast<size_t>(args.units) * args.slots + kSlots;
    args.requests = workspace.take<Request>(static_cast<size_t>(args.batch));
    args.keys = workspace.take<__nv_bfloat16>(slots * kKey);
    args.values = workspace.take<__nv_bfloat16>(slots * kValue);
    if (args.splits == 1) return;
    const size_t rows = static_cast<size_t>(args.units) * args.tiles * args.splits * kRows;
    args.partial_out = workspace.take<float>(rows * kValue);
    args.partial_lse = workspace.take<float>(rows);
}

void launch_mha(const kdt_verify_mla_params& p, Args args, const Device& device) {
    plan_mha(p, args, device);
    Workspace workspace(p.workspace);
    take_mha(workspace, args);

    const cudaStream_t stream = static_cast<cudaStream_t>(p.stream);
    allow_shared(make_keys_and_values, kGemmSharedBytes, device);
    allow_shared(attend, kAttendSharedBytes, device);
    examine_requests<<<p.batch, kThreads, 0, stream>>>(args);
    check_launch("the launch of verify_mla's examination");
    const int64_t all = int64_t{p.batch} * p.num_qo_heads;
    const int64_t in_chunk = args.units;
    for (int64_t first = 0; first < all; first += in_chunk) {
        args.first_unit = static_cast<int>(first);
        args.units = static_cast<int>(std::min(in_chunk, all - first));
        const int makers = blocks(ceil_divide(args.slots, kTile) * args.units * 2);
        const int attending = blocks(int64_t{args.units} * args.tiles * args.splits);
        make_keys_and_values<<<makers, kThreads, kGemmSharedBytes, stream>>>(args);
        check_launch("the launch of verify_mla's decompression");
        attend<<<attending, kThreads, kAttendSharedBytes, stream>>>(args);
        check_launch("the launch of verify_mla's attention");
        if (args.splits == 1) continue;
        const int reducers = blocks(ceil_divide(int64_t{args.units} * p.max_nodes, kWarps));
        combine<<<reducers, kThreads, 0, stream>>>(args);
        check_launch("the launch of verify_mla's reduction");
    }
}

// ---- both

Args make_args(const kdt_verify_mla_params& p) {
    Args args = {};
    args.q_nope = static_cast<const __nv_bfloat16*>(p.q_nope);
    args.q_pe = static_cast<const __nv_bfloat16*>(p.q_pe);
    args.w_uk = static_cast<const __nv_bfloat16*>(p.w_uk);
    args.w_uv = static_cast<const __nv_bfloat16*>(p.w_uv);
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
    args.words = mask_words(p.max_nodes);
    args.num_qo_heads = p.num_qo_heads;
    args.num_pages = p.num_pages;
    args.page_size = p.page_size;
    args.max_pages_per_seq = p.max_pages_per_seq;
    args.scale_log2 = p.softmax_scale * 1.44269504f;
    return args;
}

bool absorbs(const kdt_verify_mla_params& p) {
    return mla_costs(p, kRates).mode == KDT_MLA_ABSORB;
}

size_t needed_workspace(const kdt_verify_mla_params& p, Args args, const Device& device) {
    if (p.batch == 0) return 0;
    Workspace measure;
    if (absorbs(p)) {
        kdt_verify_attn_params attn = absorbed_attention(p);
        take_absorb(measure, p, args, attn);
    } else {
        plan_mha(p, args, device);
        take_mha(measure, args);
    }
    return measure.bytes();
}

}  // namespace
}  // namespace kdt::cuda::verify_mla

extern "C" kdt_status kdt_verify_mla_cost(const kdt_verify_mla_params* params, kdt_verify_mla_costs* costs) {
    return kdt::guarded([&] {
        const kdt_verify_mla_params p = kdt::read_params(params);
        kdt::check_verify_mla_sizes(p);
        kdt::store_mla_costs(kdt::mla_costs(p, kdt::cuda::verify_mla::kRates), costs);
    });
}

extern "C" kdt_status kdt_verify_mla_workspace_size(const kdt_verify_mla_params* params, size_t* bytes) {
    namespace mla = kdt::cuda::verify_mla;
    return kdt::guarded([&] {
        const kdt_verify_mla_params p = kdt::read_params(params);
        kdt::check_bytes_out("verify_mla", bytes);
        kdt::check_verify_mla_sizes(p);
        *bytes = mla::needed_workspace(p, mla::make_args(p), kdt::cuda::current_device());
    });
}

extern "C" kdt_status kdt_verify_mla(const kdt_verify_mla_params* params) {
    namespace mla = kdt::cuda::verify_mla;
    return kdt::guarded([&] {
        const kdt_verify_mla_params p = kdt::read_params(params);
        kdt::check_verify_mla(p);
        if (p.batch > 0) {
            // Read and written 16 bytes at a time.
            for (const auto& [name, pointer] : {std::pair<const char*, const void*>{"q_nope", p.q_nope},
                                                {"q_pe", p.q_pe},
                                                {"w_uk", p.w_uk},
                                                {"w_uv", p.w_uv},
                                                {"kv_cache", p.kv_cache},
                                                {"out", p.out}})
                kdt::check_alignment("verify_mla", name, pointer, 16);
        }
        const kdt::cuda::Device device = kdt::cuda::current_device();
        const mla::Args args = mla::make_args(p);
        kdt::check_workspace("verify_mla", p.workspace, p.workspace_size, mla::needed_workspace(p, args, device));
        if (p.batch == 0) return;
        if (mla::absorbs(p))
            mla::launch_absorb(p, args, device);
        else
            mla::launch_mha(p, args, device);
    });
}
