// SPDX-License-Identifier: Apache-2.0
//
// One description of a workspace for both its uses: without memory it measures, with the caller's memory it hands out
// the same blocks. A query and its call can then never disagree.
#ifndef KDTREE_CORE_WORKSPACE_H
#define KDTREE_CORE_WORKSPACE_H

#include <cstddef>
#include <cstdint>

namespace kdt {

class Workspace {
  public:
    static constexpr size_t kAlignment = 256;

    // Measures: take() answers nullptr, bytes() counts.
    Workspace() = default;

    // Hands out blocks of `base`, of any alignment.
    explicit Workspace(void* base)
        : base_(reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(base) + kAlignment - 1) & ~(kAlignment - 1))) {}

    // The next block, for `count` values of T, aligned to kAlignment.
    template <class T>
    T* take(size_t count) {
        char* const block = base_ == nullptr ? nullptr : base_ + used_;
        used_ += (count * sizeof(T) + kAlignment - 1) & ~(kAlignment - 1);
        return reinterpret_cast<T*>(block);
    }

    // Bytes to ask of the caller, the slack for aligning their pointer included; 0 when nothing was taken.
    size_t bytes() const { return used_ == 0 ? 0 : used_ + kAlignment; }

  private:
    char* base_ = nullptr;
    size_t used_ = 0;
};

}  // namespace kdt

#endif  // KDTREE_CORE_WORKSPACE_H
