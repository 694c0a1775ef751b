// bfloat16 on the host: the upper half of a binary32, rounded to nearest even.
#pragma once

#include <bit>
#include <cstdint>

#include "moebius/base/dtype.h"

namespace moebius {

struct BF16 {
    uint16_t bits;
};

[[gnu::always_inline]] inline float to_float(BF16 value) {
    return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// NaN keeps its sign and upper mantissa bits and becomes quiet; overflow goes to infinity, as IEEE rounding
// asks.
[[gnu::always_inline]] inline BF16 to_bf16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (word + 0x7FFFu + ((word >> 16) & 1u)) >> 16;
    const uint32_t quiet = (word >> 16) | 0x0040u;
    return {static_cast<uint16_t>((word & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded)};
}

[[gnu::always_inline]] inline float to_float(float value) {
    return value;
}

template <>
struct DTypeOf<BF16> {
    static constexpr DType value = DType::BF16;
};

}  // namespace moebius
