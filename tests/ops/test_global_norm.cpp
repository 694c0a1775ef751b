// The clip factor from several buffers, and what is not finite.
#include "moebius/ops/global_norm/global_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace moebius::ops {
namespace {

class GlobalNorm : public testing::Test {
  protected:
    GlobalNorm() : device_(Device::cpu_from_environment()), threads_(2) {}
    Exec exec() { return {.device = &device_, .pool = &pool_, .threads = &threads_}; }

    void add(std::vector<float> values) {
        sum_of_squares({View(values.data(), DType::F32, {static_cast<int64_t>(values.size())}),
                        View(&squares_, DType::F64, {1})},
                       exec());
    }
    void clip(float max_norm, float factor = 1.0f, float loss = 2.0f) {
        clip_factor({.sum_of_squares = View(&squares_, DType::F64, {1}),
                     .grad_factor = View(&factor, DType::F32, {1}),
                     .loss = View(&loss, DType::F32, {1}),
                     .max_norm = max_norm,
                     .norm = View(&norm_, DType::F32, {1}),
                     .clip = View(&clip_, DType::F32, {1}),
                     .bad = View(&bad_, DType::I32, {1})},
                    exec());
    }

    Device device_;
    HostArena pool_;
    ThreadPool threads_;
    double squares_ = 0;
    float norm_ = -1, clip_ = -1;
    int32_t bad_ = 0;
};

// Norms √20 and √100 make √120, in one buffer or two.
TEST_F(GlobalNorm, BuffersAddUp) {
    add({2, 4});
    EXPECT_EQ(squares_, 20);
    add({6, 8});
    EXPECT_EQ(squares_, 120);
    clip(1.0f);
    EXPECT_FLOAT_EQ(norm_, 10.954451f);
    EXPECT_FLOAT_EQ(clip_, 0.091287084f);
    EXPECT_EQ(bad_, 0);
}

TEST_F(GlobalNorm, SquaresBeyondFp32) {
    add({1e20f, 0, 0});
    EXPECT_DOUBLE_EQ(squares_, static_cast<double>(1e20f) * static_cast<double>(1e20f));
    clip(1.0f);
    EXPECT_FLOAT_EQ(norm_, 1e20f);
    EXPECT_EQ(bad_, 0);
}

TEST_F(GlobalNorm, InfinityAndNanStayWhereverTheyAre) {
    for (const float odd : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
        for (const size_t at : {size_t{0}, size_t{31}, size_t{70000}}) {
            squares_ = 0;
            bad_ = 0;
            std::vector<float> values(70001, 0.5f);
            values[at] = odd;
            add(values);
            EXPECT_FALSE(std::isfinite(squares_)) << odd << " at " << at;
            clip(1.0f);
            EXPECT_EQ(bad_, 1);
            EXPECT_EQ(clip_, 0.0f);
        }
    }
}

TEST_F(GlobalNorm, BadIsNeverCleared) {
    add({3, 4});
    bad_ = 1;
    clip(10.0f);
    EXPECT_EQ(bad_, 1);
    EXPECT_EQ(norm_, 5.0f);
    EXPECT_EQ(clip_, 1.0f);
}

TEST_F(GlobalNorm, WithoutALimitOnlyTheFactorCounts) {
    add({3, 4});
    for (const float max_norm : {0.0f, -1.0f}) {
        clip(max_norm, 0.125f);
        EXPECT_EQ(norm_, 0.625f);
        EXPECT_EQ(clip_, 0.125f);
    }
}

TEST_F(GlobalNorm, AnEmptyBufferAddsNothing) {
    squares_ = 2;
    float nothing = 7;
    sum_of_squares({View(&nothing, DType::F32, {0}), View(&squares_, DType::F64, {1})}, exec());
    EXPECT_EQ(squares_, 2);
}

}  // namespace
}  // namespace moebius::ops
