// Eight-bit floats: every code, every bf16 number and the neighbourhood of every tie, against tables made
// with other libraries (float8_table.h) and against the definition by exponents.
#include "moebius/base/float8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "moebius/base/bf16.h"
#include "tests/base/float8_table.h"

namespace moebius {
namespace {

float of(uint32_t bits) {
    return std::bit_cast<float>(bits);
}
uint32_t bits_of(float value) {
    return std::bit_cast<uint32_t>(value);
}

struct E4M3 {
    static constexpr int kLargestCode = 0x7E;
    static uint8_t encode(float value) { return to_f8e4m3(value).bits; }
    static float decode(uint8_t code) { return to_float(F8E4M3{code}); }
    static std::span<const uint32_t> numbers() { return kE4M3Numbers; }
    static std::span<const uint32_t> largest() { return kE4M3Largest; }
};
struct E5M2 {
    static constexpr int kLargestCode = 0x7B;
    static uint8_t encode(float value) { return to_f8e5m2(value).bits; }
    static float decode(uint8_t code) { return to_float(F8E5M2{code}); }
    static std::span<const uint32_t> numbers() { return kE5M2Numbers; }
    static std::span<const uint32_t> largest() { return kE5M2Largest; }
};

// The code of a positive number by the table: the first whose largest number is not below it.
template <class F>
uint8_t by_table(float value) {
    const auto all = F::largest();
    return static_cast<uint8_t>(std::lower_bound(all.begin(), all.end(), bits_of(value)) - all.begin());
}

template <class F>
class Float8 : public testing::Test {};
using Types = testing::Types<E4M3, E5M2>;
TYPED_TEST_SUITE(Float8, Types);

TYPED_TEST(Float8, AllCodesAreTheTablesNumbers) {
    ASSERT_EQ(TypeParam::largest().size(), static_cast<size_t>(TypeParam::kLargestCode + 1));
    for (int code = 0; code < 256; ++code) {
        const float value = TypeParam::decode(static_cast<uint8_t>(code));
        if (TypeParam::numbers()[static_cast<size_t>(code)] == 0x7FC00000u) {
            EXPECT_TRUE(std::isnan(value)) << code;
        } else {
            EXPECT_EQ(bits_of(value), TypeParam::numbers()[static_cast<size_t>(code)]) << code;
        }
    }
}

TYPED_TEST(Float8, FiniteCodesComeBack) {
    int finite = 0;
    for (int code = 0; code < 256; ++code) {
        const auto byte = static_cast<uint8_t>(code);
        if (!std::isfinite(TypeParam::decode(byte))) continue;
        EXPECT_EQ(TypeParam::encode(TypeParam::decode(byte)), byte);
        ++finite;
    }
    EXPECT_EQ(finite, 2 * (TypeParam::kLargestCode + 1));
}

TYPED_TEST(Float8, EveryBF16NumberIsRoundedAsTheTableSays) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const float value = to_float(BF16{static_cast<uint16_t>(bits)});
        if (std::isnan(value)) {
            ASSERT_EQ(TypeParam::encode(value), 0x7F) << bits;
            continue;
        }
        const uint8_t sign = bits & 0x8000 ? 0x80 : 0;
        ASSERT_EQ(TypeParam::encode(value), sign | by_table<TypeParam>(std::fabs(value))) << bits;
    }
}

TYPED_TEST(Float8, NumbersAroundEveryTie) {
    for (const uint32_t last : TypeParam::largest()) {
        for (int64_t bits = int64_t{last} - 3; bits <= int64_t{last} + 3; ++bits) {
            if (bits < 0 || bits > 0x7F800000) continue;
            const float value = of(static_cast<uint32_t>(bits));
            ASSERT_EQ(TypeParam::encode(value), by_table<TypeParam>(value)) << bits;
            ASSERT_EQ(TypeParam::encode(-value), 0x80 | by_table<TypeParam>(value)) << bits;
        }
    }
}

// By the definition alone: the nearest number, of two equally near the even code.
TYPED_TEST(Float8, TiesGoToTheEvenCode) {
    for (int code = 0; code < TypeParam::kLargestCode; ++code) {
        const double low = TypeParam::decode(static_cast<uint8_t>(code));
        const double high = TypeParam::decode(static_cast<uint8_t>(code + 1));
        const auto middle = static_cast<float>((low + high) / 2);
        EXPECT_EQ(TypeParam::encode(middle), code + code % 2);
        EXPECT_EQ(TypeParam::encode(std::nextafter(middle, 0.0f)), code);
        EXPECT_EQ(TypeParam::encode(std::nextafter(middle, 1e30f)), code + 1);
    }
}

