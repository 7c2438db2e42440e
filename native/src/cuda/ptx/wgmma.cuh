// SPDX-License-Identifier: Apache-2.0
//
// wgmma (sm_90a): products of a warpgroup, bf16 operands and f32 sums, that run while its threads go on.
//
// Sums: warp w, lane l = 4 g + t hold of a 64 x N product the rows 16 w + g and 16 w + g + 8; value 4 n + 2 h + i is
// row g + 8 h, column 8 n + 2 t + i. A operand in registers: value 2 k + h of a 64 x 16 slice is row g + 8 h, columns
// 8 k + 2 t and the next.
//
// Operands in shared memory are named by descriptors: address, two strides and the swizzle. All tiles here are rows of
// 128 bytes (64 values), eight rows a swizzle atom of 1024 bytes, whose 16-byte chunk c of row r is stored at chunk
// c ^ (r % 8): what the copy engine's 128-byte swizzle leaves behind. (PTX ISA, "Asynchronous warpgroup level matrix
// shared memory layout".)
#ifndef KDTREE_CUDA_PTX_WGMMA_CUH
#define KDTREE_CUDA_PTX_WGMMA_CUH

#include <cstdint>

namespace kdt::cuda::ptx {

constexpr uint32_t kAtomBytes = 1024;

// The lower half of a descriptor; the upper one, swizzle and stride of the atoms, is the same for all tiles.
struct Descriptor {
    uint32_t low;

    static constexpr uint32_t kHigh = 1u << 30 | kAtomBytes >> 4;

    // The operand `bytes` further. Addresses stay below 2^18, so nothing is carried out of their field.
    __device__ __forceinline__ Descriptor operator+(uint32_t bytes) const { return {low + (bytes >> 4)}; }
};

// Rows are the operand's M or N, the 64 values of a row its K. A step of 16 along K is 32 bytes further.
__device__ __forceinline__ Descriptor k_major_descriptor(uint32_t address) {
    return {1u << 16 | (address & 0x3ffff) >> 4};
}

// Rows are the operand's K, the 64 values of a row part of its N; the next 64 of N are `next_columns` bytes further,
// and a step of 16 along K 2 atoms.
__device__ __forceinline__ Descriptor mn_major_descriptor(uint32_t address, uint32_t next_columns) {
    return {(next_columns >> 4) << 16 | (address & 0x3ffff) >> 4};
}

// Before the first product, and after its registers were written by anything else.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Until at most kGroups of the latest groups are under way.
template <int kGroups>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kGroups) : "memory");
}

// The compiler may not move accesses of these registers across this point.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

#define KDT_F4(d, i) "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3])
#define KDT_F16(d, i) KDT_F4(d, i), KDT_F4(d, i + 4), KDT_F4(d, i + 8), KDT_F4(d, i + 12)
#define KDT_F32(d, i) KDT_F16(d, i), KDT_F16(d, i + 16)
#define KDT_F128(d) KDT_F32(d, 0), KDT_F32(d, 32), KDT_F32(d, 64), KDT_F32(d, 96)

// clang-format off
// d (64 x 64) = a (64 x 16) * b (64 x 16, transposed) + (accumulate ? d : 0), both K-major.
__device__ __forceinline__ void wgmma_scores(float (&d)[32], Descriptor a, Descriptor b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 da, db;\nsetp.ne.b32 p, %34, 0;\n"
        "mov.b64 da, {%32, %35};\nmov.b64 db, {%33, %35};\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, da, db, p, 1, 1, 0, 0;\n}\n"
        : KDT_F32(d, 0)
        : "r"(a.low), "r"(b.low), "r"(static_cast<int>(accumulate)), "n"(Descriptor::kHigh));
}

// d (64 x 256) += a (64 x 16, in registers) * b (16 x 256, MN-major).
__device__ __forceinline__ void wgmma_values(float (&d)[128], const uint32_t (&a)[4], Descriptor b) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 db;\nsetp.ne.b32 p, %133, 0;\nmov.b64 db, {%132, %134};\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, {%128, %129, %130, %131}, db, p, 1, 1, 1;\n}\n"
        : KDT_F128(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(1), "n"(Descriptor::kHigh));
}

// The same with a in shared memory, K-major.
__device__ __forceinline__ void wgmma_values(float (&d)[128], Descriptor a, Descriptor b) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 da, db;\nsetp.ne.b32 p, %130, 0;\n"
        "mov.b64 da, {%128, %131};\nmov.b64 db, {%129, %131};\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, da, db, p, 1, 1, 0, 1;\n}\n"
        : KDT_F128(d)
        : "r"(a.low), "r"(b.low), "r"(1), "n"(Descriptor::kHigh));
}
// clang-format on

#undef KDT_F4
#undef KDT_F16
#undef KDT_F32
#undef KDT_F128

}  // namespace kdt::cuda::ptx

#endif  // KDTREE_CUDA_PTX_WGMMA_CUH
