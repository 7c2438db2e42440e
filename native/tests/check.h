// SPDX-License-Identifier: Apache-2.0
//
// The smallest test framework that says where and what: a TEST registers itself, the first CHECK that does not hold
// ends it, main.cpp runs them all and counts.
#ifndef KDTREE_TESTS_CHECK_H
#define KDTREE_TESTS_CHECK_H

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Skipped : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Test {
    const char* name;
    void (*body)();
    bool needs_device;  // a HOST_TEST never touches device memory, so it runs without a GPU too
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

struct Registration {
    Registration(const char* name, void (*body)(), bool needs_device) { tests().push_back({name, body, needs_device}); }
};

template <class T>
std::string text_of(const T& value) {
    std::ostringstream out;
    out.precision(9);
    out << value;
    return out.str();
}

template <class T>
std::string text_of(const std::vector<T>& values) {
    std::ostringstream out;
    out.precision(9);
    out << '[';
    for (size_t i = 0; i < values.size() && i < 64; ++i) out << (i == 0 ? "" : ", ") << +values[i];
    out << (values.size() > 64 ? ", ...]" : "]");
    return out.str();
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
    throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

template <class A, class B>
void equal(const char* file, int line, const char* text, const A& actual, const B& wanted) {
    if (!(actual == wanted))
        fail(file, line, std::string(text) + "\n    is     " + text_of(actual) + "\n    wanted " + text_of(wanted));
}

inline void contains(const char* file, int line, const std::string& text, const std::string& part) {
    if (text.find(part) == std::string::npos) fail(file, line, "'" + text + "' does not contain '" + part + "'");
}

}  // namespace check

#define KDT_TEST_REGISTER(test, needs_device)                                        \
    static void test();                                                              \
    static const check::Registration test##_registration(#test, test, needs_device); \
    static void test()

#define TEST(test) KDT_TEST_REGISTER(test, true)
#define HOST_TEST(test) KDT_TEST_REGISTER(test, false)

#define CHECK(condition)                                               \
    do {                                                               \
        if (!(condition)) check::fail(__FILE__, __LINE__, #condition); \
    } while (false)
#define CHECK_EQ(actual, wanted) check::equal(__FILE__, __LINE__, #actual, actual, wanted)
#define CHECK_CONTAINS(text, part) check::contains(__FILE__, __LINE__, text, part)

#endif  // KDTREE_TESTS_CHECK_H
