// SPDX-License-Identifier: Apache-2.0
//
// The two computing warpgroups. Each owns half of the output's columns over all slots, and the scores of every other
// tile, whose weights it hands to the other through shared memory: while one weighs its scores, the tensor cores work
// for the other. The scheme is FlashMLA's "seesaw" (github.com/deepseek-ai/FlashMLA,
// docs/20250422-new-kernel-deep-dive.md).
//
// Left group:   scores of tile j; weights; values of j; wait for the weights of j + 1; values of j + 1
// Right group:  scores of tile j + 1; wait for the weights of j; values of j; weights of j + 1; values of j + 1
//
// Loops stay small: one of thousands of instructions for each group runs several times slower, waiting for
// instructions.
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_CONSUME_CUH
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_CONSUME_CUH

#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/verify_attn/hopper/layout.cuh"
#include "cuda/verify_attn/hopper/softmax.cuh"
#include "cuda/verify_attn/hopper/tiles.cuh"

namespace kdt::cuda::verify_attn::hopper {

// kSide: 0 left, 1 right; also the stage of the tiles whose scores the group computes.
template <bool kGathered, int kSide>
class Consumer {
  public:
    __device__ Consumer(const Args& args, Shared& shared)
        : args_(args),
          walk_(args, shared),
          shared_(shared),
          thread_(static_cast<int>(threadIdx.x) % kWarpgroup),
          warp_(thread_ / 32),
          lane_(thread_ % 32) {}

    __device__ int row(int h) const { return warp_ * 16 + lane_ / 4 + 8 * h; }

    // All tiles of the block: out and state hold this group's half of the output (layout of wgmma's sums), relative to
    // the final reference.
    __device__ __forceinline__ void run(float (&out)[128], RowState& state) {
#pragma unroll
        for (int i = 0; i < 128; ++i) out[i] = 0.0f;
        ptx::mbarrier_wait(ptx::shared_address(&shared_.queries_full), 0);
        if constexpr (kSide == 0)
            run_left(out, state);
        else
            run_right(out, state);
        ptx::wgmma_wait<0>();
        ptx::pin_registers(out);
    }

  private:
    static constexpr int kOther = 1 - kSide;

    __device__ __forceinline__ void run_left(float (&out)[128], RowState& state) {
        int tile = walk_.first();
        uint32_t parity = 0;
        bool values_first = false;
#pragma unroll 1
        while (tile < walk_.end()) {
            const bool masked = walk_.is_masked(tile);
            const RowMasks masks = masked ? load_masks(tile) : RowMasks{};
            float scores[32];
            wait_for_half(0, parity);
            multiply_keys<0, kHalfBoxes, false>(scores);
            ptx::wgmma_commit();
            if (values_first) {
                ptx::wgmma_wait<1>();  // the values of the tile before
                release(kOther);
            }
            wait_for_half(1, parity);
            multiply_keys<kHalfBoxes, kBoxes, true>(scores);
            ptx::wgmma_commit();
            if (masked) clear_unseen(tile);
            ptx::wgmma_wait<0>();
            ptx::pin_registers(scores);
            ptx::pin_registers(out);
            uint32_t weights[4][4];
            float factor[2];
            if (masked) hide_unseen(scores, tile, masks);
            weigh_scores(scores, args_.scale_log2, state, weights, factor);
            publish(state, weights);
            rescale(out, factor);
            multiply_values(out, weights);
            ptx::wgmma_commit();
            ptx::wgmma_wait<0>();
            ptx::pin_registers(out);
            release(kSide);
            const int other = walk_.next(tile);
            if (other >= walk_.end()) break;
            multiply_values_of_other(out, state);
            ptx::wgmma_commit();
            values_first = true;
            parity ^= 1;
            tile = walk_.next(other);
        }
    }