TYPED_TEST(Float8, SaturatesAndKeepsNaN) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const float value : {kInfinity, std::numeric_limits<float>::max(), 61440.0f, 70000.0f}) {
        EXPECT_EQ(TypeParam::encode(value), TypeParam::kLargestCode);
        EXPECT_EQ(TypeParam::encode(-value), 0x80 | TypeParam::kLargestCode);
    }
    for (const uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu})
        EXPECT_EQ(TypeParam::encode(of(bits)), 0x7F);
    EXPECT_EQ(TypeParam::encode(of(1)), 0) << "a subnormal number of fp32";
    EXPECT_EQ(TypeParam::encode(of(0x80000001u)), 0x80);
}

TEST(Float8, LargestNumbers) {
    EXPECT_EQ(to_float(F8E4M3{0x7E}), kLargestE4M3);
    EXPECT_EQ(to_float(F8E5M2{0x7B}), kLargestE5M2);
    EXPECT_EQ(to_f8e4m3(464.0f).bits, 0x7E) << "the tie above 448";
    EXPECT_EQ(to_f8e4m3(std::nextafter(464.0f, 500.0f)).bits, 0x7E) << "no NaN";
}

TEST(E8M0, AllCodesAreTheTablesNumbers) {
    for (int code = 0; code < 255; ++code) {
        const float value = to_float(F8E8M0{static_cast<uint8_t>(code)});
        EXPECT_EQ(bits_of(value), kE8M0Numbers[code]) << code;
        EXPECT_EQ(value, std::ldexp(1.0f, code - 127));
        EXPECT_EQ(e8m0_roundup(value).bits, code) << "a power of two is its own";
        EXPECT_EQ(e8m0_reciprocal({static_cast<uint8_t>(code)}), std::ldexp(1.0f, 127 - code));
    }
    EXPECT_TRUE(std::isnan(to_float(F8E8M0{255})));
    EXPECT_EQ(kE8M0Numbers[255], 0x7FC00000u);
    EXPECT_TRUE(std::isnan(e8m0_reciprocal({255})));
}

TEST(E8M0, RoundsUp) {
    constexpr float kReciprocal = 1.0f / 448.0f;
    EXPECT_EQ(e8m0_roundup(448.0f * kReciprocal).bits, 127);
    EXPECT_EQ(e8m0_roundup(std::nextafter(448.0f, 1000.0f) * kReciprocal).bits, 128);
    EXPECT_EQ(e8m0_roundup(0.0f).bits, 0);
    EXPECT_EQ(e8m0_roundup(of(1)).bits, 0);
    EXPECT_EQ(e8m0_roundup(of(0x00400000u)).bits, 0) << "2^-127 itself";
    EXPECT_EQ(e8m0_roundup(of(0x00400001u)).bits, 1);
    EXPECT_EQ(e8m0_roundup(of(0x007FFFFFu)).bits, 1);
    EXPECT_EQ(e8m0_roundup(of(0x7F000000u)).bits, 0xFE) << "2^127";
    EXPECT_EQ(e8m0_roundup(std::numeric_limits<float>::max()).bits, 0xFE);
    EXPECT_EQ(e8m0_roundup(std::numeric_limits<float>::infinity()).bits, 0xFE);
    EXPECT_EQ(e8m0_roundup(std::numeric_limits<float>::quiet_NaN()).bits, 0xFF);
}

// Every bf16 number, and its neighbours in fp32: the smallest power of two that is not below.
TEST(E8M0, NothingSmallerWouldDo) {
    for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
        for (const uint32_t word : {bits << 16, (bits << 16) + 1, (bits << 16) + 0x8000}) {
            const float value = of(word);
            const int code = e8m0_roundup(value).bits;
            ASSERT_LE(code, 0xFE);
            if (code < 0xFE) {
                ASSERT_GE(std::ldexp(1.0, code - 127), static_cast<double>(value)) << word;
            }
            if (code > 0) {
                ASSERT_LT(std::ldexp(1.0, code - 128), static_cast<double>(value)) << word;
            }
        }
    }
}

}  // namespace
}  // namespace moebius
