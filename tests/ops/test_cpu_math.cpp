// Vector arithmetic of the CPU kernels, at every instruction level this machine has.
#include "moebius/ops/cpu_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/base/philox.h"

namespace moebius::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct ExpBody {
    template <Isa>
    MOEBIUS_INLINE static void run(const float* x, float* y) {
        store(y, exp(load(x)));
    }
};
struct RoundBody {
    template <Isa>
    MOEBIUS_INLINE static void run(const float* x, BF16* y) {
        store(y, load(x));
    }
};
struct ExtremesBody {
    template <Isa>
    MOEBIUS_INLINE static void run(const float* a, const float* b, float* most, float* least) {
        store(most, maximum(load(a), load(b)));
        store(least, minimum(load(a), load(b)));
    }
};
struct SumBody {
    template <Isa>
    MOEBIUS_INLINE static void run(const float* x, float* y) {
        y[0] = sum(load(x));
        y[1] = largest(load(x));
    }
};
struct PartialBody {
    template <Isa>
    MOEBIUS_INLINE static void run(const BF16* x, float* y, int64_t count) {
        store_some(y, load_some(x, count) * 2.0f, count);
    }
};

class CpuMath : public testing::TestWithParam<const char*> {
  protected:
    void SetUp() override {
        try {
            isa_ = isa_from_name(GetParam());
        } catch (const Error& error) {
            GTEST_SKIP() << error.what();
        }
    }
    Isa isa_ = Isa::Baseline;
};

TEST_P(CpuMath, ExpWithinTwoUlp) {
    double worst = 0;
    for (int64_t i = 0; i < 200000; ++i) {
        float x[kLanes], y[kLanes];
        for (int64_t j = 0; j < kLanes; ++j) {
            x[j] = static_cast<float>(-87.3 + (88.7 + 87.3) * static_cast<double>(i * kLanes + j) / 3.2e6);
        }
        with_isa<ExpBody>(isa_, static_cast<const float*>(x), static_cast<float*>(y));
        for (int64_t j = 0; j < kLanes; ++j) {
            const double want = std::exp(static_cast<double>(x[j]));
            const float near = static_cast<float>(want);
            const double ulp = std::nextafterf(near, kInf) - near;
            worst = std::max(worst, std::abs(y[j] - want) / ulp);
        }
    }
    EXPECT_LE(worst, 2.0);
    EXPECT_GT(worst, 0.0);
}

TEST_P(CpuMath, ExpAtTheEdges) {
    const float x[kLanes] = {0.0f,    -0.0f,  kInf,  -kInf,   kNaN, -kNaN, 89.0f,  88.7f,
                             -104.0f, -1e30f, 1e30f, -100.0f, 1.0f, -1.0f, 1e-30f, 3e38f};
    float y[kLanes];
    with_isa<ExpBody>(isa_, static_cast<const float*>(x), static_cast<float*>(y));
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    EXPECT_EQ(y[2], kInf);
    EXPECT_EQ(y[3], 0.0f);
    EXPECT_TRUE(std::isnan(y[4]));
    EXPECT_TRUE(std::isnan(y[5]));
    EXPECT_EQ(y[6], kInf);
    EXPECT_TRUE(std::isfinite(y[7]));
    EXPECT_EQ(y[8], 0.0f);
    EXPECT_EQ(y[9], 0.0f);
    EXPECT_EQ(y[10], kInf);
    EXPECT_GT(y[11], 0.0f);  // subnormal, not flushed
    EXPECT_EQ(y[14], 1.0f);
    EXPECT_EQ(y[15], kInf);
}

TEST_P(CpuMath, RoundsToBf16LikeTheScalarCodec) {
    const Philox random(3, "bf16");
    for (uint64_t i = 0; i < 20000; ++i) {
        float x[kLanes];
        BF16 y[kLanes];
        for (uint64_t j = 0; j < kLanes; ++j) {
            x[j] = std::bit_cast<float>(static_cast<uint32_t>(random.bits64(i * kLanes + j)));
        }
        // Ties, infinities, NaNs whose upper half alone would read as infinity, the largest finite.
        x[0] = std::bit_cast<float>(0x3F808000u);
        x[1] = std::bit_cast<float>(0x3F818000u);
        x[2] = -kInf;
        x[3] = std::bit_cast<float>(0x7F800001u);
        x[4] = std::bit_cast<float>(0xFFFFFFFFu);
        x[5] = std::numeric_limits<float>::max();
        with_isa<RoundBody>(isa_, static_cast<const float*>(x), static_cast<BF16*>(y));
        for (int64_t j = 0; j < kLanes; ++j) ASSERT_EQ(y[j].bits, to_bf16(x[j]).bits) << x[j];
    }
}

TEST_P(CpuMath, ExtremesSumAndTails) {
    const float a[kLanes] = {1, -1, kInf, -kInf, 0, 5, -7, 3e38f, 2, 2, 2, 2, 2, 2, 2, 2};
    const float b[kLanes] = {2, -2, 1, 1, 3, 5, 7, -3e38f, 1, 3, 1, 3, 1, 3, 1, 3};
    float most[kLanes], least[kLanes];
    with_isa<ExtremesBody>(isa_, static_cast<const float*>(a), static_cast<const float*>(b),
                           static_cast<float*>(most), static_cast<float*>(least));
    for (int64_t j = 0; j < kLanes; ++j) {
        EXPECT_EQ(most[j], std::max(a[j], b[j]));
        EXPECT_EQ(least[j], std::min(a[j], b[j]));
    }
    float x[kLanes], y[kLanes];
    for (int64_t j = 0; j < kLanes; ++j) x[j] = static_cast<float>(1 << j);
    with_isa<SumBody>(isa_, static_cast<const float*>(x), static_cast<float*>(y));
    EXPECT_EQ(y[0], 65535.0f);
    EXPECT_EQ(y[1], 32768.0f);
    BF16 half[kLanes];
    for (int64_t j = 0; j < kLanes; ++j) half[j] = to_bf16(static_cast<float>(j + 1));
    for (int64_t count = 1; count <= kLanes; ++count) {
        for (float& value : y) value = -1.0f;
        with_isa<PartialBody>(isa_, static_cast<const BF16*>(half), static_cast<float*>(y), count);
        for (int64_t j = 0; j < kLanes; ++j) {
            EXPECT_EQ(y[j], j < count ? 2.0f * static_cast<float>(j + 1) : -1.0f);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Levels, CpuMath, testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace moebius::ops
