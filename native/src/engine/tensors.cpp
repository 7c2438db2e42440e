// SPDX-License-Identifier: Apache-2.0
#include "engine/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "engine/keyed_random.h"

namespace kdt::engine {
namespace {

constexpr int64_t kStagingBytes = int64_t{32} << 20;

std::string shape_text(int32_t rank, int64_t rows, int64_t columns) {
    return rank == 1 ? "[" + std::to_string(rows) + "]"
                     : "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
}

// FNV-1a, so that each tensor has a stream of its own.
uint64_t name_key(const std::string& name) {
    uint64_t key = 0xCBF29CE484222325ull;
    for (const unsigned char c : name) key = (key ^ c) * 0x100000001B3ull;
    return key;
}

uint16_t bf16_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace

TensorSource::TensorSource(Queue& queue, const Config& config)
    : queue_(queue), random_(config.tensors == nullptr), seed_(config.random_seed) {
    for (int32_t i = 0; i < config.num_tensors; ++i) {
        const kdt_tensor& tensor = config.tensors[i];
        if (tensor.name == nullptr) fail_argument("engine_create: the name of tensor %d is NULL", i);
        if (!given_.emplace(tensor.name, &tensor).second)
            fail_argument("engine_create: tensor '%s' is given twice", tensor.name);
        order_.emplace_back(tensor.name);
    }
}

const kdt_tensor& TensorSource::take(const std::string& name, int32_t rank, int64_t rows, int64_t columns) {
    const auto found = given_.find(name);
    if (found == given_.end()) fail_argument("engine_create: tensor '%s' is missing", name.c_str());
    const kdt_tensor& tensor = *found->second;
    const bool fits = tensor.rank == rank && tensor.shape[0] == rows && (rank == 1 || tensor.shape[1] == columns);
    if (!fits)
        fail_argument("engine_create: tensor '%s' is %s, and the config wants %s", name.c_str(),
                      shape_text(tensor.rank, tensor.shape[0], tensor.shape[1]).c_str(),
                      shape_text(rank, rows, columns).c_str());
    if (tensor.dtype != KDT_F32 && tensor.dtype != KDT_BF16)
        fail_argument("engine_create: tensor '%s' has dtype %d, wanted KDT_F32 or KDT_BF16", name.c_str(),
                      tensor.dtype);
    if (tensor.data == nullptr) fail_argument("engine_create: the data of tensor '%s' is NULL", name.c_str());
    given_.erase(found);
    return tensor;
}

void TensorSource::copy(const kdt_tensor& tensor, int64_t count, void* to, Dtype dtype) {
    const auto from_dtype = static_cast<Dtype>(tensor.dtype);
    const auto* from = static_cast<const char*>(tensor.data);
    auto* target = static_cast<char*>(to);
    if (from_dtype == dtype) {
        queue_.upload(target, from, static_cast<size_t>(count) * size_of(dtype));
        return;
    }
    if (staging_.bytes() == 0) staging_ = Memory(kStagingBytes);
    const int64_t piece = kStagingBytes / static_cast<int64_t>(size_of(from_dtype));
    for (int64_t first = 0; first < count; first += piece) {
        const int64_t n = std::min(piece, count - first);
        queue_.upload(staging_.data(), from + first * size_of(from_dtype), n * size_of(from_dtype));
        convert(queue_, staging_.data(), from_dtype, target + first * size_of(dtype), dtype, n);
    }
}

void TensorSource::fill(const std::string& name, int64_t count, void* to, Dtype dtype, float deviation) {
    fill_normal(queue_, to, dtype, count, deviation, seed_ ^ name_key(name));
    bytes_ += count * static_cast<int64_t>(size_of(dtype));
}

void TensorSource::matrix(const std::string& name, int64_t rows, int64_t columns, void* to, Dtype dtype,
                          float deviation) {
    if (random_) {
        fill(name, rows * columns, to, dtype, deviation);
        return;
    }
    copy(take(name, 2, rows, columns), rows * columns, to, dtype);
    bytes_ += rows * columns * static_cast<int64_t>(size_of(dtype));
}

void TensorSource::matrix(const std::string& name, int64_t rows, int64_t columns, void* to, Dtype dtype) {
    matrix(name, rows, columns, to, dtype, 1.0f / std::sqrt(static_cast<float>(columns)));
}

void TensorSource::vector(const std::string& name, int64_t count, void* to, Dtype dtype, float value) {
    if (random_)
        fill_constant(queue_, to, dtype, count, value);
    else
        copy(take(name, 1, count, 0), count, to, dtype);
    bytes_ += count * static_cast<int64_t>(size_of(dtype));
}

std::vector<uint16_t> TensorSource::host_bf16(const std::string& name, int64_t rows, int64_t columns) {
    const kdt_tensor& tensor = take(name, 2, rows, columns);
    std::vector<uint16_t> values(static_cast<size_t>(rows * columns));
    if (tensor.dtype == KDT_BF16) {
        std::memcpy(values.data(), tensor.data, values.size() * sizeof(uint16_t));
    } else {
        const auto* from = static_cast<const float*>(tensor.data);
        for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_of(from[i]);
    }
    bytes_ += static_cast<int64_t>(values.size() * sizeof(uint16_t));
    return values;
}

void TensorSource::finish() const {
    for (const std::string& name : order_)
        if (given_.count(name) != 0)
            fail_argument("engine_create: tensor '%s' is none of this config's%s", name.c_str(),
                          given_.size() > 1 ? ", and there are more such" : "");
}

}  // namespace kdt::engine
