// SPDX-License-Identifier: Apache-2.0
//
// Operators that are several in one, against those several on the host.
#include "ops_case.h"

using namespace ops;

namespace {

struct Shape {
    int32_t rows, in, out;
    bool delta, feature;
};
constexpr Shape kShapes[] = {{1, 256, 640, true, true},  {3, 64, 80, false, false}, {65, 256, 96, true, false},
                             {130, 72, 33, true, true},  {9, 1024, 48, true, true}, {20, 520, 17, false, true},
                             {5, 1032, 40, true, false}, {7, 77, 9, true, true},    {2, 2048, 2048, true, false}};

// The operands of a norm before a product, and what the host makes of them.
struct NormCase {
    Dtype dtype;
    Shape shape;
    std::vector<float> residual, delta, norm, sums;
    std::vector<double> normed_rows;
    Buffer dresidual, ddelta, dnorm, out, feature, hidden;

    NormCase(Random& random, Dtype dtype_, Shape shape_)
        : dtype(dtype_),
          shape(shape_),
          residual(random_values(random, dtype, count())),
          delta(random_values(random, dtype, count())),
          norm(random_values(random, dtype, static_cast<size_t>(shape.in))),
          dresidual(up(dtype, residual)),
          ddelta(up(dtype, delta)),
          dnorm(up(dtype, norm)),
          out(up(dtype, std::vector<float>(count(), 5.0f))),
          feature(up(dtype, std::vector<float>(2 * count(), 6.0f))),
          hidden(space(dtype, count())) {
        for (int32_t r = 0; r < shape.rows; ++r) {
            std::vector<double> row;
            for (int32_t i = 0; i < shape.in; ++i) {
                const size_t at = static_cast<size_t>(r) * shape.in + i;
                sums.push_back(shape.delta ? rounded(dtype, residual[at] + delta[at]) : residual[at]);
                row.push_back(sums.back());
            }
            for (const double value : normed(row, norm, 1e-6))
                normed_rows.push_back(rounded(dtype, static_cast<float>(value)));
        }
    }
    size_t count() const { return static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.in); }
    NormInput input() const {
        return {dresidual.data(),
                shape.delta ? ddelta.data() : nullptr,
                shape.delta ? out.data() : nullptr,
                shape.feature ? feature.data() : nullptr,
                2 * int64_t{shape.in},
                dnorm.data(),
                1e-6f,
                hidden.data()};
    }
    void check_kept() const {
        CHECK_EQ(down(dtype, dresidual), residual);
        CHECK_EQ(down(dtype, out), shape.delta ? sums : std::vector<float>(count(), 5.0f));
        std::vector<float> wanted(2 * count(), 6.0f);
        for (size_t i = 0; shape.feature && i < count(); ++i) {
            const size_t row = i / static_cast<size_t>(shape.in);
            wanted[i + row * static_cast<size_t>(shape.in)] = sums[i];
        }
        CHECK_EQ(down(dtype, feature), wanted);
    }
    double product(const std::vector<float>& w, int64_t row, int64_t feature_row) const {
        double sum = 0.0;
        for (int64_t i = 0; i < shape.in; ++i)
            sum += normed_rows[static_cast<size_t>(row * shape.in + i)] *
                   w[static_cast<size_t>(feature_row * shape.in + i)];
        return sum;
    }
    // A normed value may have been rounded to either side, about one in a hundred of them.
    double tolerance() const { return (dtype == KDT_F32 ? 2e-6 : 2e-3) * std::sqrt(static_cast<double>(shape.in)); }
};

}  // namespace

TEST(ops_norm_gemm) {
    Random random(71);
    for (const Dtype dtype : kDtypes)
        for (const Shape shape : kShapes) {
            const NormCase c(random, dtype, shape);
            const auto w = random_values(random, dtype, static_cast<size_t>(shape.out) * shape.in);
            const Buffer dw = up(dtype, w), y = space(dtype, static_cast<size_t>(shape.rows) * shape.out);
            norm_gemm(queue(), dtype, c.input(), dw.data(), y.data(), shape.rows, shape.in, shape.out);
            std::vector<double> wanted;
            for (int32_t r = 0; r < shape.rows; ++r)
                for (int32_t o = 0; o < shape.out; ++o) wanted.push_back(c.product(w, r, o));
            check_near("norm_gemm", dtype, down(dtype, y), wanted, c.tolerance());
            c.check_kept();
        }
}

