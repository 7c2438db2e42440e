// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "check.h"
#include "core/error.h"
#include "engine/pages.h"

HOST_TEST(pages_are_nobody_s_twice) {
    kdt::engine::PageAllocator pages(10);
    std::vector<int32_t> first = pages.take(4), second = pages.take(6);
    CHECK_EQ(pages.free(), 0);
    CHECK_EQ(first, (std::vector<int32_t>{0, 1, 2, 3}));
    std::vector<int32_t> all = first;
    all.insert(all.end(), second.begin(), second.end());
    std::sort(all.begin(), all.end());
    CHECK_EQ(all, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    pages.give_back(first);
    CHECK_EQ(pages.free(), 4);
    CHECK_EQ(pages.take(4), first);
}

HOST_TEST(pages_that_are_not_there_are_not_taken) {
    kdt::engine::PageAllocator pages(3);
    const std::vector<int32_t> taken = pages.take(2);
    try {
        pages.take(2);
    } catch (const kdt::Error& error) {
        CHECK_EQ(static_cast<int>(error.status()), static_cast<int>(KDT_UNSUPPORTED));
        CHECK_CONTAINS(std::string(error.what()), "needs 2 pages, and 1 of 3 are free");
        CHECK_EQ(pages.free(), 1);
        CHECK_EQ(pages.take(0), std::vector<int32_t>());
        return;
    }
    throw check::Failure("three pages became four");
}
