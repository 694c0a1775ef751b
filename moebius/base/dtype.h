// Element types. Sizes are in bits, so that four-bit elements have their place.
#pragma once

#include <cstdint>
#include <string_view>

namespace moebius {

enum class DType : uint8_t { F64, F32, BF16, F8E4M3, F8E5M2, F8E8M0, F4E2M1, I64, I32, I16, U8 };

int64_t bits(DType dtype);

// Bytes that `count` elements take, rounded up to whole bytes. Aborts on overflow.
int64_t bytes_of(DType dtype, int64_t count);

// "f32", "bf16", …
std::string_view name(DType dtype);

// The C++ type that stands for each element type on the host.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
    static constexpr DType value = DType::F64;
};
template <>
struct DTypeOf<float> {
    static constexpr DType value = DType::F32;
};
template <>
struct DTypeOf<int64_t> {
    static constexpr DType value = DType::I64;
};
template <>
struct DTypeOf<int32_t> {
    static constexpr DType value = DType::I32;
};
template <>
struct DTypeOf<int16_t> {
    static constexpr DType value = DType::I16;
};
template <>
struct DTypeOf<uint8_t> {
    static constexpr DType value = DType::U8;
};

}  // namespace moebius
