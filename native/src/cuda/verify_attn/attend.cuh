// SPDX-License-Identifier: Apache-2.0
//
// First kernel of verify_attn: one row tile over one split of a request's slots.
#ifndef KDTREE_CUDA_VERIFY_ATTN_ATTEND_CUH
#define KDTREE_CUDA_VERIFY_ATTN_ATTEND_CUH

#include <cstdint>

#include "cuda/block.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/verify_attn/layout.cuh"
#include "cuda/verify_attn/load.cuh"
#include "cuda/verify_attn/score.cuh"

namespace kdt::cuda::verify_attn {

constexpr float kLn2 = 0.69314718f;

// Where a block's answer goes: to the outputs, or with several splits to its partial.
template <class T>
struct Answer {
    const Args& args;
    int b;
    int first_row;
    int unit;
    bool writes_status;  // one block of each request does

    __device__ bool split() const { return args.splits > 1; }
    __device__ int64_t row(int r) const { return int64_t{b} * args.num_rows + first_row + r; }
    __device__ bool exists(int r) const { return first_row + r < args.num_rows; }

    __device__ void write_status(int status) const {
        if (threadIdx.x != 0) return;
        if (split())
            args.partials.status[unit] = status;
        else if (writes_status && args.status != nullptr)
            args.status[b] = status;
    }

    // Rows that see nothing: pads, all rows of a refused request, and splits without slots.
    __device__ void write_nothing(int status) const {
        write_status(status);
        if (threadIdx.x < T::kRows) write_lse(threadIdx.x, -INFINITY);
        if (split()) return;
        const int rows = max(0, min(T::kRows, args.num_rows - first_row));
        uint4* const out = reinterpret_cast<uint4*>(args.out + row(0) * kRank);
        for (int i = threadIdx.x; i < rows * kRank / 8; i += kThreads) out[i] = make_uint4(0, 0, 0, 0);
    }

    // Copies the tile's rows from shared memory, where their 16-byte chunks are permuted (staged_offset): from bf16 to
    // the output, from f32 to the partial. Both are contiguous there.
    __device__ void write_rows(const unsigned char* staged) const {
        const int chunks_a_row = split() ? kRank / 4 : kRank / 8;
        const int rows = split() ? T::kRows : min(T::kRows, args.num_rows - first_row);
        uint4* const to = split() ? reinterpret_cast<uint4*>(args.partials.out + int64_t{unit} * T::kRows * kRank)
                                  : reinterpret_cast<uint4*>(args.out + row(0) * kRank);
#pragma unroll 4
        for (int i = threadIdx.x; i < rows * chunks_a_row; i += kThreads) {
            const int r = i / chunks_a_row;
            to[i] = *reinterpret_cast<const uint4*>(staged + staged_offset(r, i - r * chunks_a_row, chunks_a_row));
        }
    }

    static __device__ int staged_offset(int r, int chunk, int chunks_a_row) {
        return (r * chunks_a_row + (chunk ^ (r & 7))) * 16;
    }

