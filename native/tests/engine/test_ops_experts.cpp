// SPDX-License-Identifier: Apache-2.0
//
// Mixtures of experts: who is asked, and what they say.
#include <numeric>

#include "kdtree/engine.h"
#include "ops_case.h"

using namespace ops;

namespace {

struct Routed {
    std::vector<int32_t> experts;
    std::vector<double> weights;
};

Routed route_row(const Router& router, const float* logits, const float* bias) {
    const int32_t experts = router.n_routed_experts, size = experts / router.n_group;
    std::vector<float> scores, choices;
    float sum = 0.0f;
    const float top = *std::max_element(logits, logits + experts);
    for (int32_t e = 0; e < experts; ++e) sum += std::exp(logits[e] - top);
    for (int32_t e = 0; e < experts; ++e) {
        scores.push_back(router.scores == KDT_SCORES_SIGMOID ? 1.0f / (1.0f + std::exp(-logits[e]))
                                                             : std::exp(logits[e] - top) / sum);
        choices.push_back(scores.back() + (bias == nullptr ? 0.0f : bias[e]));
    }
    const auto best_of = [](const std::vector<float>& values, int32_t count) {
        std::vector<int32_t> order(values.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
        });
        order.resize(static_cast<size_t>(count));
        return order;
    };
    std::vector<float> groups;
    for (int32_t g = 0; g < router.n_group; ++g) {
        std::vector<float> members(choices.begin() + g * size, choices.begin() + (g + 1) * size);
        std::sort(members.rbegin(), members.rend());
        groups.push_back(members[0] + (router.scores == KDT_SCORES_SIGMOID && size > 1 ? members[1] : 0.0f));
    }
    const auto chosen = best_of(groups, router.topk_group);
    for (int32_t e = 0; e < experts; ++e)
        if (std::find(chosen.begin(), chosen.end(), e / size) == chosen.end())
            choices[static_cast<size_t>(e)] = -INFINITY;
    Routed routed;
    routed.experts = best_of(choices, router.num_experts_per_tok);
    double total = 1e-20;
    for (const int32_t e : routed.experts) total += scores[static_cast<size_t>(e)];
    for (const int32_t e : routed.experts)
        routed.weights.push_back(scores[static_cast<size_t>(e)] / (router.norm_topk_prob != 0 ? total : 1.0) *
                                 router.routed_scaling_factor);
    return routed;
}

}  // namespace

TEST(ops_route) {
    Random random(41);
    const Router routers[] = {
        {8, 2, 1, 1, 1, KDT_SCORES_SIGMOID, 1.0f},     {64, 6, 8, 3, 1, KDT_SCORES_SIGMOID, 2.5f},
        {384, 8, 1, 1, 1, KDT_SCORES_SIGMOID, 2.827f}, {60, 4, 5, 2, 0, KDT_SCORES_SOFTMAX, 1.0f},
        {256, 8, 8, 4, 1, KDT_SCORES_SIGMOID, 2.5f},   {3, 3, 3, 3, 0, KDT_SCORES_SOFTMAX, 16.0f}};
    for (const Router& router : routers)
        for (const int32_t rows : {1, 3, 130})
            for (const bool biased : {false, true}) {
                const auto experts = static_cast<size_t>(router.n_routed_experts);
                std::vector<float> logits, bias;
                // Few distinct values: ties, which equal arithmetic keeps ties.
                for (size_t i = 0; i < experts * static_cast<size_t>(rows); ++i)
                    logits.push_back(static_cast<float>(random.below(9)) - 4.0f);
                for (size_t i = 0; i < experts; ++i) bias.push_back(static_cast<float>(random.below(3)) * 8.0f);
                const Buffer dl = up(logits), db = up(bias);
                const size_t picks = static_cast<size_t>(rows * router.num_experts_per_tok);
                const Buffer chosen(picks * 4), weights(picks * 4);
                route(queue(), router, dl.as<float>(), biased ? db.as<float>() : nullptr, chosen.as<int32_t>(),
                      weights.as<float>(), rows);
                Routed wanted;
                for (int32_t r = 0; r < rows; ++r) {
                    const Routed row =
                        route_row(router, &logits[static_cast<size_t>(r) * experts], biased ? bias.data() : nullptr);
                    wanted.experts.insert(wanted.experts.end(), row.experts.begin(), row.experts.end());
                    wanted.weights.insert(wanted.weights.end(), row.weights.begin(), row.weights.end());
                }
                CHECK_EQ(chosen.values<int32_t>(), wanted.experts);
                check_near("route", KDT_F32, weights.values<float>(), wanted.weights, 1e-6);
            }
}

