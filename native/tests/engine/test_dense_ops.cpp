// SPDX-License-Identifier: Apache-2.0
//
// gemm, norms, SwiGLU, embeddings and fills against plain loops in f64.
#include <array>
#include <cstring>

#include "engine/arrays.h"

using namespace arrays;
using namespace kdt::engine;

namespace {

double rms(const float* x, int count, double eps) {
    double sum = 0.0;
    for (int i = 0; i < count; ++i) sum += double{x[i]} * x[i];
    return std::sqrt(sum / count + eps);
}

}  // namespace

TEST(gemm_is_the_sum_of_products) {
    for (const Dtype dtype : dtypes())
        for (const auto& [rows, in, out] : {std::array{1, 64, 40}, std::array{5, 33, 129}, std::array{65, 256, 640},
                                            std::array{17, 512, 256}, std::array{3, 7, 1}})
            for (const Dtype y_dtype : {KDT_F32, dtype}) {
                const int stride = in + 8;
                const std::vector<float> x = random_values(1, static_cast<size_t>(rows) * stride, dtype);
                const std::vector<float> w = random_values(2, static_cast<size_t>(out) * in, dtype);
                const Memory dx = act_to_device(x, dtype), dw = act_to_device(w, dtype);
                const Memory dy = act_memory(static_cast<size_t>(rows) * out, y_dtype);
                gemm(queue(), dtype, dx.data(), stride, dw.data(), dy.data(), y_dtype, rows, in, out);
                std::vector<double> wanted;
                for (int r = 0; r < rows; ++r)
                    for (int o = 0; o < out; ++o) {
                        double sum = 0.0;
                        for (int k = 0; k < in; ++k)
                            sum += double{x[static_cast<size_t>(r) * stride + k]} * w[static_cast<size_t>(o) * in + k];
                        wanted.push_back(sum);
                    }
                check_close(act_from_device(dy, y_dtype), wanted, y_dtype, 2e-6, "y");
            }
}

TEST(a_row_of_gemm_has_the_same_bits_alone_and_among_others) {
    if (mla_mode() != KDT_MLA_ABSORB) throw check::Skipped("only the CPU promises bits");
    for (const Dtype dtype : dtypes())
        for (const auto& [in, out] : {std::array{256, 640}, std::array{33, 129}, std::array{97, 31}}) {
            const int rows = 66;
            const std::vector<float> x = random_values(1, static_cast<size_t>(rows) * in, dtype);
            const Memory dx = act_to_device(x, dtype);
            const Memory dw = act_to_device(random_values(2, static_cast<size_t>(out) * in, dtype), dtype);
            const Memory all = act_memory(static_cast<size_t>(rows) * out, KDT_F32);
            const Memory one = act_memory(static_cast<size_t>(out), KDT_F32);
            gemm(queue(), dtype, dx.data(), in, dw.data(), all.data(), KDT_F32, rows, in, out);
            const std::vector<float> together = from_device<float>(all);
            for (int r = 0; r < rows; ++r) {
                gemm(queue(), dtype, dx.as<char>() + static_cast<size_t>(r) * in * size_of(dtype), in, dw.data(),
                     one.data(), KDT_F32, 1, in, out);
                const std::vector<float> alone = from_device<float>(one);
                CHECK(std::memcmp(alone.data(), together.data() + static_cast<size_t>(r) * out, alone.size() * 4) == 0);
            }
        }
}