    __device__ void write_lse(int r, float lse_log2) const {
        if (split())
            args.partials.lse[int64_t{unit} * T::kRows + r] = lse_log2;
        else if (exists(r))
            args.lse[row(r)] = lse_log2 * kLn2;
    }
};

// Fills small.seen and small.live_nodes from the mask rows of the tile's nodes.
template <class T>
__device__ __forceinline__ void survey_masks(const Args& args, int b, const Request& request, int first_row,
                                             typename T::Small& small) {
    if (threadIdx.x < kMaxWords) small.seen[threadIdx.x] = 0;
    if (threadIdx.x == 0) small.live_nodes = 0;
    __syncthreads();
    const int first_node = first_row / args.num_qo_heads;
    const int last_row = min(first_row + T::kRows, args.num_rows) - 1;
    const int nodes = min(last_row / args.num_qo_heads + 1, request.nodes) - first_node;
    const int64_t masks_at = (int64_t{b} * args.max_nodes + first_node) * args.words;
#pragma unroll 1
    for (int i = threadIdx.x; i < nodes * args.words; i += kThreads) {
        const int node = i / args.words;
        const int word = i - node * args.words;
        const uint64_t bits = args.tree_mask[masks_at + i] & node_bits(request.nodes, word);
        if (bits == 0) continue;
        atomicOr(reinterpret_cast<unsigned long long*>(&small.seen[word]), bits);
        atomicOr(reinterpret_cast<unsigned long long*>(&small.live_nodes), uint64_t{1} << node);
    }
    __syncthreads();
}

template <class T>
__device__ __forceinline__ void attend_tile(const Args& args) {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    unsigned char* const weights = dynamic_shared + T::kQueryBytes + T::kStages * T::kStageBytes;
    typename T::Small& small = *reinterpret_cast<typename T::Small*>(weights + T::kWeightBytes);
    const uint32_t queries_at = ptx::shared_address(dynamic_shared);
    const uint32_t stages_at = queries_at + T::kQueryBytes;
    const uint32_t weights_at = ptx::shared_address(weights);

    const int lane = threadIdx.x % kWarpSize;
    const int warp = threadIdx.x / kWarpSize;
    const int warp_m = warp % T::kWarpsM;
    const int warp_n = warp / T::kWarpsM;
    const bool scores_here = warp_n < T::kWarpsN;

    // Row tiles of one split run side by side and read the same latents, so those come from L2 mostly.
    const int unit_tile = blockIdx.x % args.tiles;
    const int split = blockIdx.x / args.tiles % args.splits;
    const int b = blockIdx.x / args.tiles / args.splits;
    const int first_row = unit_tile * T::kRows;
    const Answer<T> answer = {args, b, first_row, (b * args.tiles + unit_tile) * args.splits + split, unit_tile == 0};

    const Request request = examine(args, b);
    const SlotTiles<T> tiles(args, request, split);  // none for a refused request
    const LatentLoader<T> loader(args, b, request, tiles, small.seen);
    int refused = request.status;
    bool attends = tiles.begin < tiles.end;
    uint64_t live_nodes = 0;
    int tile = 0, next = 0;
    int64_t next_at = -1;
    if (attends) {
        survey_masks<T>(args, b, request, first_row, small);
        live_nodes = small.live_nodes;
        tile = loader.next_seen(tiles.begin);
        if (live_nodes != 0) {
            load_queries<T>(args, b, first_row, queries_at);
            loader.start(loader.locate(tile), stages_at);
        }
        ptx::cp_async_commit();
        next = loader.next_seen(tile + 1);
        next_at = loader.locate(next);
        // While the first tile is on its way: a page that does not exist refuses the request, seen or not.
        if (__syncthreads_or(!loader.pages_exist())) refused = KDT_REQ_BAD_PAGE;
        attends = refused == 0 && live_nodes != 0;
    }
    if (!attends) {
        ptx::cp_async_wait<0>();
        return answer.write_nothing(refused);
    }

    // The mask rows of this thread's two rows; NULL for a row behind the last node.
    const uint64_t* masks[2] = {nullptr, nullptr};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int node = (first_row + warp_m * 16 + (lane >> 2) + 8 * h) / args.num_qo_heads;
        if (node < request.nodes) masks[h] = args.tree_mask + (int64_t{b} * args.max_nodes + node) * args.words;
    }

