// SPDX-License-Identifier: Apache-2.0
//
// The CPU's queue does everything at once, in the caller.
#include <chrono>
#include <cstring>
#include <utility>

#include "engine/cpu/queue_impl.h"
#include "engine/ops.h"
#include "engine/stamps.h"

namespace kdt::engine {

Queue::Queue(const char* blas_library) : impl_(std::make_unique<Impl>(blas_library)) {}

Queue::~Queue() = default;

void Queue::upload(void* to, const void* from, size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
}

void Queue::download(void* to, const void* from, size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
}

void Queue::copy(void* to, const void* from, size_t bytes) {
    if (bytes != 0) std::memmove(to, from, bytes);
}

void Queue::zero(void* to, size_t bytes) {
    if (bytes != 0) std::memset(to, 0, bytes);
}

void Queue::wait() {}

void* Queue::stream() const {
    return nullptr;
}

const char* Queue::blas_name() const {
    return impl_->blas.name().c_str();
}

void stamp(Queue&, Stamps* stamps, int32_t index, bool ends) {
    const auto since_boot = std::chrono::steady_clock::now().time_since_epoch();
    take_stamp(*stamps, std::chrono::duration_cast<std::chrono::nanoseconds>(since_boot).count(), index, ends);
}

struct Recording::Impl {
    std::function<void()> work;
};

Recording::Recording(Queue&, std::function<void()> work) : impl_(new Impl{std::move(work)}) {}

Recording::~Recording() = default;

void Recording::replay() {
    impl_->work();
}

}  // namespace kdt::engine
