// SPDX-License-Identifier: Apache-2.0
//
// The CPU's queue does everything at once, in the caller.
#include <cstring>
#include <utility>

#include "engine/cpu/queue_impl.h"
#include "engine/ops.h"

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

void Queue::mark(int32_t mark) {
    impl_->marks[static_cast<size_t>(mark)] = std::chrono::steady_clock::now();
}

double Queue::seconds_between(int32_t from, int32_t to) {
    const auto& marks = impl_->marks;
    return std::chrono::duration<double>(marks[static_cast<size_t>(to)] - marks[static_cast<size_t>(from)]).count();
}

const char* Queue::blas_name() const {
    return impl_->blas.name().c_str();
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