TEST(norms_divide_by_the_root_mean_square) {
    for (const Dtype dtype : dtypes())
        for (const int hidden : {7, 64, 256, 1000}) {
            const int rows = 5, stride = hidden + 3, feature_stride = 2 * hidden;
            const auto n = static_cast<size_t>(rows) * hidden;
            const std::vector<float> x = random_values(1, static_cast<size_t>(rows) * stride, dtype, 3.0f);
            const std::vector<float> w = random_values(2, static_cast<size_t>(hidden), dtype);
            const Memory dx = act_to_device(x, dtype), dw = act_to_device(w, dtype), out = act_memory(n, dtype);
            rmsnorm(queue(), dtype, dx.data(), stride, dw.data(), 1e-5f, out.data(), rows, hidden);
            std::vector<double> wanted;
            for (int r = 0; r < rows; ++r)
                for (int i = 0; i < hidden; ++i)
                    wanted.push_back(x[static_cast<size_t>(r) * stride + i] /
                                     rms(&x[static_cast<size_t>(r) * stride], hidden, 1e-5) * w[i]);
            check_close(act_from_device(out, dtype), wanted, dtype, 1e-6, "rmsnorm");

            std::vector<float> residual = random_values(3, n, dtype);
            const std::vector<float> delta = random_values(4, n, dtype);
            const Memory dr = act_to_device(residual, dtype), dd = act_to_device(delta, dtype);
            const Memory feature = act_memory(static_cast<size_t>(rows) * feature_stride, dtype);
            add_rmsnorm(queue(), dtype, dr.data(), dd.data(), feature.as<char>() + hidden * size_of(dtype),
                        feature_stride, dw.data(), 1e-5f, out.data(), rows, hidden);
            for (size_t i = 0; i < n; ++i) residual[i] += delta[i];
            residual = rounded(residual, dtype);
            CHECK_EQ(act_from_device(dr, dtype), residual);
            const std::vector<float> features = act_from_device(feature, dtype);
            wanted.clear();
            for (int r = 0; r < rows; ++r)
                for (int i = 0; i < hidden; ++i) {
                    const float value = residual[static_cast<size_t>(r) * hidden + i];
                    wanted.push_back(value / rms(&residual[static_cast<size_t>(r) * hidden], hidden, 1e-5) * w[i]);
                    CHECK_EQ(features[static_cast<size_t>(r) * feature_stride + hidden + i], value);
                    CHECK_EQ(features[static_cast<size_t>(r) * feature_stride + i], 0.0f);
                }
            check_close(act_from_device(out, dtype), wanted, dtype, 1e-6, "add_rmsnorm");
            // Without a delta the residual stays, without an out nothing is normed.
            add_rmsnorm(queue(), dtype, dr.data(), nullptr, nullptr, 0, dw.data(), 1e-5f, out.data(), rows, hidden);
            CHECK_EQ(act_from_device(dr, dtype), residual);
            check_close(act_from_device(out, dtype), wanted, dtype, 1e-6, "add_rmsnorm without delta");
            add_rmsnorm(queue(), dtype, dr.data(), dd.data(), nullptr, 0, nullptr, 1e-5f, nullptr, rows, hidden);
            for (size_t i = 0; i < n; ++i) residual[i] += delta[i];
            CHECK_EQ(act_from_device(dr, dtype), rounded(residual, dtype));
        }
}

TEST(block_norm_packs_the_rows_that_predict) {
    const int batch = 3, block = 4, hidden = 64;
    for (const Dtype dtype : dtypes()) {
        const auto n = static_cast<size_t>(batch) * block * hidden;
        const std::vector<float> residual = random_values(1, n, dtype), delta = random_values(2, n, dtype);
        const std::vector<float> w = random_values(3, hidden, dtype);
        const Memory dr = act_to_device(residual, dtype), dd = act_to_device(delta, dtype),
                     dw = act_to_device(w, dtype);
        const Memory out = act_memory(static_cast<size_t>(batch) * (block - 1) * hidden, dtype);
        block_norm(queue(), dtype, dr.data(), dd.data(), dw.data(), 1e-6f, out.data(), batch, block, hidden);
        std::vector<float> sum = residual;
        for (size_t i = 0; i < n; ++i) sum[i] += delta[i];
        sum = rounded(sum, dtype);
        std::vector<double> wanted;
        for (int b = 0; b < batch; ++b)
            for (int i = 1; i < block; ++i) {
                const float* const row = &sum[(static_cast<size_t>(b) * block + i) * hidden];
                for (int k = 0; k < hidden; ++k)
                    wanted.push_back(row[k] / rms(row, hidden, 1e-6) * w[static_cast<size_t>(k)]);
            }
        check_close(act_from_device(out, dtype), wanted, dtype, 1e-6, "block_norm");
        CHECK_EQ(act_from_device(dr, dtype), residual);
    }
}

