// SPDX-License-Identifier: Apache-2.0
//
// Operands of the engine's operators: plain vectors here, memory of the backend there, with a guard behind what an
// operator may write. The same for both backends.
#ifndef KDTREE_TESTS_ENGINE_OPS_CASE_H
#define KDTREE_TESTS_ENGINE_OPS_CASE_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "engine/ops.h"
#include "engine/options.h"
#include "oracle.h"

namespace ops {

using namespace kdt::engine;

inline Queue& queue() {
    static Queue* const shared = new Queue(options().blas_or_null());
    return *shared;
}

constexpr Dtype kDtypes[] = {KDT_F32, KDT_BF16};
constexpr size_t kGuard = 64;  // bytes behind a buffer
constexpr unsigned char kPoison = 0xcd;

inline float rounded(Dtype dtype, float value) {
    return dtype == KDT_F32 ? value : from_bf16(bf16(value));
}

// Values in [-1, 1], as `dtype` holds them.
inline std::vector<float> random_values(Random& random, Dtype dtype, size_t count, float scale = 1.0f) {
    std::vector<float> values(count);
    for (float& value : values)
        value = rounded(dtype, scale * (static_cast<float>(random.below(20001)) / 10000.0f - 1.0f));
    return values;
}

// Memory of the backend, guarded.
class Buffer {
  public:
    explicit Buffer(size_t bytes) : bytes_(bytes), memory_(bytes + kGuard) {
        const std::vector<unsigned char> poison(bytes + kGuard, kPoison);
        queue().upload(memory_.data(), poison.data(), poison.size());
    }
    void* data() const { return memory_.data(); }
    template <class T>
    T* as() const {
        return memory_.as<T>();
    }
    size_t bytes() const { return bytes_; }

    template <class T>
    std::vector<T> values() const {
        std::vector<unsigned char> all(bytes_ + kGuard);
        queue().download(all.data(), memory_.data(), all.size());
        for (size_t i = bytes_; i < all.size(); ++i)
            if (all[i] != kPoison) throw check::Failure("written behind the end of a buffer");
        std::vector<T> values(bytes_ / sizeof(T));
        std::memcpy(values.data(), all.data(), values.size() * sizeof(T));
        return values;
    }

  private:
    size_t bytes_;
    Memory memory_;
};

template <class T>
Buffer up(const std::vector<T>& values) {
    Buffer buffer(values.size() * sizeof(T));
    if (!values.empty()) queue().upload(buffer.data(), values.data(), values.size() * sizeof(T));
    return buffer;
}

// Activations.
inline Buffer up(Dtype dtype, const std::vector<float>& values) {
    if (dtype == KDT_F32) return up(values);
    std::vector<uint16_t> halves;
    for (const float value : values) halves.push_back(bf16(value));
    return up(halves);
}
inline Buffer space(Dtype dtype, size_t count) {
    return Buffer(count * size_of(dtype));
}
inline std::vector<float> down(Dtype dtype, const Buffer& buffer) {
    if (dtype == KDT_F32) return buffer.values<float>();
    std::vector<float> values;
    for (const uint16_t half : buffer.values<uint16_t>()) values.push_back(from_bf16(half));
    return values;
}

// Each value within `absolute` plus one rounding of what is stored.
inline void check_near(const char* what, Dtype stored, const std::vector<float>& actual,
                       const std::vector<double>& wanted, double absolute) {
    CHECK_EQ(actual.size(), wanted.size());
    const double relative = stored == KDT_F32 ? 1e-5 : 0x1p-8;
    for (size_t i = 0; i < actual.size(); ++i) {
        if (std::abs(actual[i] - wanted[i]) <= absolute + relative * std::abs(wanted[i])) continue;
        throw check::Failure(std::string(what) + ", " + (stored == KDT_F32 ? "f32" : "bf16") + ": value " +
                             std::to_string(i) + " is " + check::text_of(actual[i]) + ", wanted " +
                             check::text_of(wanted[i]));
    }
}

// out[i] of a row's rmsnorm.
inline std::vector<double> normed(const std::vector<double>& row, const std::vector<float>& weight, double eps) {
    double squares = 0.0;
    for (const double value : row) squares += value * value;
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(row.size()) + eps);
    std::vector<double> out;
    for (size_t i = 0; i < row.size(); ++i) out.push_back(row[i] * scale * weight[i]);
    return out;
}

// A table of cos and sin of `pairs` angles a position.
struct RopeTable {
    std::vector<float> values;
    Buffer buffer;
    int32_t positions, pairs;

    RopeTable(int32_t positions_, int32_t pairs_)
        : values(make(positions_, pairs_)), buffer(up(values)), positions(positions_), pairs(pairs_) {}
    Rope rope() const { return {buffer.as<float>(), positions, pairs}; }
    void rotate(int64_t position, int32_t pair, double& a, double& b) const {
        const int64_t nearest = std::min<int64_t>(std::max<int64_t>(position, 0), positions - 1);
        const float* const turn = &values[static_cast<size_t>((nearest * pairs + pair) * 2)];
        const double first = a * turn[0] - b * turn[1];
        b = b * turn[0] + a * turn[1];
        a = first;
    }

    static std::vector<float> make(int32_t positions, int32_t pairs) {
        std::vector<float> table;
        for (int32_t position = 0; position < positions; ++position)
            for (int32_t pair = 0; pair < pairs; ++pair) {
                const double angle = position * std::pow(10000.0, -static_cast<double>(pair) / pairs);
                table.push_back(static_cast<float>(std::cos(angle)));
                table.push_back(static_cast<float>(std::sin(angle)));
            }
        return table;
    }
};

}  // namespace ops

#endif  // KDTREE_TESTS_ENGINE_OPS_CASE_H
