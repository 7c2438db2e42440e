// SPDX-License-Identifier: Apache-2.0
//
// draft_topk in one launch and one trip over the logits. While rows are few, several blocks share a row:
//   1. scan_segment.cuh  a block reads its segment: sums of exponentials, a queue of the groups that may hold the best
//   2. hand_over.cuh     candidates go to one block of the row: over a cluster, or through the workspace
//   3. merge_row.cuh     that block finds logsumexp and the topk best in order
// A threshold is found by ranking a few samples, each the best of many logits: the topk-th largest sample bounds the
// topk-th largest logit from below, and few logits reach it.
#include <algorithm>
#include <cstdint>

#include "core/checks.h"
#include "core/workspace.h"
#include "cuda/cuda_check.h"
#include "cuda/draft_topk/cluster.cuh"
#include "cuda/draft_topk/group.cuh"
#include "cuda/draft_topk/hand_over.cuh"
#include "cuda/draft_topk/layout.cuh"
#include "cuda/draft_topk/merge_row.cuh"
#include "cuda/draft_topk/queue.cuh"
#include "cuda/draft_topk/scan_segment.cuh"
#include "cuda/overlap.cuh"
#include "kdtree/kdtree.h"

namespace kdt::cuda::draft_topk {
namespace {

template <class T, Meet kMeet, int kDepth, bool kWhole>
__global__ void __launch_bounds__(kThreads, kMeet == Meet::workspace ? 1 : 2)
    topk_rows(const T* logits, const Plan plan, float* topk_log_probs, int32_t* topk_token_ids, int32_t* statuses) {
    if (kMeet == Meet::cluster && !kClusters) return;
    extern __shared__ __align__(16) unsigned char dynamic_shared[];
    __shared__ Shared shared;
    if (threadIdx.x == 0) {
        shared.queued = 0;
        shared.listed = 0;
        shared.finalists = 0;
        if (kMeet == Meet::cluster) {
            init_signal(&shared.samples_here, 1);
            init_signal(&shared.parts_here, 1);
            init_signal(&shared.lists_here, plan.blocks() - 1);
            publish_signals();
            if ((blockIdx.x & (plan.blocks() - 1)) == 0)
                expect_in(&shared.parts_here, 0, plan.blocks() * kWarps * static_cast<int>(sizeof(WarpPart)));
        }
    }
    if (kMeet == Meet::cluster) arrive_at_start();
    const Arena arena(dynamic_shared, plan);
    const Queue queue = {arena.queue_words, arena.queue_group, &shared.queued, plan.queue_capacity(), plan.keep};
    const int row = static_cast<int>(blockIdx.x) >> plan.blocks_log2;
    const int rank = static_cast<int>(blockIdx.x) & (plan.blocks() - 1);
    const Segment<T> segment(logits + int64_t{row} * plan.vocab_size, plan, rank);
    TopkBlock block(shared.block);

    const Mail mine = {shared.parts, shared.counts, arena.lists};
    const Mail posted = kMeet == Meet::workspace ? mail_of_row(plan.mail, plan, row) : mine;
    if (kMeet == Meet::cluster) wait_for_earlier_kernels();
    const uint32_t limit_key =
        scan_segment<T, kMeet, kDepth, kWhole>(block, shared, queue, segment, plan, posted, rank);
    if (kMeet == Meet::cluster) let_next_kernel_come();
    if (!hand_over<T, kMeet>(block, shared, queue, segment, plan, limit_key, posted, mine, row, rank)) return;
    const int64_t answers = int64_t{row} * plan.topk;
    merge_row<T, kMeet>(block, shared, plan, mine, arena.finalists, topk_log_probs + answers, topk_token_ids + answers,
                        statuses + row);
}

constexpr int kPortableCluster = 8;       // blocks of a cluster that every GPU with clusters takes
constexpr int kMinSegment = 4096;         // logits
constexpr int kRoomyShared = 128 * 1024;  // bytes a block may have, from which on two blocks of it fit

// Whether blocks of a row can be a cluster: the GPU has them, and the code it runs was compiled for one that has.
template <class T>
bool has_clusters() {
    int index = 0;
    int major = 0;
    KDT_CUDA_CHECK(cudaGetDevice(&index));
    KDT_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
    if (major < 9) return false;
    cudaFuncAttributes attributes = {};
    KDT_CUDA_CHECK(cudaFuncGetAttributes(&attributes, topk_rows<T, Meet::cluster, kDepth, false>));
    return attributes.ptxVersion >= 90;
}

int bits_below(int64_t end) {
    int bits = 1;
    while (int64_t{1} << bits < end) ++bits;
    return bits;
}

Plan make_plan(const kdt_draft_topk_params& p, const Device& device, int most_blocks = kMaxBlocks) {
    const int64_t logits_of_group = p.logits_dtype == KDT_F32 ? 4 : 8;
    const bool aligned =
        p.vocab_size % logits_of_group == 0 && reinterpret_cast<uintptr_t>(p.logits) % kGroupBytes == 0;
    const int64_t groups = (p.vocab_size + (aligned ? 0 : 2 * logits_of_group - 2)) / logits_of_group;
    const bool roomy = device.shared_per_block >= kRoomyShared;
    const int room = roomy && p.topk > 256 ? 8192 : 4096;  // candidates in the lists of a row
    Plan plan = {};
    plan.rows = p.rows;
    plan.vocab_size = p.vocab_size;
    plan.topk = p.topk;
    plan.keep = roomy ? kMaxKeep : std::max(768, p.topk);
    // A block a multiprocessor (two, when a row would else have one block), but each with a fair piece of work, and
    // room for twice the candidates it needs.
    const auto fits = [&](int64_t blocks) {
        return blocks * p.rows <= int64_t{device.multiprocessors} * (blocks == 2 && p.topk <= 256 ? 2 : 1) &&
               p.vocab_size / blocks >= kMinSegment && room / blocks >= 2 * int64_t{p.topk};
    };
    while (plan.blocks() < most_blocks && fits(2 * plan.blocks())) ++plan.blocks_log2;
    plan.segment = static_cast<int>((groups + plan.blocks() - 1) / plan.blocks());
    const bool deeper = roomy && p.topk <= kFewTopk && plan.blocks() > 1 && plan.segment > kThreads * kDepth;
    plan.depth = deeper && plan.segment <= kThreads * kWholeDepth ? kWholeDepth : kDepth;
    if (plan.depth == kWholeDepth) plan.keep = 1024;  // so that two blocks fit a multiprocessor
    plan.slots = room / plan.blocks();
    plan.group_bits = bits_below(groups);
    plan.token_bits = bits_below(p.vocab_size);
    if (int64_t{plan.rows} * plan.blocks() > INT32_MAX)
        fail(KDT_UNSUPPORTED, "draft_topk: %d rows are more than this backend can launch", p.rows);
    return plan;
}

void take_workspace(Workspace& workspace, Plan& plan) {
    const size_t blocks = static_cast<size_t>(plan.rows) * static_cast<size_t>(plan.blocks());
    plan.mail.parts = workspace.take<WarpPart>(blocks * kWarps);
    plan.mail.counts = workspace.take<int32_t>(blocks);
    plan.mail.lists = workspace.take<uint64_t>(blocks * static_cast<size_t>(plan.slots));
    plan.tickets = workspace.take<uint64_t>(static_cast<size_t>(plan.rows));
}

bool needs_workspace(const kdt_draft_topk_params& p, const Plan& plan) {
    return plan.blocks() > 1 && !(p.logits_dtype == KDT_F32 ? has_clusters<float>() : has_clusters<uint16_t>());
}

size_t needed_workspace(const kdt_draft_topk_params& p, Plan plan) {
    Workspace measure;
    if (needs_workspace(p, plan)) take_workspace(measure, plan);
    return measure.bytes();
}

// How a kernel is launched: `cluster`, room for two attributes, must live as long.
template <class T, class Kernel>
cudaLaunchConfig_t make_config(Kernel* kernel, const Plan& plan, const Device& device, cudaStream_t stream,
                               cudaLaunchAttribute* cluster) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(plan.rows) << plan.blocks_log2);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = Arena(nullptr, plan).bytes;
    config.stream = stream;
    allow_shared(kernel, config.dynamicSmemBytes, device);
    if (cluster == nullptr) return config;
    cluster->id = cudaLaunchAttributeClusterDimension;
    cluster->val.clusterDim = {static_cast<unsigned>(plan.blocks()), 1, 1};
    config.attrs = cluster;
    config.numAttrs = 1;
    // Not so where clusters of 8 fill most of the GPU: those that come early share multiprocessors that they need for
    // themselves (15 rows took 7.7 or 8.7 us), nor for f32, whose blocks read longer.
    if (plan.blocks() == 2 || (plan.blocks() == kMaxBlocks && sizeof(T) == 2)) {
        cluster[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;  // overlap.cuh
        cluster[1].val.programmaticStreamSerializationAllowed = 1;
        config.numAttrs = 2;
    }
    if (plan.blocks() > kPortableCluster)
        KDT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    return config;
}

// False when the GPU, or the part of one that is there, has no room for so large a cluster.
template <class T, Meet kMeet, int kDepth, bool kWhole>
bool launch_as(const kdt_draft_topk_params& p, const Plan& plan, const Device& device) {
    const auto kernel = topk_rows<T, kMeet, kDepth, kWhole>;
    const auto stream = static_cast<cudaStream_t>(p.stream);
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchAttribute* const cluster = kMeet == Meet::cluster ? attributes : nullptr;
    const cudaLaunchConfig_t config = make_config<T>(kernel, plan, device, stream, cluster);
    if (kMeet == Meet::cluster && plan.blocks() > kPortableCluster) {
        int fit = 0;
        if (cudaOccupancyMaxActiveClusters(&fit, kernel, &config) != cudaSuccess || fit < 1) {
            cudaGetLastError();
            return false;
        }
    }
    check(cudaLaunchKernelEx(&config, kernel, static_cast<const T*>(p.logits), plan, p.topk_log_probs, p.topk_token_ids,
                             p.status),
          "the launch of draft_topk's kernel");
    return true;
}

template <class T>
bool launch_cluster(const kdt_draft_topk_params& p, const Plan& plan, const Device& device) {
    if (plan.segment > kThreads * plan.depth) return launch_as<T, Meet::cluster, kDepth, false>(p, plan, device);
    if (plan.depth == kDepth) return launch_as<T, Meet::cluster, kDepth, true>(p, plan, device);
    return launch_as<T, Meet::cluster, kWholeDepth, true>(p, plan, device);
}

template <class T>
void launch(const kdt_draft_topk_params& p, const Plan& plan, const Device& device) {
    if (plan.blocks() == 1)
        launch_as<T, Meet::alone, kDepth, false>(p, plan, device);
    else if (!has_clusters<T>())
        launch_as<T, Meet::workspace, kDepth, false>(p, plan, device);
    else if (!launch_cluster<T>(p, plan, device))
        launch_cluster<T>(p, make_plan(p, device, kPortableCluster), device);
}

}  // namespace
}  // namespace kdt::cuda::draft_topk

