// Cross-entropy where numbers are not ordinary.
#include "moebius/ops/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace moebius::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class CrossEntropy : public testing::Test {
  protected:
    CrossEntropy() : device_(Device::cpu_from_environment()), threads_(2) {}
    Exec exec() { return {.device = &device_, .pool = &pool_, .threads = &threads_}; }

    // One row.
    float loss(std::vector<float> logits, int32_t target) {
        const auto count = static_cast<int64_t>(logits.size());
        float token_loss = -1, scale = 1;
        gradient_.assign(logits.size(), -1.0f);
        cross_entropy({.logits = View(logits.data(), DType::F32, {1, count}),
                       .targets = View(&target, DType::I32, {1}),
                       .token_loss = View(&token_loss, DType::F32, {1}),
                       .dlogits = View(gradient_.data(), DType::F32, {1, count}),
                       .grad_scale = View(&scale, DType::F32, {1}),
                       .bad = View(&bad_, DType::I32, {1})},
                      exec());
        return token_loss;
    }

    Device device_;
    HostArena pool_;
    ThreadPool threads_;
    std::vector<float> gradient_;
    int32_t bad_ = 0;
};

TEST_F(CrossEntropy, EqualLogitsGiveLogOfTheirNumber) {
    for (const size_t count : {size_t{1}, size_t{4}, size_t{16}, size_t{256}, size_t{32000}}) {
        EXPECT_NEAR(loss(std::vector<float>(count, -3.5f), 0), std::log(static_cast<double>(count)), 2e-6);
    }
}

TEST_F(CrossEntropy, NotANumberShowsWhereverItIs) {
    for (const size_t at : {size_t{0}, size_t{5}, size_t{20}, size_t{36}}) {
        for (const float odd : {kNaN, kInf}) {
            std::vector<float> logits(37, 0.5f);
            logits[at] = odd;
            EXPECT_FALSE(std::isfinite(loss(logits, 3))) << odd << " at " << at;
        }
    }
}

TEST_F(CrossEntropy, MaskedOutLogitsHaveNoPart) {
    std::vector<float> logits(20, -kInf);
    logits[2] = logits[17] = 1.0f;
    EXPECT_NEAR(loss(logits, 17), std::log(2.0), 1e-6);
    EXPECT_EQ(gradient_[0], 0.0f);
    EXPECT_NEAR(gradient_[2], 0.5f, 1e-6);
    EXPECT_NEAR(gradient_[17], -0.5f, 1e-6);
}

TEST_F(CrossEntropy, CertainTargetsLoseNothing) {
    std::vector<float> logits(33, -200.0f);
    logits[32] = 100.0f;
    EXPECT_EQ(loss(logits, 32), 0.0f);
    EXPECT_EQ(gradient_[32], 0.0f);
    EXPECT_NEAR(loss(logits, 0), 300.0f, 1e-4);
}

TEST_F(CrossEntropy, IgnoredAndBadTargets) {
    const std::vector<float> logits(18, 1.0f);
    EXPECT_EQ(loss(logits, -100), 0.0f);
    EXPECT_EQ(bad_, 0);
    for (const float g : gradient_) EXPECT_EQ(g, 0.0f);
    for (const int32_t target : {18, -1, -99, -101, std::numeric_limits<int32_t>::max()}) {
        bad_ = 0;
        EXPECT_EQ(loss(logits, target), 0.0f);
        EXPECT_EQ(bad_, 1) << target;
        for (const float g : gradient_) EXPECT_EQ(g, 0.0f);
    }
}

// The gradient of a row sums to zero: softmax has one, the target takes it away.
TEST_F(CrossEntropy, GradientSumsToZero) {
    std::vector<float> logits(300);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = 5.0f * std::sin(static_cast<float>(i));
    loss(logits, 123);
    double total = 0;
    for (const float g : gradient_) total += g;
    EXPECT_NEAR(total, 0.0, 1e-6);
    EXPECT_LT(gradient_[123], 0.0f);
}

}  // namespace
}  // namespace moebius::ops
