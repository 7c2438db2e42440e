// SPDX-License-Identifier: Apache-2.0
//
// Operators on rows: embedding, residual and norm, gate, weights made up and converted.
#include <algorithm>

#include "engine/keyed_random.h"
#include "ops_case.h"

using namespace ops;

namespace {

struct Shape {
    int32_t rows, hidden;
};
constexpr Shape kShapes[] = {{1, 64}, {3, 256}, {65, 1000}, {130, 72}, {2, 7168}, {3, 77}, {1, 1}};

std::vector<float> row_of(const std::vector<float>& values, int64_t row, int64_t stride, int64_t width) {
    return {values.begin() + row * stride, values.begin() + row * stride + width};
}

}  // namespace

TEST(ops_rmsnorm_of_strided_rows) {
    Random random(1);
    for (const Dtype dtype : kDtypes)
        for (const Shape shape : kShapes) {
            const int32_t stride = shape.hidden + 24;
            const auto x = random_values(random, dtype, static_cast<size_t>(shape.rows) * stride, 3.0f);
            const auto weight = random_values(random, dtype, static_cast<size_t>(shape.hidden));
            const Buffer dx = up(dtype, x), dw = up(dtype, weight);
            const Buffer out = space(dtype, static_cast<size_t>(shape.rows) * shape.hidden);
            rmsnorm(queue(), dtype, dx.data(), stride, dw.data(), 1e-6f, out.data(), shape.rows, shape.hidden);
            std::vector<double> wanted;
            for (int32_t r = 0; r < shape.rows; ++r) {
                const auto row = row_of(x, r, stride, shape.hidden);
                for (const double value : normed({row.begin(), row.end()}, weight, 1e-6)) wanted.push_back(value);
            }
            check_near("rmsnorm", dtype, down(dtype, out), wanted, 1e-5);
        }
}

TEST(ops_add_rmsnorm_keeps_residual_and_feature) {
    Random random(2);
    for (const Dtype dtype : kDtypes)
        for (const Shape shape : kShapes)
            for (const int parts : {0, 1, 2, 3, 7}) {  // bits: delta, feature, no out
                const bool has_delta = (parts & 1) != 0, has_feature = (parts & 2) != 0, has_out = (parts & 4) == 0;
                const int32_t stride = 2 * shape.hidden;
                const size_t count = static_cast<size_t>(shape.rows) * shape.hidden;
                const auto residual = random_values(random, dtype, count);
                const auto delta = random_values(random, dtype, count);
                const auto weight = random_values(random, dtype, static_cast<size_t>(shape.hidden));
                const std::vector<float> untouched(2 * count, 5.0f);
                const Buffer dr = up(dtype, residual), dd = up(dtype, delta), dw = up(dtype, weight);
                const Buffer feature = up(dtype, untouched), out = space(dtype, count);
                add_rmsnorm(queue(), dtype, dr.data(), has_delta ? dd.data() : nullptr,
                            has_feature ? feature.data() : nullptr, stride, dw.data(), 1e-6f,
                            has_out ? out.data() : nullptr, shape.rows, shape.hidden);
                std::vector<float> sums;
                std::vector<double> wanted;
                std::vector<float> features = untouched;
                for (int32_t r = 0; r < shape.rows; ++r) {
                    std::vector<double> row;
                    for (int32_t i = 0; i < shape.hidden; ++i) {
                        const size_t at = static_cast<size_t>(r) * shape.hidden + i;
                        const float sum = has_delta ? rounded(dtype, residual[at] + delta[at]) : residual[at];
                        sums.push_back(sum);
                        row.push_back(sum);
                        if (has_feature) features[static_cast<size_t>(r) * stride + i] = sum;
                    }
                    for (const double value : normed(row, weight, 1e-6)) wanted.push_back(value);
                }
                CHECK_EQ(down(dtype, dr), sums);
                CHECK_EQ(down(dtype, feature), features);
                if (has_out) check_near("add_rmsnorm", dtype, down(dtype, out), wanted, 1e-5);
            }
}

TEST(ops_block_norm_packs_the_rows_that_predict) {
    Random random(3);
    for (const Dtype dtype : kDtypes)
        for (const int32_t block : {2, 8})
            for (const int32_t hidden : {64, 77}) {
                const int32_t batch = 3;
                const size_t count = static_cast<size_t>(batch) * block * hidden;
                const auto residual = random_values(random, dtype, count), delta = random_values(random, dtype, count);
                const auto weight = random_values(random, dtype, static_cast<size_t>(hidden));
                const Buffer dr = up(dtype, residual), dd = up(dtype, delta), dw = up(dtype, weight);
                const Buffer out = space(dtype, static_cast<size_t>(batch) * (block - 1) * hidden);
                block_norm(queue(), dtype, dr.data(), dd.data(), dw.data(), 1e-6f, out.data(), batch, block, hidden);
                std::vector<double> wanted;
                for (int32_t b = 0; b < batch; ++b)
                    for (int32_t i = 1; i < block; ++i) {
                        std::vector<double> row;
                        for (int32_t d = 0; d < hidden; ++d) {
                            const size_t at = (static_cast<size_t>(b) * block + i) * hidden + d;
                            row.push_back(rounded(dtype, residual[at] + delta[at]));
                        }
                        for (const double value : normed(row, weight, 1e-6)) wanted.push_back(value);
                    }
                check_near("block_norm", dtype, down(dtype, out), wanted, 1e-5);
                CHECK_EQ(down(dtype, dr), residual);
            }
}