    float out[T::kRows / 16][8][4] = {};
    RowState state;
    for (int stage = 0; tile < tiles.end; stage ^= 1) {
        ptx::cp_async_wait<0>();
        __syncthreads();  // the tile has landed, and nobody reads the other stage any more
        const uint32_t latents_at = stages_at + stage * T::kStageBytes;
        if (next < tiles.end) loader.start(next_at, stages_at + (stage ^ 1) * T::kStageBytes);
        ptx::cp_async_commit();
        const int after = loader.next_seen(next + 1);
        next_at = loader.locate(after);

        float scores[T::kScoreTiles][4] = {};
        if (scores_here) {
            multiply_scores<T>(queries_at, latents_at, warp_m, warp_n, lane, scores);
            uint64_t visible[2] = {0, 0};
            float maximum[2];
            const int64_t prefix_left = request.prefix - int64_t{tile} * T::kSlots;
            if (!tiles.in_tree(tile) && prefix_left >= T::kSlots) {
                scale_scores<T, false>(scores, visible, args.scale_log2, warp_n, lane, maximum);
            } else {
                if (tiles.in_tree(tile)) {
                    const int node = tiles.first_node(tile);
                    const uint64_t bits = node_bits(request.nodes, node / 64);
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        if (masks[h] != nullptr) visible[h] = mask_bits<T>(masks[h][node / 64] & bits, node);
                } else {  // the last tile of the prefix
                    visible[0] = visible[1] = (uint64_t{1} << prefix_left) - 1;
                }
                scale_scores<T, true>(scores, visible, args.scale_log2, warp_n, lane, maximum);
            }
            if (lane % 4 == 0) {
                small.maximum[warp_n][warp_m * 16 + lane / 4] = maximum[0];
                small.maximum[warp_n][warp_m * 16 + lane / 4 + 8] = maximum[1];
            }
        }
        __syncthreads();
        if (scores_here) {
            float maximum[2] = {-INFINITY, -INFINITY};
            const int row = warp_m * 16 + lane / 4;
#pragma unroll
            for (int n = 0; n < T::kWarpsN; ++n) {
                maximum[0] = fmaxf(maximum[0], small.maximum[n][row]);
                maximum[1] = fmaxf(maximum[1], small.maximum[n][row + 8]);
            }
            float rescale[2];
            weigh_scores<T>(scores, maximum, state, weights, warp_m, warp_n, lane, rescale);
            if (warp_n == 0 && lane % 4 == 0) {
                small.rescale[row] = rescale[0];
                small.rescale[row + 8] = rescale[1];
            }
        }
        __syncthreads();

        float factors[T::kRows / 16][2];
        bool changed = false;
#pragma unroll
        for (int m = 0; m < T::kRows / 16; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                factors[m][h] = small.rescale[m * 16 + lane / 4 + 8 * h];
                changed |= factors[m][h] != 1.0f;
            }
        }
        if (__any_sync(kAllLanes, changed)) {
#pragma unroll
            for (int m = 0; m < T::kRows / 16; ++m)
#pragma unroll
                for (int n = 0; n < 8; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) out[m][n][i] *= factors[m][i / 2];
        }
        multiply_values<T>(weights_at, latents_at, warp, lane, out);
        tile = next;
        next = after;
    }

    // Nothing is on its way any more (the last group is empty); the wait says so to whoever watches shared memory,
    // which is written again below.
    ptx::cp_async_wait<0>();
    // Sums over a warp's columns, then over the warps that share a row.
    __syncthreads();
    if (scores_here) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = state.sum[h];
            sum += __shfl_xor_sync(kAllLanes, sum, 1);
            sum += __shfl_xor_sync(kAllLanes, sum, 2);
            const int row = warp_m * 16 + lane / 4 + 8 * h;
            if (lane % 4 == 0) {
                small.maximum[warp_n][row] = sum;
                if (warp_n == 0) small.row_max[row] = state.maximum[h];
            }
        }
    }
    __syncthreads();
    answer.write_status(0);
    if (threadIdx.x < T::kRows) {
        const int r = threadIdx.x;
        const int node = (first_row + r) / args.num_qo_heads - first_row / args.num_qo_heads;
        float sum = 0.0f;  // of a pad as well: its own is that of the prefix, or NaN
        if ((live_nodes >> node & 1) != 0) {
#pragma unroll
            for (int n = 0; n < T::kWarpsN; ++n) sum += small.maximum[n][r];
        }
        answer.write_lse(r, sum == 0.0f ? -INFINITY : small.row_max[r] + log2f(sum));
        small.rescale[r] = sum == 0.0f ? 0.0f : 1.0f / sum;
    }
    __syncthreads();
    // By way of shared memory (queries and latents are done with): whole rows leave in order, and the code stays short.
    static_assert(T::kRows * kRank * 4 <= T::kQueryBytes + T::kStages * T::kStageBytes, "f32 rows fit");
    const bool split_here = answer.split();
#pragma unroll
    for (int m = 0; m < T::kRows / 16; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = m * 16 + lane / 4 + 8 * h;
            const float factor = small.rescale[r];
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                // A pad's sums may be NaN (its query may hold anything), which a factor of 0 would not clear.
                const float x = factor == 0.0f ? 0.0f : out[m][n][2 * h] * factor;
                const float y = factor == 0.0f ? 0.0f : out[m][n][2 * h + 1] * factor;
                if (split_here) {
                    const int chunk = warp * 16 + n * 2 + (lane & 3) / 2;
                    *reinterpret_cast<float2*>(dynamic_shared + Answer<T>::staged_offset(r, chunk, kRank / 4) +
                                               (lane & 1) * 8) = make_float2(x, y);
                } else {
                    const int chunk = warp * 8 + n;
                    *reinterpret_cast<__nv_bfloat162*>(dynamic_shared + Answer<T>::staged_offset(r, chunk, kRank / 8) +
                                                       (lane & 3) * 4) = __floats2bfloat162_rn(x, y);
                }
            }
        }
    }
    __syncthreads();
    answer.write_rows(dynamic_shared);
}

// Compiled for an architecture whose blocks cannot have a tile's shared memory, the kernel is empty: it would only cost
// compile time. is_compiled() in verify_attn.cu keeps the host from choosing it.
template <class T>
__global__ void __launch_bounds__(kThreads, T::kBlocksPerMultiprocessor) attend(const Args args) {
#ifdef __CUDA_ARCH__
    if constexpr (T::kSharedBytes <= arch_shared_bytes(__CUDA_ARCH__ / 10)) attend_tile<T>(args);
#endif
}

}  // namespace kdt::cuda::verify_attn

#endif  // KDTREE_CUDA_VERIFY_ATTN_ATTEND_CUH
