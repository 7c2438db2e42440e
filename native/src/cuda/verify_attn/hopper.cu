// SPDX-License-Identifier: Apache-2.0
//
// Host side of verify_attn's Hopper kernel: what it can serve, its plan, its tensor maps, its launch.
#include <algorithm>
#include <cstdint>

#include "core/checks.h"
#include "core/workspace.h"
#include "cuda/verify_attn/hopper/attend.cuh"
#include "cuda/verify_attn/hopper/launch.h"
#include "cuda/verify_attn/hopper/plan.h"

namespace kdt::cuda::verify_attn::hopper {
namespace {

int64_t ceil_divide(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// The driver's function, without linking to the driver's library.
using EncodeTensorMap = decltype(&cuTensorMapEncodeTiled);
EncodeTensorMap encode_tensor_map() {
    static const EncodeTensorMap found = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result) !=
                cudaSuccess ||
            result != cudaDriverEntryPointSuccess) {
            cudaGetLastError();
            return EncodeTensorMap{nullptr};
        }
        return reinterpret_cast<EncodeTensorMap>(function);
    }();
    return found;
}

// Rows of `columns` bf16 values, to be read in boxes of box_rows x 64, `box_blocks` neighbouring ones at a time: they
// land one behind the other.
CUtensorMap make_map(const void* base, int64_t rows, int columns, int box_rows, int box_blocks) {
    CUtensorMap map;
    const cuuint64_t sizes[3] = {64, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(columns) / 64};
    const cuuint64_t pitch[2] = {static_cast<cuuint64_t>(columns) * 2, 128};
    const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_blocks)};
    const cuuint32_t steps[3] = {1, 1, 1};
    const CUresult result =
        encode_tensor_map()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(base), sizes, pitch, box,
                            steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        fail(KDT_CUDA_ERROR, "cuTensorMapEncodeTiled failed for %lld rows of %d values (CUresult %d)",
             static_cast<long long>(rows), columns, static_cast<int>(result));
    return map;
}

bool uses_gather(const kdt_verify_attn_params& p) {
    return p.page_size % kSlots != 0 && p.page_size != kSlots / 2 && p.page_size != kSlots / 4;
}

int64_t rows_of(const kdt_verify_attn_params& p) {
    return int64_t{p.max_nodes} * p.num_qo_heads;
}

Plan make_plan(const kdt_verify_attn_params& p, const Device& device) {
    // A prefix has less than 2^31 slots, whatever the table could hold.
    const int64_t slots = std::min<int64_t>(int64_t{p.max_pages_per_seq} * p.page_size, INT32_MAX);
    PlanInput in = {};
    in.batch = p.batch;
    in.row_tiles = ceil_divide(rows_of(p), kRows);
    in.slot_tiles = ceil_divide(slots, kSlots);
    if (p.tail_only != 0) in.slot_tiles = std::min<int64_t>(in.slot_tiles, ceil_divide(p.max_nodes, kSlots) + 1);
    in.multiprocessors = device.multiprocessors;
    return choose_plan(in, kMaxClusterSplits, kMaxGroups);
}

Args make_args(const kdt_verify_attn_params& p, const Plan& plan) {
    Args args = {};
    args.kv_cache = static_cast<const __nv_bfloat16*>(p.kv_cache);
    args.block_table = p.block_table;
    args.seq_lens = p.seq_lens;
    args.tree_mask = p.tree_mask;
    args.num_nodes = p.num_nodes;
    args.out = static_cast<__nv_bfloat16*>(p.out);
    args.lse = p.lse;
    args.status = p.status;
    args.max_nodes = p.max_nodes;
    args.words = mask_words(p.max_nodes);
    args.num_qo_heads = p.num_qo_heads;
    args.num_rows = static_cast<int>(rows_of(p));
    args.num_pages = p.num_pages;
    args.page_size = p.page_size;
    while (int64_t{2} << args.page_shift < p.page_size) ++args.page_shift;
    args.page_reciprocal = static_cast<uint32_t>((uint64_t{1} << (32 + args.page_shift)) / p.page_size + 1);
    args.max_pages_per_seq = p.max_pages_per_seq;
    args.scale_log2 = p.softmax_scale * 1.44269504f;
    args.tail_only = p.tail_only;
    args.tiles = static_cast<int>(ceil_divide(args.num_rows, kRows));
    args.cluster_splits = plan.cluster_splits;
    args.heads_reciprocal = static_cast<uint32_t>(ceil_divide(int64_t{1} << 31, p.num_qo_heads));
    args.groups = plan.groups;
    return args;
}

