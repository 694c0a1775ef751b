#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "moebius/base/bf16.h"
#include "moebius/base/checked.h"
#include "moebius/base/checksum.h"
#include "moebius/base/philox.h"
#include "moebius/base/shape.h"

namespace moebius {
namespace {

// Known answers of Random123's philox4x32-10.
TEST(Philox, KnownAnswers) {
    EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
              (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
              (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Philox, DependsOnSeedPurposeAndIndexAlone) {
    const Philox a(1, "weights"), b(1, "weights"), c(1, "jitter"), d(2, "weights");
    EXPECT_EQ(a.bits64(5), b.bits64(5));
    EXPECT_NE(a.bits64(5), a.bits64(6));
    EXPECT_NE(a.bits64(5), c.bits64(5));
    EXPECT_NE(a.bits64(5), d.bits64(5));
    double sum = 0, squares = 0;
    constexpr int kCount = 20000;
    for (uint64_t i = 0; i < kCount; ++i) {
        sum += a.normal(i);
        squares += a.normal(i) * a.normal(i);
        EXPECT_LT(a.below(i, 7), 7u);
    }
    EXPECT_NEAR(sum / kCount, 0, 0.03);
    EXPECT_NEAR(squares / kCount, 1, 0.04);
}

TEST(BF16, RoundsToNearestEvenAndKeepsNaN) {
    EXPECT_EQ(to_bf16(1.0f).bits, 0x3F80);
    EXPECT_EQ(to_bf16(1.00390625f).bits, 0x3F80) << "a tie goes to the even mantissa";
    EXPECT_EQ(to_bf16(1.01171875f).bits, 0x3F82) << "a tie goes to the even mantissa";
    EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);
    EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const BF16 value{static_cast<uint16_t>(bits)};
        if (std::isnan(to_float(value))) continue;
        ASSERT_EQ(to_bf16(to_float(value)).bits, bits);
    }
}

TEST(CheckedDeathTest, OverflowAborts) {
    EXPECT_DEATH(checked_mul(int64_t{1} << 40, int64_t{1} << 30), "overflows");
    EXPECT_DEATH(narrow<int32_t>(int64_t{1} << 31), "does not fit");
    EXPECT_EQ(narrow<int32_t>(int64_t{-5}), -5);
    EXPECT_EQ(round_up(9, 8), 16);
}

TEST(Shape, Basics) {
    const Shape shape{2, 3, 4};
    EXPECT_EQ(shape.numel(), 24);
    EXPECT_EQ(shape.str(), "(2, 3, 4)");
    EXPECT_EQ(Shape().numel(), 1);
    EXPECT_TRUE(shape == (Shape{2, 3, 4}));
    EXPECT_FALSE(shape == (Shape{2, 3}));
}

TEST(Checksum, IsXxh3AndIncremental) {
    EXPECT_EQ(checksum_of("", 0), "99aa06d3014798d86001c324468d497f");
    Checksum sum;
    sum.update("moe", 3);
    sum.update("bius", 4);
    EXPECT_EQ(sum.hex(), checksum_of("moebius", 7));
}

}  // namespace
}  // namespace moebius
