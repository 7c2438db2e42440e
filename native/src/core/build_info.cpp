// SPDX-License-Identifier: Apache-2.0
#include "core/build_info.h"

#include <cstdio>

// The build files define these; a file compiled by hand says so.
#ifndef KDT_BUILD_BACKEND
#define KDT_BUILD_BACKEND "unknown"
#endif
#ifndef KDT_BUILD_ARCHS
#define KDT_BUILD_ARCHS "unknown"
#endif
#ifndef KDT_BUILD_GIT_COMMIT
#define KDT_BUILD_GIT_COMMIT "unknown"
#endif
#ifndef KDT_BUILD_FLAGS
#define KDT_BUILD_FLAGS "unknown"
#endif
#ifndef KDT_BUILD_CUDA_VERSION
#define KDT_BUILD_CUDA_VERSION ""
#endif

#if defined(__clang__)
#define KDT_BUILD_COMPILER "clang++ " __clang_version__
#elif defined(__GNUC__)
#define KDT_BUILD_COMPILER "g++ " __VERSION__
#else
#define KDT_BUILD_COMPILER "unknown"
#endif

namespace kdt {
namespace {

// Appends bounded text to fixed memory: kdt_build_info() promises static storage and this needs no allocation.
class JsonText {
  public:
    JsonText() {
        raw("{");
        field("backend", KDT_BUILD_BACKEND);
        field("compiler", KDT_BUILD_COMPILER);
        field("archs", KDT_BUILD_ARCHS);
        field("git_commit", KDT_BUILD_GIT_COMMIT);
        field("flags", KDT_BUILD_FLAGS);
        field("cuda_version", KDT_BUILD_CUDA_VERSION);
        raw("}");
    }

    const char* text() const { return text_; }

  private:
    void field(const char* name, const char* value) {
        raw(used_ > 1 ? ", \"" : "\"");
        raw(name);
        raw("\": \"");
        // A value too long for the buffer is cut so that the closing quote and brace still fit.
        for (; *value != '\0' && used_ + kReserve < sizeof(text_); ++value) {
            char escaped[8] = {*value, '\0'};
            if (*value == '"' || *value == '\\')
                std::snprintf(escaped, sizeof(escaped), "\\%c", *value);
            else if (static_cast<unsigned char>(*value) < 0x20)
                std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(*value));
            raw(escaped);
        }
        raw("\"");
    }

    void raw(const char* text) {
        for (; *text != '\0' && used_ + 1 < sizeof(text_); ++text) text_[used_++] = *text;
        text_[used_] = '\0';
    }

    static constexpr unsigned kReserve = 256;
    char text_[4096] = "";
    unsigned used_ = 0;
};

}  // namespace

const char* build_info() noexcept {
    static const JsonText json;
    return json.text();
}

}  // namespace kdt
