// Integer arithmetic on sizes that aborts on overflow, and conversions that lose nothing.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>

#include "moebius/base/check.h"

namespace moebius {

inline int64_t checked_mul(int64_t a, int64_t b) {
    int64_t product = 0;
    MOEBIUS_CHECK(!__builtin_mul_overflow(a, b, &product), a, " * ", b, " overflows 64 bits");
    return product;
}

inline int64_t checked_add(int64_t a, int64_t b) {
    int64_t sum = 0;
    MOEBIUS_CHECK(!__builtin_add_overflow(a, b, &sum), a, " + ", b, " overflows 64 bits");
    return sum;
}

template <std::integral To, std::integral From>
To narrow(From value) {
    const To result = static_cast<To>(value);
    MOEBIUS_CHECK(static_cast<From>(result) == value && (result < To{}) == (value < From{}), value,
                  " does not fit into ", sizeof(To), " bytes");
    return result;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
constexpr int64_t round_up(int64_t a, int64_t multiple) {
    return ceil_div(a, multiple) * multiple;
}

}  // namespace moebius
