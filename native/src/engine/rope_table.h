// SPDX-License-Identifier: Apache-2.0
#ifndef KDT_ENGINE_ROPE_TABLE_H
#define KDT_ENGINE_ROPE_TABLE_H

#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/ops.h"

namespace kdt::engine {

// cos and sin of every position and pair in device memory. Angles are products in f32, as in PyTorch's models; the
// functions themselves are taken in f64.
class RopeTable {
  public:
    RopeTable(Queue& queue, const std::vector<float>& frequencies, int32_t max_positions, float scale)
        : memory_(static_cast<size_t>(max_positions) * frequencies.size() * 2 * sizeof(float)),
          max_positions_(max_positions),
          pairs_(static_cast<int32_t>(frequencies.size())) {
        std::vector<float> values;
        values.reserve(memory_.bytes() / sizeof(float));
        for (int32_t position = 0; position < max_positions; ++position)
            for (const float frequency : frequencies) {
                const float angle = static_cast<float>(position) * frequency;
                values.push_back(static_cast<float>(std::cos(static_cast<double>(angle))) * scale);
                values.push_back(static_cast<float>(std::sin(static_cast<double>(angle))) * scale);
            }
        queue.upload(memory_.data(), values.data(), memory_.bytes());
    }

    Rope rope() const { return {memory_.as<float>(), max_positions_, pairs_}; }
    size_t bytes() const { return memory_.bytes(); }

  private:
    Memory memory_;
    int32_t max_positions_;
    int32_t pairs_;
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_ROPE_TABLE_H
