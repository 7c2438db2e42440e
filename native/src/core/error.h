// SPDX-License-Identifier: Apache-2.0
//
// How a failure travels: inside the library it is an exception, at the C edge it becomes a status and a sentence that
// kdt_last_error() hands out.
#ifndef KDTREE_CORE_ERROR_H
#define KDTREE_CORE_ERROR_H

#include <exception>
#include <new>
#include <utility>

#include "kdtree/kdtree.h"

namespace kdt {

// Longest sentence kept, terminating zero included; longer ones are cut.
constexpr int kMaxErrorLength = 1024;

// A failure with the status the C caller gets. It holds its text in place, so that throwing it needs no string.
class Error : public std::exception {
  public:
    Error(kdt_status status, const char* message) noexcept;

    kdt_status status() const noexcept { return status_; }
    const char* what() const noexcept override { return message_; }

  private:
    kdt_status status_;
    char message_[kMaxErrorLength];
};

// Throws Error with a printf-style sentence.
[[noreturn]] void fail(kdt_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void fail_argument(const char* format, ...) __attribute__((format(printf, 1, 2)));

// The sentence of this thread's last failed call ("" when none has failed). The buffer is plain thread-local memory:
// nothing is freed at thread exit, so a library may be unloaded while threads that used it still run.
const char* last_error() noexcept;
void set_last_error(const char* message) noexcept;

// The edge: runs `body` and turns whatever leaves it into a status and a last error. No exception crosses the C ABI.
template <class Body>
kdt_status guarded(Body&& body) noexcept {
    try {
        std::forward<Body>(body)();
        return KDT_OK;
    } catch (const Error& error) {
        set_last_error(error.what());
        return error.status();
    } catch (const std::bad_alloc&) {
        set_last_error("out of host memory");
        return KDT_INTERNAL;
    } catch (const std::exception& error) {
        set_last_error(error.what());
        return KDT_INTERNAL;
    } catch (...) {
        set_last_error("an exception of unknown type left the library's own code");
        return KDT_INTERNAL;
    }
}

}  // namespace kdt

#endif  // KDTREE_CORE_ERROR_H
