// DelayedScaling's rule with numbers that anyone can check.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "moebius/ops/delayed_scaling/delayed_scaling.h"

namespace moebius::ops {
namespace {

struct Scales {
    std::vector<float> history, scale;
    float largest = 448;
    int margin = 0;
    bool most_recent = false;

    // One pass with these amaxes, one a scale.
    void pass(std::vector<float> amaxes, int32_t bad = 0) {
        const auto n = static_cast<int64_t>(scale.size());
        const int64_t length = static_cast<int64_t>(history.size()) / n;
        const auto view = [](std::vector<float>& values, Shape shape) {
            return View(values.data(), DType::F32, shape);
        };
        const Device device = Device::cpu_from_environment();
        HostArena pool;
        ThreadPool threads{1};
        delayed_scaling({.observed = view(amaxes, {static_cast<int64_t>(amaxes.size()) / n, n}),
                         .history = view(history, {n, length}),
                         .scale = view(scale, {n}),
                         .bad = View(&bad, DType::I32, {1}),
                         .largest = largest,
                         .margin = margin,
                         .most_recent = most_recent},
                        {.device = &device, .pool = &pool, .threads = &threads});
    }
};

TEST(DelayedScaling, StartsFromOneAndAppliesTheAmaxBefore) {
    Scales s{.history = {0, 0, 0, 0}, .scale = {1}};
    s.pass({0});
    EXPECT_EQ(s.scale[0], 1.0f) << "an amax of zero keeps the scale";
    s.pass({7});
    EXPECT_EQ(s.scale[0], 64.0f);
    EXPECT_EQ(s.history, (std::vector<float>{0, 0, 0, 7}));
    s.pass({3.5f});
    EXPECT_EQ(s.scale[0], 64.0f) << "the largest of the history";
    EXPECT_EQ(s.history, (std::vector<float>{0, 0, 7, 3.5f}));
    for (int i = 0; i < 3; ++i) s.pass({1.75f});
    EXPECT_EQ(s.scale[0], 128.0f) << "7 has fallen out, 3.5 has not";
    EXPECT_EQ(s.history, (std::vector<float>{0, 1.75f, 1.75f, 1.75f}));
    s.pass({448}, 1);
    EXPECT_EQ(s.scale[0], 128.0f) << "a bad step changes nothing";
    EXPECT_EQ(s.history, (std::vector<float>{0, 1.75f, 1.75f, 1.75f}));
}

TEST(DelayedScaling, MostRecentMarginAndWhatIsNoAmax) {
    Scales recent{.history = {0, 100.0f, 7.0f}, .scale = {1}, .most_recent = true};
    recent.pass({3.5f});
    EXPECT_EQ(recent.scale[0], 128.0f);
    EXPECT_EQ(recent.history, (std::vector<float>{0, 7, 3.5f}));
    Scales margin{.history = {0, 0, 0}, .scale = {1}, .margin = 3};
    margin.pass({3.5f});
    EXPECT_EQ(margin.scale[0], 16.0f);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 0.0f}) {
        for (const bool most_recent : {false, true}) {
            Scales s{.history = {0, 0, 0}, .scale = {5}, .most_recent = most_recent};
            s.pass({bad});
            EXPECT_EQ(s.scale[0], 5.0f);
        }
    }
    Scales tiny{.history = {0, 0, 0}, .scale = {1}, .largest = 57344};
    tiny.pass({1e-38f});
    EXPECT_EQ(tiny.scale[0], std::numeric_limits<float>::max());
    Scales one{.history = {0}, .scale = {1}};
    one.pass({2});
    EXPECT_EQ(one.scale[0], 224.0f);
    EXPECT_EQ(one.history[0], 0.0f);
}

TEST(DelayedScaling, EachScaleHasItsOwnAndPartsAreTakenTogether) {
    Scales s{.history = {0, 0, 0, 1}, .scale = {1, 2}};
    s.pass({7, 0, 3, 0.5f});
    EXPECT_EQ(s.scale, (std::vector<float>{64.0f, 448.0f}));
    EXPECT_EQ(s.history, (std::vector<float>{0, 7, 0, 0.5f}));
}

}  // namespace
}  // namespace moebius::ops
