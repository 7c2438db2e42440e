// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace kdt {
namespace {

thread_local char t_last_error[kMaxErrorLength] = "";

void copy_sentence(char* to, const char* from) {
    const size_t length = strnlen(from, kMaxErrorLength - 1);
    std::memcpy(to, from, length);
    to[length] = '\0';
}

}  // namespace

Error::Error(kdt_status status, const char* message) noexcept : status_(status) {
    copy_sentence(message_, message);
}

void fail(kdt_status status, const char* format, ...) {
    char message[kMaxErrorLength];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    throw Error(status, message);
}

void fail_argument(const char* format, ...) {
    char message[kMaxErrorLength];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    throw Error(KDT_INVALID_ARGUMENT, message);
}

const char* last_error() noexcept {
    return t_last_error;
}

void set_last_error(const char* message) noexcept {
    copy_sentence(t_last_error, message);
}

}  // namespace kdt
