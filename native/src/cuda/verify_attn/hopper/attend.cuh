// SPDX-License-Identifier: Apache-2.0
//
// verify_attn's Hopper kernel: one row tile over one split of a request's slots a block.
#ifndef KDTREE_CUDA_VERIFY_ATTN_HOPPER_ATTEND_CUH
#define KDTREE_CUDA_VERIFY_ATTN_HOPPER_ATTEND_CUH

#include <cstdint>

#include "cuda/overlap.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/warpgroup.cuh"
#include "cuda/verify_attn/hopper/consume.cuh"
#include "cuda/verify_attn/hopper/finish.cuh"
#include "cuda/verify_attn/hopper/layout.cuh"
#include "cuda/verify_attn/hopper/produce.cuh"
#include "cuda/verify_attn/hopper/reduce.cuh"
#include "cuda/verify_attn/hopper/tiles.cuh"

namespace kdt::cuda::verify_attn::hopper {

// What needs no memory but the block's own.
template <bool kGathered>
__device__ __forceinline__ void initialise(const Maps& maps, Shared& shared) {
    const int thread = threadIdx.x;
    if (thread < 2 * kStages) {
        ptx::mbarrier_init(ptx::shared_address(&shared.full[0][0] + thread), kGathered ? kWarpgroup / 2 : 1);
        ptx::mbarrier_init(ptx::shared_address(&shared.empty[0][0] + thread), kWarpsPerGroup);
        if (thread == 0) ptx::mbarrier_init(ptx::shared_address(&shared.queries_full), 1);
        ptx::mbarrier_init_fence();
    } else if (thread == 32) {
        ptx::tma_prefetch_map(&maps.q_nope);
        ptx::tma_prefetch_map(&maps.q_pe);
        ptx::tma_prefetch_map(&maps.latents);
        ptx::tma_prefetch_map(&maps.halves);
        shared.refused = 0;
        shared.live_nodes = 0;
    } else if (thread >= 64 && thread < 64 + kMaxWords) {
        shared.seen[thread - 64] = 0;
    }
}

template <bool kGathered>
__device__ __forceinline__ void compute(const Args& args, Shared& shared) {
    const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;
    const int side = thread / kWarpgroup;
    const int warp = thread % kWarpgroup / 32;
    const int lane = thread % 32;
    float out[128];
    RowState state;
    if (side == 0)
        Consumer<kGathered, 0>(args, shared).run(out, state);
    else
        Consumer<kGathered, 1>(args, shared).run(out, state);
    const Work work = shared.work;
    float scale[2];
    finish_rows(args, work, state, side, warp, lane, shared, scale);
    const bool split = args.cluster_splits > 1;
    if (!split) {
        stage_rows(out, scale, side, warp, lane, shared, pack_bf16);
        write_rows(args, work, scale, side, warp, lane, shared);
    } else {
        stage_split(out, scale, side, warp, lane, shared);
        ptx::cluster_arrive();
        ptx::cluster_wait();
        add_splits(args, work, thread, shared);
        // A block's shared memory is there until the whole cluster is done with it.
        ptx::cluster_wait();
    }
}

template <bool kGathered>
__device__ __forceinline__ void attend_tile(const Args& args, const Maps& maps) {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
    initialise<kGathered>(maps, shared);
    __syncthreads();
    wait_for_earlier_kernels();
    const Work work = find_work(args);
    if (threadIdx.x == 0) load_queries(args, maps, work, shared);
    if (threadIdx.x >= kWarpSize) survey(args, work, shared);
    __syncthreads();
    if (shared.request.status != 0) {  // the same for all blocks of the cluster
        write_nothing(args, work, shared.request.status);
        // Nothing may land in shared memory that is no longer the block's.
        if (threadIdx.x == 0) ptx::mbarrier_wait(ptx::shared_address(&shared.queries_full), 0);
        return;
    }
    if (threadIdx.x < kWarpgroup) {
        ptx::give_registers<kGathered ? 72 : 40>();
        // Two warps a half when gathering, else a thread.
        const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
        if constexpr (kGathered) {
            Gatherer(args, maps, shared, warp / 2).run();
        } else {
            const TileWalk walk(args, shared);
            if (warp < 2 && threadIdx.x % kWarpSize == 0) load_latents(args, maps, shared, walk, warp);
        }
        if (warp == 0) let_next_kernel_come();
        if (warp >= 2) {
            const int thread = static_cast<int>(threadIdx.x) - kWarpgroup / 2;
            if (!pages_exist(args, shared, thread, kWarpgroup / 2)) shared.refused = KDT_REQ_BAD_PAGE;
            ptx::named_barrier_arrive<kConsumers + kWarpgroup / 2>(kMainLoopDone);
        }
    } else {
        ptx::take_registers<kGathered ? 216 : 232>();
        compute<kGathered>(args, shared);
    }
}

// Empty on other architectures: wgmma and setmaxnreg exist on sm_90a alone.
template <bool kGathered>
__global__ void __launch_bounds__(kThreads, 1) attend(const Args args, const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    attend_tile<kGathered>(args, maps);
#endif
}

}  // namespace kdt::cuda::verify_attn::hopper

#endif  // KDTREE_CUDA_VERIFY_ATTN_HOPPER_ATTEND_CUH
