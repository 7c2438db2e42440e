// SPDX-License-Identifier: Apache-2.0
//
// The mixture of experts against its definition.
#include <numeric>

#include "engine/arrays.h"

using namespace arrays;
using namespace kdt::engine;

namespace {

struct Choice {
    std::vector<int32_t> experts;
    std::vector<double> weights;
};

Choice chosen(const Router& router, const float* logits, const float* bias) {
    const auto count = static_cast<size_t>(router.n_routed_experts), size = count / static_cast<size_t>(router.n_group);
    std::vector<double> p(count), choice(count);
    double total = 0.0;
    for (size_t e = 0; e < count; ++e) total += std::exp(double{logits[e]});
    for (size_t e = 0; e < count; ++e) {
        p[e] = router.scores == 0 ? 1.0 / (1.0 + std::exp(-double{logits[e]})) : std::exp(double{logits[e]}) / total;
        choice[e] = p[e] + (bias != nullptr ? bias[e] : 0.0f);
    }
    std::vector<std::pair<double, size_t>> groups;
    for (size_t g = 0; g < count / size; ++g) {
        std::vector<double> of_group(choice.begin() + static_cast<ptrdiff_t>(g * size),
                                     choice.begin() + static_cast<ptrdiff_t>((g + 1) * size));
        std::sort(of_group.rbegin(), of_group.rend());
        groups.emplace_back(-(of_group[0] + (router.scores == 0 && size > 1 ? of_group[1] : 0.0)), g);
    }
    std::sort(groups.begin(), groups.end());
    std::vector<std::pair<double, size_t>> candidates;
    for (size_t i = 0; i < static_cast<size_t>(router.topk_group); ++i)
        for (size_t e = groups[i].second * size; e < (groups[i].second + 1) * size; ++e)
            candidates.emplace_back(-choice[e], e);
    std::sort(candidates.begin(), candidates.end());
    Choice result;
    double sum = 1e-20;
    for (int k = 0; k < router.num_experts_per_tok; ++k) {
        result.experts.push_back(static_cast<int32_t>(candidates[static_cast<size_t>(k)].second));
        sum += p[candidates[static_cast<size_t>(k)].second];
    }
    for (const int32_t e : result.experts)
        result.weights.push_back(p[static_cast<size_t>(e)] * router.routed_scaling_factor /
                                 (router.norm_topk_prob != 0 ? sum : 1.0));
    return result;
}

}  // namespace

TEST(the_router_takes_the_best_experts_of_the_best_groups) {
    const int rows = 40;
    for (const Router& router :
         {Router{8, 2, 1, 1, 1, 0, 1.0f}, Router{16, 4, 4, 2, 1, 0, 2.5f}, Router{64, 6, 8, 3, 0, 1, 16.0f},
          Router{256, 8, 8, 4, 1, 0, 2.5f}, Router{384, 8, 1, 1, 1, 0, 2.827f}, Router{6, 3, 6, 3, 1, 0, 1.0f}})
        for (const bool biased : {true, false}) {
            const auto count = static_cast<size_t>(router.n_routed_experts);
            const std::vector<float> logits = random_values(1, rows * count),
                                     bias = random_values(2, count, KDT_F32, 0.1f);
            const Memory dl = to_device(logits), db = to_device(bias);
            const Memory experts(rows * static_cast<size_t>(router.num_experts_per_tok) * 4), weights(experts.bytes());
            route(queue(), router, dl.as<float>(), biased ? db.as<float>() : nullptr, experts.as<int32_t>(),
                  weights.as<float>(), rows);
            std::vector<int32_t> wanted;
            std::vector<double> wanted_weights;
            for (size_t r = 0; r < rows; ++r) {
                const Choice choice = chosen(router, &logits[r * count], biased ? bias.data() : nullptr);
                wanted.insert(wanted.end(), choice.experts.begin(), choice.experts.end());
                wanted_weights.insert(wanted_weights.end(), choice.weights.begin(), choice.weights.end());
            }
            CHECK_EQ(from_device<int32_t>(experts), wanted);
            check_close(from_device<float>(weights), wanted_weights, KDT_F32, 1e-5, "weights");
        }
}

TEST(equal_scores_go_to_the_lowest_expert) {
    const Router router = {8, 3, 4, 2, 1, 0, 1.0f};
    const Memory logits = to_device(std::vector<float>(16, 0.25f)), experts(6 * 4), weights(6 * 4);
    route(queue(), router, logits.as<float>(), nullptr, experts.as<int32_t>(), weights.as<float>(), 2);
    CHECK_EQ(from_device<int32_t>(experts), (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
}

TEST(experts_add_their_weighted_mlps) {
    const Router router = {5, 2, 1, 1, 1, 0, 1.0f};
    for (const Dtype dtype : dtypes())
        for (const int rows : {1, 9, 70}) {
            const size_t hidden = 64, width = 48, n = static_cast<size_t>(rows);
            const std::vector<float> x = random_values(1, n * hidden, dtype),
                                     before = random_values(2, n * hidden, dtype);
            const std::vector<float> gate_up = random_values(3, 5 * 2 * width * hidden, dtype, 0.125f);
            const std::vector<float> down = random_values(4, 5 * hidden * width, dtype, 0.15f);
            std::vector<int32_t> experts;
            std::vector<float> weights;
            for (int r = 0; r < rows; ++r) {
                experts.push_back(r % 3 == 0 ? 4 : 1);  // nobody chooses expert 2
                experts.push_back(r % 2 == 0 ? 3 : 0);
                weights.push_back(0.25f + 0.01f * static_cast<float>(r));
                weights.push_back(0.5f);
            }
            const Memory dx = act_to_device(x, dtype), out = act_to_device(before, dtype),
                         dg = act_to_device(gate_up, dtype), dd = act_to_device(down, dtype), de = to_device(experts),
                         dw = to_device(weights);
            const Memory workspace(experts_workspace(dtype, router, hidden, width, rows));
            experts_add(queue(), dtype, router, dx.data(), de.as<int32_t>(), dw.as<float>(), dg.data(), dd.data(),
                        out.data(), rows, hidden, width, workspace.data());
            std::vector<double> wanted(before.begin(), before.end());
            for (size_t r = 0; r < n; ++r)
                for (size_t k = 0; k < 2; ++k) {
                    const auto e = static_cast<size_t>(experts[2 * r + k]);
                    std::vector<double> product;
                    for (size_t i = 0; i < width; ++i) {
                        double gate = 0.0, up = 0.0;
                        for (size_t j = 0; j < hidden; ++j) {
                            gate += double{x[r * hidden + j]} * gate_up[(e * 2 * width + i) * hidden + j];
                            up += double{x[r * hidden + j]} * gate_up[(e * 2 * width + width + i) * hidden + j];
                        }
                        product.push_back(gate / (1.0 + std::exp(-gate)) * up);
                    }
                    for (size_t j = 0; j < hidden; ++j)
                        for (size_t i = 0; i < width; ++i)
                            wanted[r * hidden + j] +=
                                weights[2 * r + k] * product[i] * down[(e * hidden + j) * width + i];
                }
            check_close(act_from_device(out, dtype), wanted, dtype, dtype == KDT_F32 ? 1e-5 : 1e-2, "out");
        }
}
