// SPDX-License-Identifier: Apache-2.0
//
// verify_mla's absorb mode: project the queries, call verify_attn, project what it gives.
#include "core/verify_mla_absorb.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/workspace.h"
#include "cpu/parallel.h"
#include "cpu/verify_mla_modes.h"
#include "kdtree/kdtree.h"

namespace kdt {
namespace {

// Scratch of one head in absorb mode.
struct AbsorbLane {
    float weights[kMlaNope * kRank];  // queries to absorbed queries [128, 512], then latents to values [512, 128]
    float from[kMlaTile][kRank];
    float to[kMlaTile][kRank];
};

// to[row, head] = from[row, head] x the head's weights [depth, width], for the batch's nodes.
void project(const kdt_verify_mla_params& p, int64_t head, const uint16_t* from, int32_t depth, const float* weights,
             int32_t width, uint16_t* to, AbsorbLane& lane) {
    const int64_t nodes = int64_t{p.batch} * p.max_nodes;
    for (int64_t first = 0; first < nodes; first += kMlaTile) {
        const int32_t count = static_cast<int32_t>(std::min<int64_t>(kMlaTile, nodes - first));
        for (int32_t r = 0; r < count; ++r)
            widen(from + ((first + r) * p.num_qo_heads + head) * depth, depth, lane.from[r]);
        project_rows(lane.from[0], kRank, count, depth, weights, width, lane.to[0], kRank);
        for (int32_t r = 0; r < count; ++r)
            store_bf16(lane.to[r], width, 1.0f, to + ((first + r) * p.num_qo_heads + head) * width);
    }
}

struct AbsorbBuffers {
    uint16_t* absorbed;    // [B, N, H, 512]
    uint16_t* latent_out;  // [B, N, H, 512]
    AbsorbLane* lanes;
    int64_t num_lanes;
};

AbsorbBuffers take_absorb(Workspace& workspace, const kdt_verify_mla_params& p, kdt_verify_attn_params& attn) {
    const size_t values = static_cast<size_t>(p.batch) * p.max_nodes * p.num_qo_heads * kRank;
    AbsorbBuffers buffers = {};
    buffers.absorbed = workspace.take<uint16_t>(values);
    buffers.latent_out = workspace.take<uint16_t>(values);
    buffers.num_lanes = std::min<int64_t>(kMaxMlaLanes, p.num_qo_heads);
    buffers.lanes = workspace.take<AbsorbLane>(static_cast<size_t>(buffers.num_lanes));
    require(kdt_verify_attn_workspace_size(&attn, &attn.workspace_size));
    attn.workspace = workspace.take<char>(attn.workspace_size);
    return buffers;
}

}  // namespace

size_t absorb_workspace(const kdt_verify_mla_params& p) {
    Workspace measure;
    kdt_verify_attn_params attn = absorbed_attention(p);
    take_absorb(measure, p, attn);
    return measure.bytes();
}

void run_absorb(const kdt_verify_mla_params& p) {
    kdt_verify_attn_params attn = absorbed_attention(p);
    Workspace workspace(p.workspace);
    const AbsorbBuffers buffers = take_absorb(workspace, p, attn);
    const double work_ns = 0.05 * kRank * kMlaNope * p.batch * p.max_nodes * p.num_qo_heads;
    const int threads = std::min<int>(static_cast<int>(buffers.num_lanes), plan_threads(p.num_qo_heads, work_ns));
    parallel_for(p.num_qo_heads, threads, [&](int64_t head, int at) {
        AbsorbLane& lane = buffers.lanes[at];
        widen(bf16_words(p.w_uk) + head * kMlaNope * kRank, kMlaNope * kRank, lane.weights);
        project(p, head, bf16_words(p.q_nope), kMlaNope, lane.weights, kRank, buffers.absorbed, lane);
    });
    attn.q_nope = buffers.absorbed;
    attn.out = buffers.latent_out;
    require(kdt_verify_attn(&attn));
    parallel_for(p.num_qo_heads, threads, [&](int64_t head, int at) {
        AbsorbLane& lane = buffers.lanes[at];
        widen(bf16_words(p.w_uv) + head * kRank * kMlaValue, kRank * kMlaValue, lane.weights);
        project(p, head, buffers.latent_out, kRank, lane.weights, kMlaValue, static_cast<uint16_t*>(p.out), lane);
    });
}

}  // namespace kdt
