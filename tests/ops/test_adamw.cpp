// AdamW against values worked out by hand, and what it must leave alone.
#include "moebius/ops/adamw/adamw.h"

#include <gtest/gtest.h>

#include <vector>

namespace moebius::ops {
namespace {

struct State {
    std::vector<float> master, m, v, grad;
    std::vector<BF16> weights;
    float learning_rate = 0.01f, clip = 1.0f;
    int64_t step = 1;
    int32_t bad = 0;

    explicit State(size_t count)
        : master(count, 1.0f), m(count, 0.0f), v(count, 0.0f), grad(count, 0.0f), weights(count, BF16{0}) {}

    AdamWArgs args() {
        const Shape shape{static_cast<int64_t>(master.size())};
        return {.master = View(master.data(), DType::F32, shape),
                .weights = View(weights.data(), DType::BF16, shape),
                .grad = View(grad.data(), DType::F32, shape),
                .m = View(m.data(), DType::F32, shape),
                .v = View(v.data(), DType::F32, shape),
                .learning_rate = View(&learning_rate, DType::F32, {1}),
                .clip = View(&clip, DType::F32, {1}),
                .step = View(&step, DType::I64, {1}),
                .bad = View(&bad, DType::I32, {1}),
                .beta1 = 0.9f,
                .beta2 = 0.95f,
                .eps = 1e-5f,
                .weight_decay = 0.1f};
    }
};

class AdamW : public testing::Test {
  protected:
    AdamW() : device_(Device::cpu_from_environment()), threads_(1) {}
    Exec exec() { return {.device = &device_, .pool = &pool_, .threads = &threads_}; }

    Device device_;
    HostArena pool_;
    ThreadPool threads_;
};

// p₀ = 1, lr 0.01, β 0.9 and 0.95, eps 1e-5, decay 0.1; gradients 0.5, −0.25, 2 clipped by 1, 0.5, 0.125.
// First step: m = 0.05, v = 0.0125, so m̂ = 0.5, √v̂ = 0.5 and p = 1 − 0.01 · (0.5 / 0.50001 + 0.1).
TEST_F(AdamW, ThreeStepsByHand) {
    const struct {
        float grad, clip;
        double m, v, master;
    } kSteps[] = {
        {0.5f, 1.0f, 0.05, 0.0125, 0.989000199996000},
        {-0.25f, 0.5f, 0.0325, 0.01265625, 0.983263672269198},
        {2.0f, 0.125f, 0.05425, 0.0151484375, 0.976138108446762},
    };
    State state(19);  // a whole vector and a tail
    for (const auto& step : kSteps) {
        state.grad.assign(state.grad.size(), step.grad);
        state.clip = step.clip;
        adamw(state.args(), exec());
        for (size_t i = 0; i < state.master.size(); ++i) {
            // The β are fp32: 1 − 0.95f is off by 2.4e-7 of itself.
            ASSERT_NEAR(state.m[i], step.m, 5e-7 * step.m) << "step " << state.step << ", element " << i;
            ASSERT_NEAR(state.v[i], step.v, 5e-7 * step.v) << "step " << state.step << ", element " << i;
            ASSERT_NEAR(state.master[i], step.master, 1.5e-7) << "step " << state.step << ", element " << i;
            EXPECT_EQ(state.weights[i].bits, to_bf16(state.master[i]).bits);
        }
        ++state.step;
    }
}

// Without a gradient and with no history only the decay moves a weight: 1 − 0.01 · 0.1.
TEST_F(AdamW, DecayAlone) {
    State state(3);
    adamw(state.args(), exec());
    for (const float p : state.master) EXPECT_NEAR(p, 0.999, 6e-8);
    for (const float m : state.m) EXPECT_EQ(m, 0.0f);
}

TEST_F(AdamW, ABadStepWritesNothing) {
    State state(40);
    state.grad.assign(40, 3.0f);
    state.bad = 1;
    state.step = 0;  // not looked at either
    adamw(state.args(), exec());
    for (size_t i = 0; i < 40; ++i) {
        EXPECT_EQ(state.master[i], 1.0f);
        EXPECT_EQ(state.m[i], 0.0f);
        EXPECT_EQ(state.v[i], 0.0f);
        EXPECT_EQ(state.weights[i].bits, 0);
    }
    EXPECT_EQ(state.bad, 1);
}

// The master moves by steps that its bf16 copy cannot show one at a time.
TEST_F(AdamW, SmallStepsAddUpInTheMaster) {
    State state(5);
    state.learning_rate = 1e-4f;
    for (; state.step <= 200; ++state.step) {
        state.grad.assign(5, 1.0f);
        adamw(state.args(), exec());
    }
    EXPECT_NEAR(state.master[4], 1.0 - 200 * 1e-4 * 1.1, 1e-3);
    EXPECT_EQ(state.weights[4].bits, to_bf16(state.master[4]).bits);
    EXPECT_LT(to_float(state.weights[4]), 0.985f);
}

TEST_F(AdamW, DryRunCountsAndTouchesNothing) {
    State state(10);
    Cost total;
    Exec dry = exec();
    dry.dry = true;
    dry.cost = &total;
    state.grad.assign(10, 1.0f);
    adamw(state.args(), dry);
    EXPECT_EQ(state.master[0], 1.0f);
    EXPECT_EQ(total.bytes, 10.0 * (2 * 12 + 4 + 2));
}

TEST_F(AdamW, RefusesAnotherLength) {
    State state(10);
    AdamWArgs args = state.args();
    args.grad = args.grad.rows(0, 9);
    EXPECT_DEATH(adamw(args, exec()), "grad");
}

TEST_F(AdamW, RefusesStepZero) {
    State state(10);
    state.step = 0;
    EXPECT_DEATH(adamw(state.args(), exec()), "step 0");
}

}  // namespace
}  // namespace moebius::ops
