// SPDX-License-Identifier: Apache-2.0
#include "engine/pages.h"

#include "core/error.h"

namespace kdt::engine {

PageAllocator::PageAllocator(int32_t num_pages) : total_(num_pages) {
    free_.reserve(static_cast<size_t>(num_pages));
    for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

std::vector<int32_t> PageAllocator::take(int32_t count) {
    if (count > free())
        fail(KDT_UNSUPPORTED, "engine_admit: the request needs %d pages, and %d of %d are free now", count, free(),
             total_);
    std::vector<int32_t> pages(free_.rbegin(), free_.rbegin() + count);
    free_.resize(free_.size() - static_cast<size_t>(count));
    return pages;
}

void PageAllocator::give_back(const std::vector<int32_t>& pages) {
    free_.insert(free_.end(), pages.rbegin(), pages.rend());
}

}  // namespace kdt::engine
