// SPDX-License-Identifier: Apache-2.0
//
// The buffers of one call: inputs that must come back unchanged, outputs and workspace that start poisoned, and a guard
// band before and behind each of them.
#ifndef KDTREE_TESTS_GUARDED_MEMORY_H
#define KDTREE_TESTS_GUARDED_MEMORY_H

#include <algorithm>
#include <cstdint>
#include <vector>

#include "check.h"
#include "device_buffer.h"

class GuardedMemory {
  public:
    GuardedMemory() = default;
    ~GuardedMemory() {
        for (const Block& block : blocks_) device::release(block.memory);
    }
    GuardedMemory(const GuardedMemory&) = delete;
    GuardedMemory& operator=(const GuardedMemory&) = delete;

    template <class T>
    const T* input(const std::vector<T>& values) {
        const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(values.data());
        return static_cast<const T*>(add(std::vector<unsigned char>(bytes, bytes + values.size() * sizeof(T)), true));
    }

    // Read and written: only its guards are watched.
    template <class T>
    T* in_place(const std::vector<T>& values) {
        const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(values.data());
        return static_cast<T*>(add(std::vector<unsigned char>(bytes, bytes + values.size() * sizeof(T)), false));
    }

    template <class T>
    T* output(size_t count) {
        return static_cast<T*>(add(std::vector<unsigned char>(count * sizeof(T), kPoison), false));
    }

    // Aligned to 16 bytes and no more: all that the library may count on.
    void* workspace(size_t bytes) {
        return static_cast<unsigned char*>(add(std::vector<unsigned char>(bytes + 16, kPoison), false)) + 16;
    }

    // Waits for the device. `from` is what output() gave.
    template <class T>
    std::vector<T> read(const T* from, size_t count) const {
        device::synchronize();
        std::vector<T> values(count);
        if (count > 0) device::download(values.data(), from, count * sizeof(T));
        return values;
    }

    // Fails when anything but the outputs was written.
    void check() const {
        device::synchronize();
        for (size_t i = 0; i < blocks_.size(); ++i) {
            const Block& block = blocks_[i];
            std::vector<unsigned char> now(block.bytes.size() + 2 * kGuard);
            device::download(now.data(), block.memory, now.size());
            const auto is_guard = [](unsigned char byte) { return byte == kGuardByte; };
            const auto first = now.begin() + kGuard;
            const auto last = now.end() - kGuard;
            if (!std::all_of(now.begin(), first, is_guard))
                check::fail(__FILE__, __LINE__, "buffer " + std::to_string(i) + " was written before its start");
            if (!std::all_of(last, now.end(), is_guard))
                check::fail(__FILE__, __LINE__, "buffer " + std::to_string(i) + " was written behind its end");
            if (block.is_input && !std::equal(first, last, block.bytes.begin()))
                check::fail(__FILE__, __LINE__, "input buffer " + std::to_string(i) + " was changed");
        }
    }

  private:
    static constexpr size_t kGuard = 512;
    static constexpr unsigned char kGuardByte = 0xC5;
    static constexpr unsigned char kPoison = 0xAA;

    struct Block {
        void* memory;
        std::vector<unsigned char> bytes;
        bool is_input;
    };

    void* add(std::vector<unsigned char> bytes, bool is_input) {
        std::vector<unsigned char> image(bytes.size() + 2 * kGuard, kGuardByte);
        std::copy(bytes.begin(), bytes.end(), image.begin() + kGuard);
        void* const memory = device::allocate(image.size());
        blocks_.push_back({memory, std::move(bytes), is_input});
        device::upload(memory, image.data(), image.size());
        return static_cast<unsigned char*>(memory) + kGuard;
    }

    std::vector<Block> blocks_;
};

#endif  // KDTREE_TESTS_GUARDED_MEMORY_H