    __device__ __forceinline__ void run_right(float (&out)[128], RowState& state) {
        int before = walk_.first();
        uint32_t parity = 0;
#pragma unroll 1
        while (before < walk_.end()) {
            const int tile = walk_.next(before);
            if (tile >= walk_.end()) {
                multiply_values_of_other(out, state);
                ptx::wgmma_commit();
                break;
            }
            const bool masked = walk_.is_masked(tile);
            const RowMasks masks = masked ? load_masks(tile) : RowMasks{};
            float scores[32];
            // In the order in which a stage of this group becomes free.
            wait_for_half(1, parity);
            multiply_keys<kHalfBoxes, kBoxes - 1, false>(scores);
            wait_for_half(0, parity);
            multiply_keys<0, kHalfBoxes, true>(scores);
            multiply_keys<kBoxes - 1, kBoxes, true>(scores);
            ptx::wgmma_commit();
            if (masked) clear_unseen(tile);
            multiply_values_of_other(out, state);
            ptx::wgmma_commit();
            ptx::wgmma_wait<1>();  // the scores
            ptx::pin_registers(scores);
            uint32_t weights[4][4];
            float factor[2];
            if (masked) hide_unseen(scores, tile, masks);
            weigh_scores(scores, args_.scale_log2, state, weights, factor);
            publish(state, weights);
            ptx::wgmma_wait<0>();
            ptx::pin_registers(out);
            release(kOther);
            rescale(out, factor);
            multiply_values(out, weights);
            ptx::wgmma_commit();
            ptx::wgmma_wait<0>();
            ptx::pin_registers(out);
            release(kSide);
            parity ^= 1;
            before = walk_.next(tile);
        }
    }

    // The mask words around a tile of slots, for this thread's two rows.
    struct RowMasks {
        uint64_t low[2];
        uint64_t high[2];
    };

    // Sends for what the rows see of a tile that is not all prefix.
    __device__ __forceinline__ RowMasks load_masks(int tile) const {
        RowMasks masks;
        const Window window(shared_, tile);
        const int nodes = shared_.request.nodes;
        const uint64_t before = args_.tail_only == 0 ? ~uint64_t{0} : 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int node = node_of(args_, shared_.work.first_row + row(h));
            const uint64_t* const words =
                args_.tree_mask + (int64_t{shared_.work.b} * args_.max_nodes + node) * args_.words + window.at;
            const bool exists = node < nodes;
            masks.low[h] = window.at < 0 ? before : exists && window.at < args_.words ? words[0] : 0;
            masks.high[h] = exists && window.at + 1 < args_.words ? words[1] : 0;
        }
        return masks;
    }

    // Clears the values of slots that no row of the block sees, which has landed whole: they may hold anything, and a
    // weight of 0 would not do (0 * NaN is NaN). Their scores count for nothing, so products with these keys may be
    // under way.
    __device__ __forceinline__ void clear_unseen(int tile) const {
        if constexpr (kGathered) return;
        const uint64_t seen = seen_slots(args_, shared_, tile);
        if (seen == ~uint64_t{0}) return;
        // Two threads a slot; they start at different chunks, and so in different banks.
        const int slot = thread_ / 2;
        if ((seen >> slot & 1) == 0) {
            unsigned char* const slot_row = shared_.stages[kSide] + slot * kBoxRowBytes;
#pragma unroll 1
            for (int box = 0; box < kBoxes - 1; ++box)
#pragma unroll
                for (int chunk = 0; chunk < 4; ++chunk)
                    *reinterpret_cast<uint4*>(slot_row + box * kBoxBytes +
                                              (((thread_ % 2 * 4 + chunk) ^ (slot & 7)) << 4)) = make_uint4(0, 0, 0, 0);
        }
        ptx::fence_for_async_readers();
        ptx::named_barrier_sync<kWarpgroup>(kLeftGroup + kSide);
    }

    __device__ __forceinline__ void hide_unseen(float (&scores)[32], int tile, const RowMasks& masks) const {
        const Window window(shared_, tile);
        const int nodes = shared_.request.nodes;
        const uint64_t low_bits = window.at < 0 ? ~uint64_t{0} : node_bits(nodes, window.at);
        const uint64_t high_bits = node_bits(nodes, window.at + 1);
        uint64_t visible[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) visible[h] = window.slots(masks.low[h] & low_bits, masks.high[h] & high_bits);
        mask_scores(scores, visible);
    }