void take_workspace(Workspace& workspace, int64_t batch, Args& args) {
    if (args.groups == 1) return;
    const size_t units = static_cast<size_t>(batch) * args.tiles;
    const size_t slices = units * args.groups * args.cluster_splits;
    args.partials.out = workspace.take<float>(units * args.groups * kRows * kRank);
    args.partials.lse = workspace.take<float>(slices * kRows);
    args.partials.status = workspace.take<int32_t>(slices);
    args.partials.meetings = workspace.take<Meeting>(units * args.cluster_splits);
}

template <bool kGathered>
void launch_as(const kdt_verify_attn_params& p, const Device& device, const Args& args) {
    Maps maps;
    const int64_t rows = p.batch * rows_of(p);
    maps.q_nope = make_map(p.q_nope, rows, KDT_KV_LORA_RANK, kRows, kBoxes - 1);
    maps.q_pe = make_map(p.q_pe, rows, KDT_QK_ROPE_HEAD_DIM, kRows, 1);
    const int64_t slots = int64_t{p.num_pages} * p.page_size;
    const int box_rows = kGathered ? kSlots : std::min(p.page_size, kSlots);
    maps.latents = make_map(p.kv_cache, slots, kHeadDim, box_rows, 1);
    maps.halves = make_map(p.kv_cache, slots, kHeadDim, kSlots, kHalfBoxes);
    const int blocks = args.cluster_splits;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = blocks;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(int64_t{args.tiles} * blocks), static_cast<unsigned>(args.groups),
                          static_cast<unsigned>(p.batch));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kSharedBytes;
    config.stream = static_cast<cudaStream_t>(p.stream);
    config.attrs = attributes;
    config.numAttrs = blocks > 1 ? 2 : 1;
    allow_shared(attend<kGathered>, kSharedBytes, device);
    check(cudaLaunchKernelEx(&config, attend<kGathered>, args, maps), "the launch of verify_attn's kernel");
}

}  // namespace

const char* why_not(const kdt_verify_attn_params& p, const Device& device) {
    if (device.compute_capability != 90) return "the GPU's compute capability is not 9.0";
    cudaFuncAttributes attributes = {};
    KDT_CUDA_CHECK(cudaFuncGetAttributes(&attributes, attend<false>));
    // Compiled for anything but sm_90a the kernel is empty, and needs next to no registers.
    if (attributes.numRegs < 64) return "the library was not built for sm_90a";
    const int64_t slots = int64_t{p.num_pages} * p.page_size;
    const int64_t rows = p.batch * rows_of(p);
    if (slots >= INT32_MAX || rows >= INT32_MAX - 2 * kRows) return "the copy engine counts rows in 31 bits";
    if (int64_t{p.max_pages_per_seq} * p.page_size > INT32_MAX) return "slots of a request are counted in 31 bits";
    if (p.batch > 65535) return "a grid holds at most 65535 requests";
    if (encode_tensor_map() == nullptr) return "the driver has no cuTensorMapEncodeTiled";
    return nullptr;
}

size_t needed_workspace(const kdt_verify_attn_params& p, const Device& device) {
    Args args = make_args(p, make_plan(p, device));
    Workspace measure;
    take_workspace(measure, p.batch, args);
    return measure.bytes();
}

void launch(const kdt_verify_attn_params& p, const Device& device) {
    const Plan plan = make_plan(p, device);
    Args args = make_args(p, plan);
    Workspace measure;
    take_workspace(measure, p.batch, args);
    check_workspace("verify_attn", p.workspace, p.workspace_size, measure.bytes());
    if (p.batch == 0) return;
    Workspace workspace(p.workspace);
    take_workspace(workspace, p.batch, args);
    if (uses_gather(p))
        launch_as<true>(p, device, args);
    else
        launch_as<false>(p, device, args);
}

}  // namespace kdt::cuda::verify_attn::hopper
