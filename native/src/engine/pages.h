// SPDX-License-Identifier: Apache-2.0
//
// Which pages of the cache are free. A request gets all it can ever need at admission, so that a round never allocates
// and never fails for want of a page.
#ifndef KDT_ENGINE_PAGES_H
#define KDT_ENGINE_PAGES_H

#include <cstdint>
#include <vector>

namespace kdt::engine {

class PageAllocator {
  public:
    explicit PageAllocator(int32_t num_pages);

    int32_t total() const { return total_; }
    int32_t free() const { return static_cast<int32_t>(free_.size()); }
    // `count` pages, which must be free.
    std::vector<int32_t> take(int32_t count);
    void give_back(const std::vector<int32_t>& pages);

  private:
    int32_t total_;
    std::vector<int32_t> free_;  // the next to be taken last
};

}  // namespace kdt::engine

#endif  // KDT_ENGINE_PAGES_H