extern "C" kdt_status kdt_draft_topk_workspace_size(const kdt_draft_topk_params* params, size_t* bytes) {
    namespace topk = kdt::cuda::draft_topk;
    return kdt::guarded([&] {
        const kdt_draft_topk_params p = kdt::read_params(params);
        kdt::check_bytes_out("draft_topk", bytes);
        kdt::check_draft_topk_sizes(p);
        *bytes = topk::needed_workspace(p, topk::make_plan(p, kdt::cuda::current_device()));
    });
}

extern "C" kdt_status kdt_draft_topk(const kdt_draft_topk_params* params) {
    namespace topk = kdt::cuda::draft_topk;
    return kdt::guarded([&] {
        const kdt_draft_topk_params p = kdt::read_params(params);
        kdt::check_draft_topk(p);
        const kdt::cuda::Device device = kdt::cuda::current_device();
        topk::Plan plan = topk::make_plan(p, device);
        kdt::check_workspace("draft_topk", p.workspace, p.workspace_size, topk::needed_workspace(p, plan));
        if (p.rows == 0) return;
        if (topk::needs_workspace(p, plan)) {
            kdt::Workspace workspace(p.workspace);
            topk::take_workspace(workspace, plan);
        }
        if (p.logits_dtype == KDT_F32)
            topk::launch<float>(p, plan, device);
        else
            topk::launch<uint16_t>(p, plan, device);
    });
}
