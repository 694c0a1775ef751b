// Eight-bit floats on the host: E4M3 (largest 448, no infinity), E5M2 (largest 57344) and E8M0, a power of
// two.
//
// Rounding to E4M3 and E5M2 goes to nearest even and saturates: what lies beyond the largest finite number,
// an infinity too, becomes that number. Every NaN becomes the code 0x7F, as from the cards' own conversion.
// The arithmetic is on integers alone, so that no compiler's contraction or flush to zero changes a bit;
// ptx/float8.h does the same on a GPU.
#pragma once

#include <bit>
#include <cstdint>

#include "moebius/base/dtype.h"

namespace moebius {

struct F8E4M3 {
    uint8_t bits;
};
struct F8E5M2 {
    uint8_t bits;
};
// 2^(bits − 127); 255 is NaN. No sign, no zero.
struct F8E8M0 {
    uint8_t bits;
};

namespace detail {

// kBias of the exponent, kMantissa bits; kLargest: the code of the largest finite number.
template <int kBias, int kMantissa, uint32_t kLargest>
inline uint8_t round_to_float8(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value), magnitude = word & 0x7FFFFFFFu;
    const uint32_t sign = word >> 24 & 0x80u;
    if (magnitude > 0x7F800000u) return 0x7F;
    constexpr int kDropped = 23 - kMantissa;
    const auto exponent = static_cast<int>(magnitude >> 23);
    uint32_t code = 0;
    if (exponent > 127 - kBias) {  // normal in eight bits
        const uint32_t half_and_odd = (1u << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1u);
        code = ((magnitude + half_and_odd) >> kDropped) - (static_cast<uint32_t>(127 - kBias) << kMantissa);
        if (code > kLargest) code = kLargest;
    } else {
        // A count of units of 2^(1 − bias − mantissa); past 24 bits of shift less than half a unit is left.
        const int shift = 151 - kBias - kMantissa - exponent;
        if (exponent > 0 && shift <= 24) {
            const uint32_t digits = 0x00800000u | (magnitude & 0x007FFFFFu);
            code = (digits + (1u << (shift - 1)) - 1 + (digits >> shift & 1u)) >> shift;
        }
    }
    return static_cast<uint8_t>(sign | code);
}

template <int kBias, int kMantissa>
inline float finite_from_float8(uint8_t bits) {
    const uint32_t exponent = (bits & 0x7Fu) >> kMantissa, mantissa = bits & ((1u << kMantissa) - 1);
    const float sign = bits & 0x80u ? -1.0f : 1.0f;
    // Powers of two by their bits: 2^(e − bias − mantissa), normal in fp32 for every exponent.
    const uint32_t unit = (exponent == 0 ? 1 : exponent) + 127 - kBias - kMantissa;
    const uint32_t digits = exponent == 0 ? mantissa : mantissa | 1u << kMantissa;
    return sign * static_cast<float>(digits) * std::bit_cast<float>(unit << 23);
}

}  // namespace detail

inline constexpr float kLargestE4M3 = 448.0f, kLargestE5M2 = 57344.0f;

inline F8E4M3 to_f8e4m3(float value) {
    return {detail::round_to_float8<7, 3, 0x7E>(value)};
}
inline F8E5M2 to_f8e5m2(float value) {
    return {detail::round_to_float8<15, 2, 0x7B>(value)};
}

inline float to_float(F8E4M3 value) {
    if ((value.bits & 0x7F) == 0x7F) return std::bit_cast<float>(0x7FC00000u);
    return detail::finite_from_float8<7, 3>(value.bits);
}
inline float to_float(F8E5M2 value) {
    const uint32_t magnitude = value.bits & 0x7Fu;
    if (magnitude > 0x7C) return std::bit_cast<float>(0x7FC00000u);
    if (magnitude == 0x7C) return std::bit_cast<float>(value.bits & 0x80u ? 0xFF800000u : 0x7F800000u);
    return detail::finite_from_float8<15, 2>(value.bits);
}
// Code 0 is 2^−127, a subnormal number of fp32.
inline float to_float(F8E8M0 value) {
    if (value.bits == 0xFF) return std::bit_cast<float>(0x7FC00000u);
    return std::bit_cast<float>(value.bits == 0 ? 0x00400000u : uint32_t{value.bits} << 23);
}

// The next power of two that is not below a non-negative `value`; NaN is 0xFF, infinity 0xFE, zero 0x00.
inline F8E8M0 e8m0_roundup(float value) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
    const uint32_t exponent = magnitude >> 23, mantissa = magnitude & 0x007FFFFFu;
    if (magnitude > 0x7F800000u) return {0xFF};
    if (exponent == 0xFF) return {0xFE};
    const bool up = mantissa > 0 && exponent != 0xFE && !(exponent == 0 && mantissa <= 0x00400000u);
    return {static_cast<uint8_t>(exponent + (up ? 1 : 0))};
}
// 2^(127 − code), exact: what elements are multiplied by before they are rounded.
inline float e8m0_reciprocal(F8E8M0 code) {
    if (code.bits == 0xFF) return std::bit_cast<float>(0x7FC00000u);
    return std::bit_cast<float>(code.bits == 0xFE ? 0x00400000u : (254u - code.bits) << 23);
}

template <>
struct DTypeOf<F8E4M3> {
    static constexpr DType value = DType::F8E4M3;
};
template <>
struct DTypeOf<F8E5M2> {
    static constexpr DType value = DType::F8E5M2;
};
template <>
struct DTypeOf<F8E8M0> {
    static constexpr DType value = DType::F8E8M0;
};

}  // namespace moebius
