#include "moebius/train/schedule.h"

#include <gtest/gtest.h>

namespace moebius::train {
namespace {

// Values of the published recipe's schedule, exact to the digits given.
TEST(Schedule, Golden) {
    const Schedule s{.peak = 0.003, .warmup_steps = 5000, .decay_steps = 55000, .min_ratio = 1e-6};
    EXPECT_NEAR(s.rate(3879), .0023268, 5e-10);
    EXPECT_NEAR(s.rate(16370), .00269467, 5e-9);
    EXPECT_NEAR(s.rate(31387), .00159538, 5e-9);
    EXPECT_NEAR(s.rate(56763), 2.558594e-5, 5e-12);
}

TEST(Schedule, Ends) {
    const Schedule s{.peak = 1.0, .warmup_steps = 10, .decay_steps = 20, .min_ratio = 0.25};
    EXPECT_EQ(s.rate(1), 0.0) << "the first update has rate 0: it fills the moments";
    EXPECT_EQ(s.rate(6), 0.5);
    EXPECT_EQ(s.rate(11), 1.0);
    EXPECT_NEAR(s.rate(31), 0.25, 1e-12);
    EXPECT_EQ(s.rate(32), 0.25);
    EXPECT_EQ(s.rate(1000000), 0.25);
}

TEST(Schedule, WithoutWarmUp) {
    const Schedule s{.peak = 1.0, .warmup_steps = 0, .decay_steps = 10, .min_ratio = 0.0};
    EXPECT_EQ(s.rate(1), 1.0);
    EXPECT_NEAR(s.rate(6), 0.5, 1e-12);
    const Schedule flat{.peak = 2.0, .warmup_steps = 0, .decay_steps = 0, .min_ratio = 1.0};
    EXPECT_EQ(flat.rate(1), 2.0);
    EXPECT_EQ(flat.rate(5), 2.0);
}

// "Never", in whole numbers: the sum of the two does not fit.
TEST(Schedule, LongerThanAnyRun) {
    const Schedule s{.peak = 1.0, .warmup_steps = 10, .decay_steps = INT64_MAX, .min_ratio = 0.0};
    EXPECT_EQ(s.rate(11), 1.0);
    EXPECT_NEAR(s.rate(1000), 1.0, 1e-12);
    const Schedule warming{
        .peak = 1.0, .warmup_steps = INT64_MAX, .decay_steps = INT64_MAX, .min_ratio = 0.5};
    EXPECT_LT(warming.rate(1000), 1e-15);
}

}  // namespace
}  // namespace moebius::train
