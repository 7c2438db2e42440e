// SPDX-License-Identifier: Apache-2.0
//
// Device memory of the CPU backend: host memory.
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "engine/ops.h"

namespace kdt::engine {
namespace {

constexpr size_t kAlignment = 256;

void* zeroed(size_t bytes) {
    if (bytes == 0) return nullptr;
    void* const data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) & ~(kAlignment - 1));
    if (data == nullptr) fail(KDT_INTERNAL, "out of host memory: %zu bytes were asked for", bytes);
    std::memset(data, 0, bytes);
    return data;
}

}  // namespace

Memory::Memory(size_t bytes) : data_(zeroed(bytes)), bytes_(bytes) {}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Memory::~Memory() {
    std::free(data_);
}

SharedMemory::SharedMemory(size_t bytes) : host_(zeroed(bytes)), device_(host_) {}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : host_(std::exchange(other.host_, nullptr)), device_(std::exchange(other.device_, nullptr)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(device_, other.device_);
    return *this;
}

SharedMemory::~SharedMemory() {
    std::free(host_);
}

}  // namespace kdt::engine
