// SPDX-License-Identifier: Apache-2.0
//
// The products of verify_mla on wgmma (sm_90a): the same operands in the same places as for mma.sync, and sums in the
// same registers, so that only these functions know which of the two runs.
//
// wgmma multiplies for a warpgroup, asynchronously. Warp w, lane 4 g + t holds of a 64 x N product the rows 16 w + g
// and 16 w + g + 8: d[n][2 h + i] is row g + 8 h, column 8 n + 2 t + i. Operands in shared memory are panels, rows of
// 128 bytes whose 16-byte chunk c stands at c ^ (row % 8), which is the instruction's own 128-byte swizzle; a
// descriptor holds the address, the distance of the next 64 values of N, and that of the next eight rows (PTX ISA,
// "Asynchronous warpgroup level matrix shared memory layout").
#ifndef KDTREE_CUDA_VERIFY_MLA_WGMMA_CUH
#define KDTREE_CUDA_VERIFY_MLA_WGMMA_CUH

#include <cstdint>

#include "cuda/verify_mla/layout.cuh"

namespace kdt::cuda::verify_mla {

#ifdef KDT_WGMMA

constexpr uint32_t kAtomBytes = 1024;  // eight rows of a panel
constexpr uint32_t kDescriptorHigh = 1u << 30 | kAtomBytes >> 4;

// Rows are the operand's M or N, the 64 values of a row its K: 16 of K further is 32 bytes further.
__device__ __forceinline__ uint32_t k_major(uint32_t address) {
    return 1u << 16 | (address & 0x3ffff) >> 4;
}

// Rows are the operand's K, the values of a row its N, in panels `panel_bytes` apart: 16 of K further is two atoms.
__device__ __forceinline__ uint32_t n_major(uint32_t address, uint32_t panel_bytes) {
    return (panel_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// A descriptor's operand `bytes` further on. Shared memory ends below 2^18, so nothing is carried out of the address.
__device__ __forceinline__ uint32_t further(uint32_t descriptor, uint32_t bytes) {
    return descriptor + (bytes >> 4);
}

// Between this thread's copies to shared memory and wgmma's reading of them by any thread behind the next barrier.
__device__ __forceinline__ void publish_copies() {
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

// Waits for all products; the sums are not touched before.
template <int kCount>
__device__ __forceinline__ void end_products(float (&sums)[kCount][4]) {
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n" ::: "memory");
#pragma unroll
    for (int n = 0; n < kCount; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[n][i])::"memory");
}

#define KDT_D1(d, n) "+f"((d)[n][0]), "+f"((d)[n][1]), "+f"((d)[n][2]), "+f"((d)[n][3])
#define KDT_D4(d, n) KDT_D1(d, n), KDT_D1(d, n + 1), KDT_D1(d, n + 2), KDT_D1(d, n + 3)
#define KDT_D8(d) KDT_D4(d, 0), KDT_D4(d, 4)
#define KDT_D16(d) KDT_D8(d), KDT_D4(d, 8), KDT_D4(d, 12)

// clang-format off
// d (64 x 64) = a (64 x 16) b (64 x 16, transposed) + (accumulate ? d : 0).
__device__ __forceinline__ void multiply_64x64(float (&d)[8][4], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 da, db;\nsetp.ne.b32 p, %34, 0;\n"
        "mov.b64 da, {%32, %35};\nmov.b64 db, {%33, %35};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, da, db, p, 1, 1, 0, 0;\n}\n"
        : KDT_D8(d)
        : "r"(a), "r"(b), "r"(static_cast<int>(accumulate)), "n"(kDescriptorHigh));
}

// d (64 x 128) += a (64 x 16, in registers as mma.sync has it) b (16 x 128, N-major).
__device__ __forceinline__ void multiply_64x128(float (&d)[16][4], const uint32_t (&a)[4], uint32_t b) {
    asm volatile(
        "{\n.reg .b64 db;\nmov.b64 db, {%68, %69};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, db, 1, 1, 1, 1;\n}\n"
        : KDT_D16(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kDescriptorHigh));
}

// d (64 x 128) = a (64 x 16) b + (accumulate ? d : 0), b as kNMajor says.
template <int kNMajor>
__device__ __forceinline__ void multiply_64x128(float (&d)[16][4], uint32_t a, uint32_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 da, db;\nsetp.ne.b32 p, %66, 0;\n"
        "mov.b64 da, {%64, %67};\nmov.b64 db, {%65, %67};\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, da, db, p, 1, 1, 0, %68;\n}\n"
        : KDT_D16(d)
        : "r"(a), "r"(b), "r"(static_cast<int>(accumulate)), "n"(kDescriptorHigh), "n"(kNMajor));
}
// clang-format on

#undef KDT_D1
#undef KDT_D4
#undef KDT_D8
#undef KDT_D16

#endif  // KDT_WGMMA

}  // namespace kdt::cuda::verify_mla

#endif  // KDTREE_CUDA_VERIFY_MLA_WGMMA_CUH