    // Of the stage of the group's own tiles.
    __device__ __forceinline__ void wait_for_half(int half, uint32_t parity) const {
        ptx::mbarrier_wait(ptx::shared_address(&shared_.full[kSide][half]), parity);
        // Copied by ordinary instructions of other threads.
        if constexpr (kGathered) ptx::fence_for_async_readers();
    }

    // scores = (kAccumulate ? scores : 0) + queries * keys, over the values of these boxes.
    template <int kBegin, int kEnd, bool kAccumulate>
    __device__ __forceinline__ void multiply_keys(float (&scores)[32]) const {
        const ptx::Descriptor queries =
            ptx::k_major_descriptor(ptx::shared_address(shared_.queries)) + kBegin * kBoxBytes;
        const ptx::Descriptor keys =
            ptx::k_major_descriptor(ptx::shared_address(shared_.stages[kSide])) + kBegin * kBoxBytes;
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < (kEnd - kBegin) * 4; ++i) {
            const uint32_t at = i / 4 * kBoxBytes + i % 4 * 32;
            ptx::wgmma_scores(scores, queries + at, keys + at, kAccumulate || i > 0);
        }
    }

    // out += weights (in registers) * this half of the latents of the group's own tile.
    __device__ __forceinline__ void multiply_values(float (&out)[128], const uint32_t (&weights)[4][4]) const {
        const ptx::Descriptor values =
            ptx::mn_major_descriptor(ptx::shared_address(shared_.stages[kSide]) + kSide * 4 * kBoxBytes, kBoxBytes);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) ptx::wgmma_values(out, weights[k], values + k * 2 * ptx::kAtomBytes);
    }

    // The same for the other group's tile, once it has left its weights in shared memory. No values may be under way.
    __device__ __forceinline__ void multiply_values_of_other(float (&out)[128], RowState& state) const {
        ptx::named_barrier_sync<kConsumers>(kRightWeights - kSide);
        float factor[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) factor[h] = move_reference(state, h, shared_.reference[kOther][row(h)]);
        // The right group's scores may be under way, and ptxas wants no products under way where `out` is changed: it
        // would wait for them in the branch of rescale(), which not all warps take, and waits are for whole groups.
        ptx::wgmma_wait<0>();
        rescale(out, factor);
        const ptx::Descriptor values =
            ptx::mn_major_descriptor(ptx::shared_address(shared_.stages[kOther]) + kSide * 4 * kBoxBytes, kBoxBytes);
        const ptx::Descriptor weights =
            ptx::k_major_descriptor(ptx::shared_address(shared_.stages[kOther]) + (kBoxes - 1) * kBoxBytes);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) ptx::wgmma_values(out, weights + k * 32, values + k * 2 * ptx::kAtomBytes);
    }

    // For the other group: weights and references of this group's tile.
    __device__ __forceinline__ void publish(const RowState& state, const uint32_t (&weights)[4][4]) const {
        // All warps' scores are known, so nobody reads the keys any more that the weights replace.
        ptx::named_barrier_sync<kWarpgroup>(kLeftGroup + kSide);
        store_weights(weights, ptx::shared_address(shared_.stages[kSide]) + (kBoxes - 1) * kBoxBytes, warp_, lane_);
        if (lane_ % 4 == 0) {
            shared_.reference[kSide][row(0)] = state.reference[0];
            shared_.reference[kSide][row(1)] = state.reference[1];
        }
        ptx::fence_for_async_readers();
        ptx::named_barrier_arrive<kConsumers>(kLeftWeights + kSide);
    }

    // This warp has read its half of a stage for the last time.
    __device__ __forceinline__ void release(int stage) const {
        if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.empty[stage][kSide]));
    }

    const Args& args_;
    const TileWalk walk_;
    Shared& shared_;
    const int thread_;
    const int warp_;
    const int lane_;
};

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_CONSUME_CUH
