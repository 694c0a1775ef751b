// Vector arithmetic for CPU kernel bodies: sixteen floats, which the compiler keeps in one, two or four
// registers. Everything here is inlined into a body compiled for an instruction set (runtime/isa.h). Lane
// order is the same for every set, so results differ between sets only where products and sums contract to
// FMA.
#pragma once

#include <cstring>

#include "moebius/base/bf16.h"
#include "moebius/base/check.h"
#include "moebius/runtime/isa.h"

namespace moebius::ops {

inline constexpr int64_t kLanes = 16;
using F16 = float __attribute__((vector_size(64)));
using F8 = float __attribute__((vector_size(32)));
using F4 = float __attribute__((vector_size(16)));
using I16 = int32_t __attribute__((vector_size(64)));
using U16 = uint32_t __attribute__((vector_size(64)));
using H16 = uint16_t __attribute__((vector_size(32)));

MOEBIUS_INLINE F16 broadcast(float value) {
    return value - F16{};  // not F16{} + value: that turns −0 into 0, so the addition would stay
}

MOEBIUS_INLINE F16 load(const float* source) {
    F16 value;
    std::memcpy(&value, source, sizeof value);
    return value;
}
MOEBIUS_INLINE F16 load(const BF16* source) {
    H16 half;
    std::memcpy(&half, source, sizeof half);
    return reinterpret_cast<F16>(__builtin_convertvector(half, U16) << 16);
}
MOEBIUS_INLINE void store(float* destination, F16 value) {
    std::memcpy(destination, &value, sizeof value);
}

// Masks come from sign bits, not from `a < b`: GCC 12 takes a comparison of vectors longer than the registers
// apart into scalars.
MOEBIUS_INLINE I16 nan_mask(F16 value) {
    return (0x7F800000 - (reinterpret_cast<I16>(value) & 0x7FFFFFFF)) >> 31;
}
// a < b, where neither is NaN and they are not the same infinity; −0 may count as below +0.
MOEBIUS_INLINE I16 less_mask(F16 a, F16 b) {
    return reinterpret_cast<I16>(a - b) >> 31;
}

MOEBIUS_INLINE void store(BF16* destination, F16 value) {
    const U16 word = reinterpret_cast<U16>(value);
    const U16 rounded = (word + 0x7FFFu + ((word >> 16) & 1u)) >> 16;
    const U16 quiet = (word >> 16) | 0x0040u;
    const U16 is_nan = reinterpret_cast<U16>(nan_mask(value));
    const H16 half = __builtin_convertvector((quiet & is_nan) | (rounded & ~is_nan), H16);
    std::memcpy(destination, &half, sizeof half);
}

// The first `count` < 16 elements, zeros (loads) or nothing (stores) beyond.
template <class T>
MOEBIUS_INLINE F16 load_partial(const T* source, int64_t count) {
    T buffer[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) buffer[i] = source[i];
    return load(buffer);
}
template <class T>
MOEBIUS_INLINE void store_partial(T* destination, F16 value, int64_t count) {
    T buffer[kLanes];
    store(buffer, value);
    for (int64_t i = 0; i < count; ++i) destination[i] = buffer[i];
}

// A vector or the tail of a row: with the constant kLanes for `count`, the whole load or store alone remains,
// so that one loop body serves both.
template <class T>
MOEBIUS_INLINE F16 load_some(const T* source, int64_t count) {
    return count == kLanes ? load(source) : load_partial(source, count);
}
template <class T>
MOEBIUS_INLINE void store_some(T* destination, F16 value, int64_t count) {
    if (count == kLanes) {
        store(destination, value);
    } else {
        store_partial(destination, value, count);
    }
}

MOEBIUS_INLINE void store_as(float* destination, float value) {
    *destination = value;
}
MOEBIUS_INLINE void store_as(BF16* destination, float value) {
    *destination = to_bf16(value);
}

MOEBIUS_INLINE F16 select(I16 mask, F16 yes, F16 no) {
    return reinterpret_cast<F16>((reinterpret_cast<I16>(yes) & mask) | (reinterpret_cast<I16>(no) & ~mask));
}
MOEBIUS_INLINE F16 maximum(F16 a, F16 b) {
    return select(less_mask(b, a), a, b);
}
MOEBIUS_INLINE F16 minimum(F16 a, F16 b) {
    return select(less_mask(a, b), a, b);
}

// Pairwise in a fixed order: 16 → 8 → 4 → 2 → 1.
MOEBIUS_INLINE float sum(F16 value) {
    const F8 eight = __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
    const F4 four =
        __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    return (four[0] + four[2]) + (four[1] + four[3]);
}
MOEBIUS_INLINE float largest(F16 value) {
    float lane[kLanes];
    std::memcpy(lane, &value, sizeof value);
    float best = lane[0];
    for (int i = 1; i < kLanes; ++i) best = lane[i] > best ? lane[i] : best;
    return best;
}

// e^x, within 2 ulp for x in [−87.3, 88.7]; below, 0; above, infinity; NaN stays NaN. Range reduction by ln 2
// in two parts (Cody and Waite), then the Taylor polynomial of degree 7 on |r| ≤ ln(2)/2, whose remainder is
// below 2^−26.
MOEBIUS_INLINE F16 exp(F16 x) {
    const F16 kShift = broadcast(0x1.8p23f);
    const F16 scaled = x * 1.44269504f + kShift;
    const F16 n = scaled - kShift;  // round(x / ln 2)
    const F16 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    F16 p = broadcast(1.0f / 5040.0f);
    p = p * r + (1.0f / 720.0f);
    p = p * r + (1.0f / 120.0f);
    p = p * r + (1.0f / 24.0f);
    p = p * r + (1.0f / 6.0f);
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    // 2^n in two factors, so that n = 128 and subnormal results come out right.
    const I16 k = reinterpret_cast<I16>(scaled) - 0x4B400000;
    const I16 half = k >> 1;
    const F16 first = reinterpret_cast<F16>((half + 127) << 23);
    const F16 second = reinterpret_cast<F16>((k - half + 127) << 23);
    F16 result = p * first * second;
    result = select(less_mask(x, broadcast(-103.0f)), F16{}, result);
    result = select(less_mask(broadcast(88.72284f), x), broadcast(__builtin_inff()), result);
    return select(nan_mask(x), x, result);
}

// 1 / (1 + e^−x), without overflow on either side.
MOEBIUS_INLINE F16 sigmoid(F16 x) {
    return 1.0f / (1.0f + exp(-x));
}

// Calls f with the element types of `dtype`: as f(float{}) or f(BF16{}).
template <class F>
void with_float_type(DType dtype, F&& f) {
    if (dtype == DType::BF16) return f(BF16{});
    MOEBIUS_CHECK(dtype == DType::F32, "dtype ", name(dtype));
    f(float{});
}

}  // namespace moebius::ops
