// Eight-bit floats on a GPU, with the host's bits (moebius/base/float8.h says what is rounded how): E4M3 and
// E5M2 to nearest even with saturation, NaN as 0x7F; E8M0 a power of two. From sm_89 on the card's own
// conversion, on others the same in integers. Nothing here flushes subnormal numbers.
#pragma once

#include <cuda_runtime.h>

namespace moebius::ptx {

// kBias of the exponent, kMantissa bits, kLargest: the code of the largest finite number. Steps as on the
// host.
template <int kBias, int kMantissa, uint32_t kLargest>
__host__ __device__ inline uint32_t round_to_float8(uint32_t word) {
    const uint32_t magnitude = word & 0x7FFFFFFFu, sign = word >> 24 & 0x80u;
    if (magnitude > 0x7F800000u) return 0x7F;
    constexpr int kDropped = 23 - kMantissa;
    const int exponent = static_cast<int>(magnitude >> 23);
    uint32_t code = 0;
    if (exponent > 127 - kBias) {
        const uint32_t half_and_odd = (1u << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1u);
        code = ((magnitude + half_and_odd) >> kDropped) - (static_cast<uint32_t>(127 - kBias) << kMantissa);
        if (code > kLargest) code = kLargest;
    } else {
        const int shift = 151 - kBias - kMantissa - exponent;
        if (exponent > 0 && shift <= 24) {
            const uint32_t digits = 0x00800000u | (magnitude & 0x007FFFFFu);
            code = (digits + (1u << (shift - 1)) - 1 + (digits >> shift & 1u)) >> shift;
        }
    }
    return sign | code;
}

struct E4M3 {
    static constexpr float kLargest = 448.0f;
    // Codes of `low` and `high` in the two lower bytes.
    __device__ static uint32_t encode(float low, float high) {
#if __CUDA_ARCH__ >= 890
        uint16_t pair;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
        return pair;
#else
        return round_to_float8<7, 3, 0x7E>(__float_as_uint(low)) |
               round_to_float8<7, 3, 0x7E>(__float_as_uint(high)) << 8;
#endif
    }
    // The exponent's four bits stand in fp32's field: 2^(e − 127), times 2^120.
    __device__ static float decode(uint32_t code) {
        const float value = __fmul_rn(__uint_as_float((code & 0x80u) << 24 | (code & 0x7Fu) << 20), 0x1p120f);
        return (code & 0x7Fu) == 0x7Fu ? __uint_as_float(0x7FC00000u) : value;
    }
};

struct E5M2 {
    static constexpr float kLargest = 57344.0f;
    __device__ static uint32_t encode(float low, float high) {
#if __CUDA_ARCH__ >= 890
        uint16_t pair;
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
        return pair;
#else
        return round_to_float8<15, 2, 0x7B>(__float_as_uint(low)) |
               round_to_float8<15, 2, 0x7B>(__float_as_uint(high)) << 8;
#endif
    }
    __device__ static float decode(uint32_t code) {
        const float value = __fmul_rn(__uint_as_float((code & 0x80u) << 24 | (code & 0x7Fu) << 21), 0x1p112f);
        const uint32_t magnitude = code & 0x7Fu;
        if (magnitude < 0x7Cu) return value;
        return __uint_as_float(magnitude > 0x7Cu ? 0x7FC00000u : (code & 0x80u) << 24 | 0x7F800000u);
    }
};

// 2^(code − 127); 255 is NaN, 0 the subnormal 2^−127.
__device__ inline float decode_e8m0(uint32_t code) {
    return __uint_as_float(code == 255 ? 0x7FC00000u : code == 0 ? 0x00400000u : code << 23);
}
// 2^(127 − code).
__device__ inline float e8m0_reciprocal(uint32_t code) {
    return __uint_as_float(code == 255 ? 0x7FC00000u : code == 254 ? 0x00400000u : (254u - code) << 23);
}
__host__ __device__ inline uint32_t e8m0_roundup(uint32_t word) {
    const uint32_t magnitude = word & 0x7FFFFFFFu, exponent = magnitude >> 23,
                   mantissa = magnitude & 0x007FFFFFu;
    if (magnitude > 0x7F800000u) return 0xFF;
    if (exponent == 0xFF) return 0xFE;
    return exponent +
           (mantissa > 0 && exponent != 0xFE && !(exponent == 0 && mantissa <= 0x00400000u) ? 1 : 0);
}

// e8m0_roundup(amax · (1/largest)) for the magnitude of a bf16 number that is no NaN, without the product:
// largest is 1.75 · 2^n, and fp32's 1/largest takes 1.75 · 2^k to a power of two exactly, so that the code is
// amax' exponent less n, one more where its mantissa is beyond 1.75.
__host__ __device__ inline uint32_t e8m0_of_bf16(uint32_t amax, bool e5m2) {
    if (amax == 0x7F80u) return 0xFE;
    const uint32_t exponent = (amax + 0x1Fu) >> 7, n = e5m2 ? 15u : 8u;
    return exponent > n ? exponent - n : 0;
}
// Bits in bf16 of 2^(127 − code), of codes up to 254.
__host__ __device__ inline uint32_t e8m0_reciprocal_bf16(uint32_t code) {
    return code == 254 ? 0x0040u : (254u - code) << 7;
}

// largest / amax, rounded, then its mantissa cut off, without the division: largest is 1.75 · 2^kExponent (8
// of E4M3, 15 of E5M2), so the quotient lies in [1, 2) · 2^(kExponent − e) where amax' mantissa is at
// most 1.75, else in the binade below, which rounding never leaves. For the bits of a finite amax of at least
// 2^−111, where scale and inverse are normal. The exponent field of the scale; that of the inverse is 254
// minus it.
__host__ __device__ inline uint32_t power_of_two_below(uint32_t amax, bool e5m2) {
    return (e5m2 ? 269u : 262u) - (amax >> 23) - ((amax & 0x007FFFFFu) > 0x00600000u ? 1u : 0u);
}
constexpr uint32_t kLeastExponentOfAmax = 16;  // field, of 2^−111

// A block's scale that is a power of two, and its inverse, of whatever amax in bf16's range of exponents: 1
// where it is zero, infinite or NaN; the largest power of two where the quotient is beyond it.
struct BlockScale {
    float scale, inverse;
};
__device__ inline BlockScale power_of_two_scale(float amax, bool e5m2) {
    const uint32_t bits = __float_as_uint(amax), exponent = bits >> 23;
    if (bits == 0 || exponent >= 255) return {1.0f, 1.0f};
    uint32_t field = exponent == 0 ? 254u : power_of_two_below(bits, e5m2);
    if (field > 254u) field = 254u;
    return {__uint_as_float(field << 23),
            __uint_as_float(field == 254u ? 0x00400000u : (254u - field) << 23)};
}

}  // namespace moebius::ptx
