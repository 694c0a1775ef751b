// Invariants of our own. A broken one is a bug and aborts with place and values; users' mistakes throw Error
// instead.
#pragma once

#include <sstream>
#include <string>

namespace moebius::detail {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

template <class... Values>
std::string concat(const Values&... values) {
    std::ostringstream out;
    ((void)(out << values), ...);
    return std::move(out).str();
}

}  // namespace moebius::detail

// MOEBIUS_CHECK(rows == n, "rows ", rows, " of ", name)
#define MOEBIUS_CHECK(condition, ...)                                                \
    do {                                                                             \
        if (!(condition)) [[unlikely]]                                               \
            ::moebius::detail::check_failed(__FILE__, __LINE__, #condition,          \
                                            ::moebius::detail::concat(__VA_ARGS__)); \
    } while (false)
