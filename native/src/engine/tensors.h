// SPDX-License-Identifier: Apache-2.0
//
// Where weights come from: the caller's named tensors, or random values keyed on the name. Each tensor is asked for
// once with the shape that the config gives it; what does not fit is a sentence that names it.
#ifndef KDT_ENGINE_TENSORS_H
#define KDT_ENGINE_TENSORS_H

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/config.h"
#include "engine/ops.h"

namespace kdt::engine {

class TensorSource {
  public:
    TensorSource(Queue& queue, const Config& config);

    bool random() const { return random_; }
    // Copies `name`, [rows, columns], to device memory, converted to `dtype`. Random: normal values of this deviation.
    void matrix(const std::string& name, int64_t rows, int64_t columns, void* to, Dtype dtype, float deviation);
    // As matrix, with 1 / sqrt(columns), which keeps the scale of what is multiplied.
    void matrix(const std::string& name, int64_t rows, int64_t columns, void* to, Dtype dtype);
    // Copies `name`, [count]. Random: all of them `value`.
    void vector(const std::string& name, int64_t count, void* to, Dtype dtype, float value = 1.0f);
    // `name`, [rows, columns], in host memory, as bf16. Not for random weights.
    std::vector<uint16_t> host_bf16(const std::string& name, int64_t rows, int64_t columns);
    // Random values only: those of a tensor called `name`.
    void fill(const std::string& name, int64_t count, void* to, Dtype dtype, float deviation);

    // Throws when a tensor was given that nobody asked for.
    void finish() const;
    int64_t bytes() const { return bytes_; }

  private:
    const kdt_tensor& take(const std::string& name, int32_t rank, int64_t rows, int64_t columns);
    void copy(const kdt_tensor& tensor, int64_t count, void* to, Dtype dtype);

    Queue& queue_;
    const bool random_;
    const uint64_t seed_;
    std::unordered_map<std::string, const kdt_tensor*> given_;  // those not asked for yet
    std::vector<std::string> order_;
    Memory staging_;
    int64_t bytes_ = 0;
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_TENSORS_H
