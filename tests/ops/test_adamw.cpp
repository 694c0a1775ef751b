// AdamW against values worked out by hand, and what it must leave alone.
#include "moebius/ops/adamw/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "moebius/base/philox.h"
#include "moebius/base/split_float.h"
#include "moebius/runtime/transfer.h"
#include "moebius/tensor/tensor.h"
#include "tests/test_machine.h"

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

// Every upper half beside lower halves at the edges of rounding, and at random.
TEST(SplitFloat, JoinsToTheSameBits) {
    const Philox random(7, "remainders");
    const uint32_t kLow[] = {0, 1, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF};
    for (uint32_t high = 0; high < 0x10000; ++high) {
        for (uint32_t i = 0; i < 12; ++i) {
            const uint32_t low =
                i < 8 ? kLow[i] : static_cast<uint32_t>(random.below(12 * high + i, 0x10000));
            const float value = std::bit_cast<float>(high << 16 | low);
            const SplitFloat parts = split_float(value);
            const float joined = join_float(parts);
            if (std::isnan(value)) {
                ASSERT_TRUE(std::isnan(joined) && std::isnan(to_float(parts.rounded))) << high << " " << low;
                continue;
            }
            ASSERT_EQ(std::bit_cast<uint32_t>(joined), high << 16 | low);
            // Nearest, and at ties away from zero.
            const double error = std::abs(static_cast<double>(to_float(parts.rounded))) - std::abs(value);
            const double half =
                0.5 * std::abs(static_cast<double>(std::bit_cast<float>((high & 0x7F80u) << 16)) * 0x1p-7);
            if (std::isfinite(to_float(parts.rounded)) && (high & 0x7F80u) != 0) {
                ASSERT_TRUE(error > -half && error <= half) << high << " " << low;
            }
        }
    }
}

// Ten steps of both forms from one state, each with its own moments: the same masters, bit for bit, in lanes
// and tails; and the bf16 halves are the masters rounded half away from zero.
TEST(AdamWForms, RemaindersGiveTheMastersOfFp32) {
    TestMachine machine;
    constexpr int64_t kCount = 100003;
    const Exec& exec = machine.exec;
    const auto tensor = [&](const char* name, DType dtype) {
        return Tensor::zeros(name, {kCount}, dtype, exec);
    };
    for (const DType state : {DType::F32, DType::BF16}) {
        Tensor grad = tensor("grad", state), master = tensor("master", DType::F32);
        Tensor weights[2] = {tensor("w", DType::BF16), tensor("w", DType::BF16)};
        Tensor m[2] = {tensor("m", state), tensor("m", state)},
               v[2] = {tensor("v", state), tensor("v", state)};
        Tensor remainder = tensor("remainder", DType::I16);
        Tensor rate = Tensor::zeros("rate", {1}, DType::F32, exec),
               clip = Tensor::zeros("clip", {1}, DType::F32, exec);
        Tensor step = Tensor::zeros("step", {1}, DType::I64, exec),
               bad = Tensor::zeros("bad", {1}, DType::I32, exec);
        const auto set = [&](const Tensor& to, const auto& values) {
            copy_to_device(to.view().data, values.data(), values.size() * sizeof values[0], exec);
            synchronize(exec);
        };
        const auto get = [&](const Tensor& from, auto& values) {
            values.resize(static_cast<size_t>(from.view().numel()));
            copy_to_host(values.data(), from.view().data, values.size() * sizeof values[0], exec);
            synchronize(exec);
        };
        std::vector<float> masters(kCount);
        std::vector<BF16> halves(kCount);
        std::vector<int16_t> rest(kCount);
        const Philox random(11, "masters");
        for (size_t i = 0; i < kCount; ++i) {
            masters[i] = static_cast<float>(0.05 * random.normal(i));
            if (i % 3 == 0)  // ties, and their neighbours
                masters[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(masters[i]) & ~0xFFFFu) |
                                                  (0x7FFFu + static_cast<uint32_t>(i % 2)));
            const SplitFloat parts = split_float(masters[i]);
            halves[i] = parts.rounded;
            rest[i] = parts.remainder;
        }
        set(master, masters);
        set(weights[1], halves);
        set(remainder, rest);
        set(rate, std::vector<float>{1e-3f});
        set(clip, std::vector<float>{0.6f});
        for (int64_t t = 1; t <= 10; ++t) {
            std::vector<float> wide(kCount);
            std::vector<BF16> narrow(kCount);
            for (size_t i = 0; i < kCount; ++i) {
                wide[i] = static_cast<float>(random.normal(static_cast<uint64_t>(t) * kCount + i));
                narrow[i] = to_bf16(wide[i]);
            }
            state == DType::F32 ? set(grad, wide) : set(grad, narrow);
            set(step, std::vector<int64_t>{t});
            for (const int form : {0, 1}) {
                adamw({.master = form == 0 ? master.view() : View(),
                       .weights = weights[form],
                       .remainder = form == 1 ? remainder.view() : View(),
                       .grad = grad,
                       .m = m[form],
                       .v = v[form],
                       .learning_rate = rate,
                       .clip = clip,
                       .step = step,
                       .bad = bad,
                       .weight_decay = 0.1f},
                      exec);
            }
        }
        get(master, masters);
        get(weights[1], halves);
        get(remainder, rest);
        std::vector<BF16> even;
        get(weights[0], even);
        for (size_t i = 0; i < kCount; ++i) {
            ASSERT_EQ(std::bit_cast<uint32_t>(join_float({halves[i], rest[i]})),
                      std::bit_cast<uint32_t>(masters[i]))
                << i;
            ASSERT_EQ(halves[i].bits, split_float(masters[i]).rounded.bits) << i;
            ASSERT_EQ(even[i].bits, to_bf16(masters[i]).bits) << i;
        }
    }
}

// Without masters a step below half an ulp of the weight is lost, a larger one rounds to the nearest.
TEST_F(AdamW, WithoutMastersWeightsAreRoundedAfterEveryStep) {
    State state(19);
    state.weights.assign(19, to_bf16(1.0f));
    AdamWArgs args = state.args();
    args.master = View();
    args.weight_decay = 0;
    state.grad.assign(19, 1.0f);
    state.learning_rate = 0x1p-10f;  // below 1 the ulp is 2⁻⁸, half of it 2⁻⁹
    adamw(args, exec());
    for (const BF16 weight : state.weights) EXPECT_EQ(to_float(weight), 1.0f);
    state.step = 2;
    state.learning_rate = 0x1.8p-9f;
    adamw(args, exec());
    for (const BF16 weight : state.weights) EXPECT_EQ(to_float(weight), 1.0f - 0x1p-8f);
}

TEST_F(AdamW, RefusesFormsThatContradict) {
    State state(10);
    std::vector<int16_t> remainder(10);
    AdamWArgs args = state.args();
    args.remainder = View(remainder.data(), DType::I16, {10});
    EXPECT_DEATH(adamw(args, exec()), "without a master");
    args.master = View();
    args.remainder = args.remainder.rows(0, 9);
    EXPECT_DEATH(adamw(args, exec()), "remainder");
    args.weights = View();
    EXPECT_DEATH(adamw(args, exec()), "neither master nor weights");
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
