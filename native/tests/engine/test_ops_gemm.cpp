// SPDX-License-Identifier: Apache-2.0
#include "ops_case.h"

using namespace ops;

namespace {

struct Shape {
    int32_t rows, in, out, extra;  // x rows are in + extra apart
};

void check_gemm(Random& random, Dtype dtype, Dtype y_dtype, Shape shape) {
    const int32_t stride = shape.in + shape.extra;
    const auto x = random_values(random, dtype, static_cast<size_t>(shape.rows) * stride);
    const auto w = random_values(random, dtype, static_cast<size_t>(shape.out) * shape.in);
    const Buffer dx = up(dtype, x), dw = up(dtype, w);
    const Buffer y = space(y_dtype, static_cast<size_t>(shape.rows) * shape.out);
    gemm(queue(), dtype, dx.data(), stride, dw.data(), y.data(), y_dtype, shape.rows, shape.in, shape.out);
    std::vector<double> wanted;
    for (int32_t r = 0; r < shape.rows; ++r)
        for (int32_t o = 0; o < shape.out; ++o) {
            double sum = 0.0;
            for (int32_t i = 0; i < shape.in; ++i)
                sum += static_cast<double>(x[static_cast<size_t>(r) * stride + i]) *
                       w[static_cast<size_t>(o) * shape.in + i];
            wanted.push_back(sum);
        }
    // f32 sums of values below 1: TF32 or bf16 sums are far outside.
    check_near("gemm", y_dtype, down(y_dtype, y), wanted, 2e-7 * shape.in);
}

}  // namespace

TEST(ops_gemm) {
    Random random(11);
    for (const Dtype dtype : kDtypes)
        for (const Dtype y_dtype : {dtype, KDT_F32})
            for (const Shape shape : {Shape{1, 256, 640, 0}, Shape{3, 64, 768, 576}, Shape{65, 256, 64, 0},
                                      Shape{130, 512, 100, 0}, Shape{9, 8, 3, 8}, Shape{17, 40, 17, 0},
                                      Shape{33, 1000, 24, 0}, Shape{1, 1, 1, 0}, Shape{5, 77, 9, 3}})
                check_gemm(random, dtype, y_dtype, shape);
}

// More than the small kernels take: a GEMM library's turn where there is one.
TEST(ops_gemm_large) {
    Random random(12);
    for (const Dtype dtype : kDtypes)
        for (const int32_t rows : {1, 20, 70}) check_gemm(random, dtype, dtype, {rows, 2048, 1040, 0});
}

// What makes tree decoding equal plain decoding, as far as products go.
TEST(ops_gemm_rows_do_not_depend_on_each_other) {
    Random random(13);
    for (const Dtype dtype : kDtypes) {
        const int32_t rows = 65, in = 256, out = 96;
        const auto x = random_values(random, dtype, static_cast<size_t>(rows) * in);
        const auto w = random_values(random, dtype, static_cast<size_t>(out) * in);
        const Buffer dx = up(dtype, x), dw = up(dtype, w);
        const Buffer all = space(KDT_F32, static_cast<size_t>(rows) * out);
        gemm(queue(), dtype, dx.data(), in, dw.data(), all.data(), KDT_F32, rows, in, out);
        const std::vector<float> wanted = all.values<float>();
        for (const int32_t row : {0, 1, 40, 64}) {
            const Buffer one = space(KDT_F32, static_cast<size_t>(out));
            const char* const from = dx.as<char>() + static_cast<size_t>(row) * in * size_of(dtype);
            gemm(queue(), dtype, from, in, dw.data(), one.data(), KDT_F32, 1, in, out);
            CHECK_EQ(one.values<float>(),
                     std::vector<float>(wanted.begin() + row * out, wanted.begin() + (row + 1) * out));
        }
    }
}