TEST(ops_norm_gate) {
    Random random(72);
    for (const Dtype dtype : kDtypes)
        for (const Shape shape : kShapes) {
            const NormCase c(random, dtype, shape);
            const auto w = random_values(random, dtype, static_cast<size_t>(2 * shape.out) * shape.in, 0.25f);
            const size_t count = static_cast<size_t>(shape.rows) * shape.out;
            const Buffer dw = up(dtype, w), both = space(dtype, 2 * count), product = space(dtype, count);
            norm_gate(queue(), dtype, c.input(), dw.data(), both.data(), product.data(), shape.rows, shape.in,
                      shape.out);
            std::vector<double> wanted;
            double largest = 0.0;
            for (int32_t r = 0; r < shape.rows; ++r)
                for (int32_t o = 0; o < shape.out; ++o) {
                    const double gate = c.product(w, r, o), up_value = c.product(w, r, shape.out + o);
                    largest = std::max({largest, std::abs(gate), std::abs(up_value)});
                    wanted.push_back(gate / (1.0 + std::exp(-gate)) * up_value);
                }
            // Gate and up may be stored on the way, each rounded.
            const double on_the_way = largest * largest * (dtype == KDT_F32 ? 1e-6 : 0x1p-7);
            check_near("norm_gate", dtype, down(dtype, product), wanted, c.tolerance() * largest + on_the_way);
            both.values<char>();
            c.check_kept();
        }
}

