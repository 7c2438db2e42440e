// SPDX-License-Identifier: Apache-2.0
//
// One 128 x 128 tile of a matrix product in bf16 with f32 sums: the work of a block of eight warps. Operands come
// through a ring of three stages of 64 columns (cp.async).
#ifndef KDTREE_CUDA_VERIFY_MLA_GEMM_CUH
#define KDTREE_CUDA_VERIFY_MLA_GEMM_CUH

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/verify_mla/layout.cuh"
#include "cuda/verify_mla/wgmma.cuh"

namespace kdt::cuda::verify_mla {

constexpr int kTile = 128;  // rows and columns of the product
constexpr int kDepth = 64;  // of a stage
constexpr int kStages = 3;
constexpr int kOperandBytes = kTile * kDepth * 2;
constexpr int kStageBytes = 2 * kOperandBytes;
constexpr int kGemmSharedBytes = kStages * kStageBytes + kTile * static_cast<int>(sizeof(void*));
static_assert(kGemmSharedBytes <= 99 * 1024, "the least that a block can have from sm_80 on");
static_assert(kTile <= kThreads, "a thread finds one row of a");

// Byte offset of a 16-byte chunk of a row of the product on its way out.
__device__ __forceinline__ int staged_offset(int row, int chunk) {
    return (row * 16 + (chunk ^ (row & 7))) * 16;
}

// b is stored [columns, depth] as a weight's transpose is, or [depth, columns].
enum class BLayout { depth_inside, columns_inside };

// The sums of a tile, and what adds to them a stage of operands.
template <BLayout kLayout>
class TileProduct {
  public:
#ifdef KDT_WGMMA
    // A warpgroup has 64 rows and all columns.
    __device__ __forceinline__ void add(uint32_t a_at, uint32_t b_at, bool accumulate) {
        const uint32_t rows = k_major(a_at + threadIdx.x / 128 * (64 * 128));
        const uint32_t columns = kLayout == BLayout::depth_inside ? k_major(b_at) : n_major(b_at, kDepth * 128);
        constexpr int kNMajor = kLayout == BLayout::depth_inside ? 0 : 1;
        begin_products();
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k)
            multiply_64x128<kNMajor>(sums_, further(rows, k * 32),
                                     further(columns, k * (kNMajor ? 2 * kAtomBytes : 32)), accumulate || k > 0);
        end_products(sums_);
    }

    template <class Use>
    __device__ __forceinline__ void for_each_pair(const Use& use) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < 16; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                use(static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + 8 * h, n * 8 + lane % 4 * 2, sums_[n][2 * h],
                    sums_[n][2 * h + 1]);
    }

  private:
    float sums_[16][4];
#else
    // A warp has 64 rows and 32 columns.
    __device__ __forceinline__ void add(uint32_t a_at, uint32_t b_at, bool) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < kDepth / 16; ++k) {
            uint32_t a[4][4], b[2][4];
#pragma unroll
            for (int m = 0; m < 4; ++m)
                ptx::ldmatrix_x4(a[m],
                                 a_at + panel_offset<kTile>(first_row() + m * 16 + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                if constexpr (kLayout == BLayout::depth_inside)
                    ptx::ldmatrix_x4(
                        b[n], b_at + panel_offset<kTile>(first_column() + n * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                         2 * k + ((lane >> 3) & 1)));
                else
                    ptx::ldmatrix_x4_trans(b[n], b_at + panel_offset<kDepth>(k * 16 + (lane & 15),
                                                                             first_column() / 8 + n * 2 + (lane >> 4)));
            }
#pragma unroll
            for (int m = 0; m < 4; ++m) {
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    ptx::mma_bf16(sums_[m][2 * n], a[m], b[n][0], b[n][1]);
                    ptx::mma_bf16(sums_[m][2 * n + 1], a[m], b[n][2], b[n][3]);
                }
            }
        }
    }

    template <class Use>
    __device__ __forceinline__ void for_each_pair(const Use& use) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    use(first_row() + m * 16 + lane / 4 + 8 * h, first_column() + n * 8 + lane % 4 * 2,
                        sums_[m][n][2 * h], sums_[m][n][2 * h + 1]);
    }

  private:
    static __device__ int first_row() { return static_cast<int>(threadIdx.x) / 32 % 2 * 64; }
    static __device__ int first_column() { return static_cast<int>(threadIdx.x) / 64 * 32; }

    float sums_[4][4][4] = {};