TEST(ops_embed_takes_row_zero_for_strange_ids) {
    Random random(4);
    for (const Dtype dtype : kDtypes)
        for (const int32_t hidden : {64, 77, 1000}) {
            const int32_t vocab = 11;
            const auto table = random_values(random, dtype, static_cast<size_t>(vocab) * hidden);
            const std::vector<int32_t> ids = {3, 0, 10, 11, -1, INT32_MAX, INT32_MIN, 7};
            const Buffer dt = up(dtype, table), di = up(ids);
            const Buffer out = space(dtype, ids.size() * static_cast<size_t>(hidden));
            embed(queue(), dtype, di.as<int32_t>(), dt.data(), vocab, hidden, out.data(),
                  static_cast<int32_t>(ids.size()));
            std::vector<float> wanted;
            for (const int32_t id : ids)
                for (const float value : row_of(table, id >= 0 && id < vocab ? id : 0, hidden, hidden))
                    wanted.push_back(value);
            CHECK_EQ(down(dtype, out), wanted);

            const int32_t block = 5;
            const Buffer blocks = space(dtype, ids.size() * static_cast<size_t>(block * hidden));
            embed_block(queue(), dtype, di.as<int32_t>(), 9, dt.data(), vocab, hidden, blocks.data(),
                        static_cast<int32_t>(ids.size()), block);
            wanted.clear();
            for (const int32_t id : ids)
                for (int32_t i = 0; i < block; ++i)
                    for (const float value : row_of(table, i > 0 ? 9 : id >= 0 && id < vocab ? id : 0, hidden, hidden))
                        wanted.push_back(value);
            CHECK_EQ(down(dtype, blocks), wanted);
        }
}

TEST(ops_silu_mul) {
    Random random(5);
    for (const Dtype dtype : kDtypes)
        for (const Shape shape : kShapes) {
            const int32_t half = shape.hidden;
            auto x = random_values(random, dtype, static_cast<size_t>(shape.rows) * 2 * half, 8.0f);
            x[0] = -200.0f;  // exp overflows, and the answer is 0
            const Buffer dx = up(dtype, x), out = space(dtype, static_cast<size_t>(shape.rows) * half);
            silu_mul(queue(), dtype, dx.data(), out.data(), shape.rows, half);
            std::vector<double> wanted;
            for (int32_t r = 0; r < shape.rows; ++r)
                for (int32_t i = 0; i < half; ++i) {
                    const double gate = x[static_cast<size_t>(r) * 2 * half + i];
                    wanted.push_back(gate / (1.0 + std::exp(-gate)) * x[(static_cast<size_t>(r) * 2 + 1) * half + i]);
                }
            check_near("silu_mul", dtype, down(dtype, out), wanted, 1e-5);
        }
}

TEST(ops_convert_and_fill) {
    Random random(6);
    std::vector<float> values = random_values(random, KDT_F32, 1003);
    values[0] = 1.00390625f;  // between two bf16: to the even one
    values[1] = INFINITY;
    const Buffer from = up(values);
    const Buffer halves = space(KDT_BF16, values.size()), back = space(KDT_F32, values.size());
    convert(queue(), from.data(), KDT_F32, halves.data(), KDT_BF16, static_cast<int64_t>(values.size()));
    convert(queue(), halves.data(), KDT_BF16, back.data(), KDT_F32, static_cast<int64_t>(values.size()));
    std::vector<float> wanted;
    for (const float value : values) wanted.push_back(rounded(KDT_BF16, value));
    CHECK_EQ(down(KDT_BF16, halves), wanted);
    CHECK_EQ(down(KDT_F32, back), wanted);

    for (const Dtype dtype : kDtypes) {
        const Buffer normal = space(dtype, 5000), constant = space(dtype, 77);
        fill_normal(queue(), normal.data(), dtype, 5000, 0.5f, 42);
        fill_constant(queue(), constant.data(), dtype, 77, 1.5f);
        std::vector<double> expected;
        for (uint64_t i = 0; i < 5000; ++i) expected.push_back(0.5 * normal_value(42, i));
        check_near("fill_normal", dtype, down(dtype, normal), expected, 1e-6);
        CHECK_EQ(down(dtype, constant), std::vector<float>(77, 1.5f));
    }
}