TEST(ops_mla_inputs) {
    Random random(73);
    constexpr int32_t kHead = KDT_QK_NOPE_HEAD_DIM + KDT_QK_ROPE_HEAD_DIM;
    constexpr int32_t kLatent = KDT_KV_LORA_RANK + KDT_QK_ROPE_HEAD_DIM;
    const RopeTable table(200, KDT_QK_ROPE_HEAD_DIM / 2);
    const int32_t batch = 3, pages = 30, pages_a_seq = 6;
    for (const Dtype dtype : kDtypes)
        for (const int32_t rank : {64, 0, 72, 1024, 33})
            for (const int32_t max_nodes : {1, 3, 43})
                for (const int32_t page_size : {16, 1}) {
                    const int32_t heads = rank == 1024 ? 3 : 2, rows = batch * max_nodes;
                    const int32_t width = rank > 0 ? rank : heads * kHead, stride = width + kLatent;
                    const auto first = random_values(random, dtype, static_cast<size_t>(rows) * stride);
                    const auto q_norm = random_values(random, dtype, static_cast<size_t>(rank));
                    const auto q_b = random_values(random, dtype, static_cast<size_t>(heads * kHead) * rank);
                    const auto kv_norm = random_values(random, dtype, KDT_KV_LORA_RANK);
                    std::vector<int32_t> positions, block_table;
                    for (int32_t r = 0; r < rows; ++r) positions.push_back(random.below(200));
                    for (int32_t i = 0; i < batch * pages_a_seq; ++i) block_table.push_back(i % 4 == 3 ? -1 : i + 2);
                    const std::vector<int32_t> seq_lens = {0, 5, 33}, num_nodes = {max_nodes, 0, (max_nodes + 1) / 2};
                    const Buffer df = up(dtype, first), dqn = up(dtype, q_norm), dqb = up(dtype, q_b);
                    const Buffer dkn = up(dtype, kv_norm), dp = up(positions), dt = up(block_table);
                    const Buffer ds = up(seq_lens), dn = up(num_nodes);
                    const size_t cache_values = static_cast<size_t>(pages * page_size) * kLatent;
                    const Buffer cache = up(KDT_BF16, std::vector<float>(cache_values, 3.0f));
                    const Buffer wanted_cache = up(KDT_BF16, std::vector<float>(cache_values, 3.0f));
                    const size_t queries = static_cast<size_t>(rows) * static_cast<size_t>(heads);
                    const Buffer q_normed = space(dtype, static_cast<size_t>(rows) * static_cast<size_t>(rank));
                    const Buffer q = space(dtype, queries * kHead);
                    const Buffer nope = space(KDT_BF16, queries * KDT_QK_NOPE_HEAD_DIM);
                    const Buffer pe = space(KDT_BF16, queries * KDT_QK_ROPE_HEAD_DIM);
                    const Pages paged = {dt.as<int32_t>(), pages_a_seq, page_size, pages};
                    MlaInputs inputs = {};
                    inputs.first = df.data();
                    inputs.q_lora_rank = rank;
                    inputs.q_norm = dqn.data();
                    inputs.q_b = dqb.data();
                    inputs.kv_norm = dkn.data();
                    inputs.eps = 1e-6f;
                    inputs.positions = dp.as<int32_t>();
                    inputs.rope = table.rope();
                    inputs.seq_lens = ds.as<int32_t>();
                    inputs.num_nodes = dn.as<int32_t>();
                    inputs.pages = paged;
                    inputs.layer_cache = cache.data();
                    inputs.num_heads = heads;
                    inputs.batch = batch;
                    inputs.max_nodes = max_nodes;
                    inputs.q_normed = q_normed.data();
                    inputs.q = q.data();
                    inputs.q_nope = nope.data();
                    inputs.q_pe = pe.data();
                    mla_inputs(queue(), dtype, inputs);

                    std::vector<double> wanted_nope, wanted_pe;
                    for (int32_t r = 0; r < rows; ++r) {
                        const float* const row = &first[static_cast<size_t>(r) * stride];
                        std::vector<double> x(row, row + width);
                        if (rank > 0) {
                            x = normed(x, q_norm, 1e-6);
                            for (double& value : x) value = rounded(dtype, static_cast<float>(value));
                        }
                        for (int32_t h = 0; h < heads; ++h) {
                            std::vector<double> head;
                            for (int32_t o = h * kHead; o < (h + 1) * kHead; ++o) {
                                double sum = rank > 0 ? 0.0 : x[static_cast<size_t>(o)];
                                for (int32_t i = 0; i < rank; ++i)
                                    sum += x[static_cast<size_t>(i)] * q_b[static_cast<size_t>(o) * rank + i];
                                head.push_back(sum);
                            }
                            for (int32_t pair = 0; pair < KDT_QK_ROPE_HEAD_DIM / 2; ++pair)
                                table.rotate(positions[static_cast<size_t>(r)], pair,
                                             head[static_cast<size_t>(KDT_QK_NOPE_HEAD_DIM + 2 * pair)],
                                             head[static_cast<size_t>(KDT_QK_NOPE_HEAD_DIM + 2 * pair + 1)]);
                            const auto middle = head.begin() + KDT_QK_NOPE_HEAD_DIM;
                            wanted_nope.insert(wanted_nope.end(), head.begin(), middle);
                            wanted_pe.insert(wanted_pe.end(), middle, head.end());
                        }
                    }
                    // Values of the middle may be rounded to either side, and q itself stored on the way.
                    const double tolerance =
                        dtype == KDT_F32 ? 1e-4 : 0.01 * std::sqrt(static_cast<double>(std::max(rank, 1)));
                    check_near("q_nope", KDT_BF16, down(KDT_BF16, nope), wanted_nope, tolerance);
                    check_near("q_pe", KDT_BF16, down(KDT_BF16, pe), wanted_pe, tolerance);
                    const char* const kv = df.as<char>() + static_cast<size_t>(width) * size_of(dtype);
                    mla_store(queue(), dtype, kv, stride, dkn.data(), 1e-6f, dp.as<int32_t>(), table.rope(),
                              ds.as<int32_t>(), dn.as<int32_t>(), paged, wanted_cache.data(), batch, max_nodes);
                    CHECK_EQ(down(KDT_BF16, cache), down(KDT_BF16, wanted_cache));
                    q.values<char>();
                }
}