#endif
};

struct B {
    const __nv_bfloat16* base;
    int stride;  // values from one stored row to the next
};

struct C {
    __nv_bfloat16* base;
    int stride;  // values from one row to the next
    int rows;    // that exist
};

// Where a block keeps the rows of a that it multiplies; there until the block ends.
__device__ __forceinline__ const __nv_bfloat16** rows_of_a(unsigned char* shared) {
    return reinterpret_cast<const __nv_bfloat16**>(shared + kStages * kStageBytes);
}

// `a_row` is this thread's row of a (row threadIdx.x of the tile), NULL for one of zeros.
template <BLayout kLayout>
__device__ __forceinline__ void multiply_tile(const __nv_bfloat16* a_row, const B& b, const C& c, int depth,
                                              unsigned char* shared) {
    const __nv_bfloat16** const a_rows = rows_of_a(shared);
    const uint32_t stages_at = ptx::shared_address(shared);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kTile) a_rows[thread] = a_row;
    __syncthreads();

    const auto load = [&](int step) {
        const uint32_t a_at = stages_at + step % kStages * kStageBytes;
        const uint32_t b_at = a_at + kOperandBytes;
        const int chunk = thread % 8;
#pragma unroll
        for (int i = 0; i < kTile * 8 / kThreads; ++i) {
            const int row = thread / 8 + kThreads / 8 * i;
            const __nv_bfloat16* const from = a_rows[row];
            const bool exists = from != nullptr;
            ptx::cp_async_16(a_at + panel_offset<kTile>(row, chunk),
                             (exists ? from : b.base) + step * kDepth + chunk * 8, exists);
        }
#pragma unroll
        for (int i = 0; i < kTile * 8 / kThreads; ++i) {
            if constexpr (kLayout == BLayout::depth_inside) {
                const int row = thread / 8 + kThreads / 8 * i;
                ptx::cp_async_16(b_at + panel_offset<kTile>(row, chunk),
                                 b.base + int64_t{row} * b.stride + step * kDepth + chunk * 8, true);
            } else {
                const int row = thread / 16 + kThreads / 16 * i;
                ptx::cp_async_16(b_at + panel_offset<kDepth>(row, thread % 16),
                                 b.base + int64_t{step * kDepth + row} * b.stride + thread % 16 * 8, true);
            }
        }
    };

    TileProduct<kLayout> product;
    const int steps = depth / kDepth;
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) {
        if (step < steps) load(step);
        ptx::cp_async_commit();
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        ptx::cp_async_wait<kStages - 2>();
#ifdef KDT_WGMMA
        publish_copies();
#endif
        __syncthreads();  // the stage has landed, and nobody reads the one that is loaded next any more
        if (step + kStages - 1 < steps) load(step + kStages - 1);
        ptx::cp_async_commit();
        const uint32_t a_at = stages_at + step % kStages * kStageBytes;
        product.add(a_at, a_at + kOperandBytes, step > 0);
    }

    // By way of shared memory: whole rows leave in order.
    ptx::cp_async_wait<0>();
    __syncthreads();
    product.for_each_pair([&](int row, int column, float x, float y) {
        *reinterpret_cast<__nv_bfloat162*>(shared + staged_offset(row, column / 8) + column % 8 * 2) =
            __floats2bfloat162_rn(x, y);
    });
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < kTile * 16 / kThreads; ++i) {
        const int row = thread / 16 + kThreads / 16 * i;
        if (row < c.rows)
            *reinterpret_cast<uint4*>(c.base + int64_t{row} * c.stride + thread % 16 * 8) =
                *reinterpret_cast<const uint4*>(shared + staged_offset(row, thread % 16));
    }
}

}  // namespace kdt::cuda::verify_mla

#endif  // KDTREE_CUDA_VERIFY_MLA_GEMM_CUH