TEST(silu_mul_gates) {
    for (const Dtype dtype : dtypes()) {
        const int rows = 3, half = 100;
        std::vector<float> x = random_values(1, static_cast<size_t>(rows) * 2 * half, dtype, 4.0f);
        x[0] = 90.0f;
        x[1] = -90.0f;
        x = rounded(x, dtype);
        const Memory dx = act_to_device(x, dtype), out = act_memory(static_cast<size_t>(rows) * half, dtype);
        silu_mul(queue(), dtype, dx.data(), out.data(), rows, half);
        std::vector<double> wanted;
        for (int r = 0; r < rows; ++r)
            for (int i = 0; i < half; ++i) {
                const double gate = x[static_cast<size_t>(r) * 2 * half + i],
                             up = x[static_cast<size_t>(r) * 2 * half + half + i];
                wanted.push_back(gate / (1.0 + std::exp(-gate)) * up);
            }
        check_close(act_from_device(out, dtype), wanted, dtype, 1e-6, "silu_mul");
    }
}

TEST(embeddings_are_rows_of_the_table) {
    const int vocab = 11, hidden = 24;
    for (const Dtype dtype : dtypes()) {
        const std::vector<float> table = random_values(1, vocab * hidden, dtype);
        const std::vector<int32_t> ids = {3, 0, 10, -1, 11, 3};
        const std::vector<int32_t> rows = {3, 0, 10, 0, 0, 3};
        const Memory dt = act_to_device(table, dtype), di = to_device(ids), out = act_memory(6 * hidden, dtype);
        embed(queue(), dtype, di.as<int32_t>(), dt.data(), vocab, hidden, out.data(), 6);
        const std::vector<float> embedded = act_from_device(out, dtype);
        for (size_t r = 0; r < 6; ++r)
            for (size_t i = 0; i < hidden; ++i) CHECK_EQ(embedded[r * hidden + i], table[rows[r] * hidden + i]);

        embed_block(queue(), dtype, di.as<int32_t>(), 7, dt.data(), vocab, hidden, out.data(), 2, 3);
        const std::vector<float> blocks = act_from_device(out, dtype);
        const std::vector<int32_t> in_blocks = {3, 7, 7, 0, 7, 7};
        for (size_t r = 0; r < 6; ++r)
            for (size_t i = 0; i < hidden; ++i) CHECK_EQ(blocks[r * hidden + i], table[in_blocks[r] * hidden + i]);
    }
}

TEST(fills_and_conversions) {
    const std::vector<float> values = random_values(9, 5000);
    const Memory wide = to_device(values), narrow = act_memory(5000, KDT_BF16), back = act_memory(5000, KDT_F32);
    convert(queue(), wide.data(), KDT_F32, narrow.data(), KDT_BF16, 5000);
    CHECK_EQ(act_from_device(narrow, KDT_BF16), rounded(values, KDT_BF16));
    convert(queue(), narrow.data(), KDT_BF16, back.data(), KDT_F32, 5000);
    CHECK_EQ(from_device<float>(back), rounded(values, KDT_BF16));

    fill_normal(queue(), back.data(), KDT_F32, 5000, 0.5f, 9);
    std::vector<double> wanted;
    for (const float value : values) wanted.push_back(0.5 * value);
    check_close(from_device<float>(back), wanted, KDT_F32, 1e-6, "fill_normal");
    double sum = 0.0, squares = 0.0;
    for (const double value : wanted) {
        sum += value;
        squares += value * value;
    }
    CHECK(std::fabs(sum / 5000) < 0.03 && std::fabs(squares / 5000 - 0.25) < 0.02);
    fill_constant(queue(), back.data(), KDT_F32, 4999, 1.5f);
    const std::vector<float> constant = from_device<float>(back);
    CHECK_EQ(constant[4998], 1.5f);
    CHECK(constant[4999] != 1.5f);
}