TEST(ops_experts_add) {
    Random random(42);
    struct Shape {
        int32_t rows, experts, per_token, hidden, intermediate;
    };
    for (const Dtype dtype : kDtypes)
        for (const Shape shape : {Shape{1, 4, 2, 64, 32}, Shape{3, 16, 3, 256, 40}, Shape{65, 8, 2, 72, 64},
                                  Shape{130, 3, 3, 64, 24}, Shape{5, 4, 1, 33, 7}}) {
            Router router = {};
            router.n_routed_experts = shape.experts;
            router.num_experts_per_tok = shape.per_token;
            const auto size = [](int64_t a, int64_t b, int64_t c) { return static_cast<size_t>(a * b * c); };
            const auto x = random_values(random, dtype, size(shape.rows, shape.hidden, 1));
            const auto gate_up =
                random_values(random, dtype, size(shape.experts, 2 * shape.intermediate, shape.hidden));
            const auto down_w = random_values(random, dtype, size(shape.experts, shape.hidden, shape.intermediate));
            const auto before = random_values(random, dtype, size(shape.rows, shape.hidden, 1));
            const auto weights = random_values(random, KDT_F32, size(shape.rows, shape.per_token, 1));
            std::vector<int32_t> experts;
            for (int32_t r = 0; r < shape.rows; ++r) {
                const int32_t first = random.below(shape.experts);
                for (int32_t k = 0; k < shape.per_token; ++k) experts.push_back((first + k) % shape.experts);
            }
            std::vector<double> wanted(before.begin(), before.end());
            for (int32_t r = 0; r < shape.rows; ++r)
                for (int32_t k = 0; k < shape.per_token; ++k) {
                    const size_t pick = static_cast<size_t>(r * shape.per_token + k);
                    const auto dot = [&](const std::vector<float>& w, int64_t row, const auto& values) {
                        double sum = 0.0;
                        const auto count = static_cast<int64_t>(values.size());
                        for (int64_t i = 0; i < count; ++i)
                            sum += static_cast<double>(w[static_cast<size_t>(row * count + i)]) *
                                   values[static_cast<size_t>(i)];
                        return sum;
                    };
                    const std::vector<float> row(x.begin() + r * shape.hidden, x.begin() + (r + 1) * shape.hidden);
                    std::vector<float> product;
                    const int64_t expert = experts[pick];
                    for (int32_t i = 0; i < shape.intermediate; ++i) {
                        const double gate = dot(gate_up, expert * 2 * shape.intermediate + i, row);
                        const double more = dot(gate_up, (expert * 2 + 1) * shape.intermediate + i, row);
                        product.push_back(rounded(dtype, static_cast<float>(gate / (1.0 + std::exp(-gate)) * more)));
                    }
                    for (int32_t d = 0; d < shape.hidden; ++d)
                        wanted[static_cast<size_t>(r * shape.hidden + d)] +=
                            weights[pick] * dot(down_w, expert * shape.hidden + d, product);
                }
            const Buffer dx = up(dtype, x), dg = up(dtype, gate_up), dd = up(dtype, down_w), out = up(dtype, before);
            const Buffer de = up(experts), dw = up(weights);
            const Buffer workspace(experts_workspace(dtype, router, shape.hidden, shape.intermediate, shape.rows));
            for (int again = 0; again < 2; ++again) {  // the workspace is then as the first run left it
                queue().copy(out.data(), up(dtype, before).data(), out.bytes());
                queue().wait();
                experts_add(queue(), dtype, router, dx.data(), de.as<int32_t>(), dw.as<float>(), dg.data(), dd.data(),
                            out.data(), shape.rows, shape.hidden, shape.intermediate, workspace.data());
                // A value of the middle may be rounded to either side.
                check_near("experts_add", dtype, down(dtype, out), wanted, dtype == KDT_F32 ? 2e-3 : 0.25);
                workspace.values<char>();
            }
        }
}
