#include <gtest/gtest.h>

#include "moebius/base/error.h"
#include "moebius/nn/grouped_linear.h"
#include "moebius/nn/scaled_glu.h"
#include "tests/nn/fixture.h"

namespace moebius::nn {
namespace {

// GroupedLinear(bias) → ScaledSwiGLU → GroupedLinear: what the fuser does not take.
std::unique_ptr<Sequential> with_bias(ParameterSet& parameters) {
    std::vector<std::unique_ptr<Fusible>> ops;
    ops.push_back(std::make_unique<GroupedLinear>(
        parameters, "a",
        GroupedLinearOptions{.num_groups = 2, .in_features = 8, .out_features = 12, .bias = true}));
    ops.push_back(std::make_unique<ScaledGlu>());
    ops.push_back(std::make_unique<GroupedLinear>(
        parameters, "b", GroupedLinearOptions{.num_groups = 2, .in_features = 6, .out_features = 8}));
    return std::make_unique<Sequential>(std::move(ops));
}

struct Chain {
    Device device = Device::cpu_from_environment();
    HostArena pool;
    ThreadPool threads{2};
    ParameterSet parameters;
    Run run{.exec = {.device = &device, .pool = &pool, .threads = &threads}};

    void place() {
        parameters.place({}, run.exec);
        parameters.fill(1, run.exec);
    }
    Forward forward(Sequential& chain, int64_t hidden, std::vector<int32_t> splits) {
        int64_t rows = 0;
        for (const int32_t s : splits) rows += s;
        const Tensor x = Tensor::zeros("x", {rows, hidden}, DType::F32, run.exec);
        for (int64_t i = 0; i < x.view().numel(); ++i)
            x.view().as<float>()[i] = static_cast<float>(i % 7) - 3;
        const Tensor sizes =
            Tensor::empty("splits", {static_cast<int64_t>(splits.size())}, DType::I32, run.exec);
        copy_from_host(sizes, splits.data(), run.exec);
        const Tensor probs = Tensor::zeros("probs", {rows}, DType::F32, run.exec);
        for (int64_t i = 0; i < rows; ++i) probs.view().as<float>()[i] = 0.5f;
        const Tensor extra[] = {sizes, probs, sizes};
        return chain.forward({x}, extra, run);
    }
};

TEST(Sequential, ReportsTheFusion) {
    Chain c;
    const auto chain = grouped_mlp(c.parameters, "mlp", {.experts = 2, .hidden = 8, .intermediate = 6});
    c.place();
    EXPECT_TRUE(chain->fusion_report().empty());
    c.forward(*chain, 8, {3, 2});
    ASSERT_EQ(chain->fusion_report().size(), 1u);
    const FusionReportRow& row = chain->fusion_report()[0];
    EXPECT_TRUE(row.fused) << row.reason;
    EXPECT_EQ(row.pattern, "FusedGroupedMLP");
    EXPECT_EQ(row.window, "GroupedLinear(mlp.gate_up) → ScaledSwiGLU → GroupedLinear(mlp.down)");
    c.run.fusion = FusionMode::Off;
    c.forward(*chain, 8, {3, 2});
    EXPECT_FALSE(chain->fusion_report()[0].fused);
    EXPECT_EQ(chain->fusion_report()[0].reason, "fusion = off");
}

TEST(Sequential, SaysWhyNotAndStrictModeRefuses) {
    Chain c;
    const auto chain = with_bias(c.parameters);
    c.place();
    c.forward(*chain, 8, {3, 2});
    ASSERT_EQ(chain->fusion_report().size(), 1u);
    EXPECT_FALSE(chain->fusion_report()[0].fused);
    EXPECT_EQ(chain->fusion_report()[0].reason, "GroupedLinear(a) has a bias");
    c.run.fusion = FusionMode::Strict;
    try {
        c.forward(*chain, 8, {3, 2});
        FAIL() << "strict mode let it pass";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("fusion = strict"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("has a bias"), std::string::npos) << error.what();
    }
}

TEST(Sequential, AContextOutlivesAChangeOfPlan) {
    Chain c;
    const auto chain = grouped_mlp(c.parameters, "mlp", {.experts = 2, .hidden = 8, .intermediate = 6});
    c.place();
    Forward first = c.forward(*chain, 8, {3, 2});
    c.run.fusion = FusionMode::Off;
    Forward second = c.forward(*chain, 8, {3, 2});
    const Tensor dy = Tensor::zeros("dy", {5, 8}, DType::F32, c.run.exec);
    for (int64_t i = 0; i < 40; ++i) dy.view().as<float>()[i] = 1;
    c.parameters.begin_step();
    const FusibleBackward b = chain->backward(std::move(second.context), {dy}, c.run);
    const FusibleBackward a = chain->backward(std::move(first.context), {dy}, c.run);
    for (int64_t i = 0; i < 40; ++i) {
        EXPECT_EQ(a.dx.high.view().as<float>()[i], b.dx.high.view().as<float>()[i]);
    }
}

// Of the bias a row takes as much as its scale says, and the scale's gradient is what the bias gave.
TEST(GroupedLinear, BiasIsScaledByTheRow) {
    Chain c;
    const GroupedLinearOptions options{
        .num_groups = 2, .in_features = 8, .out_features = 4, .bias = true, .scale_bias = true};
    GroupedLinear linear(c.parameters, "scaled", options);
    c.place();
    ASSERT_EQ(linear.extra_inputs(), 2);
    for (int64_t i = 0; i < 8; ++i) linear.bias()->value.as<float>()[i] = static_cast<float>(i + 1);
    const Tensor x = Tensor::zeros("x", {5, 8}, DType::F32, c.run.exec);
    const Tensor sizes = Tensor::empty("splits", {2}, DType::I64, c.run.exec);
    const int64_t splits[] = {3, 2};
    copy_from_host(sizes, splits, c.run.exec);
    const Tensor scales = Tensor::empty("scales", {5}, DType::F32, c.run.exec);
    for (int64_t row = 0; row < 5; ++row) scales.view().as<float>()[row] = 0.5f * static_cast<float>(row + 1);
    const Tensor extra[] = {sizes, scales};
    c.parameters.begin_step();
    Forward f = linear.forward({x}, extra, c.run);
    const Tensor dy = Tensor::zeros("dy", {5, 4}, DType::F32, c.run.exec);
    for (int64_t i = 0; i < 20; ++i) dy.view().as<float>()[i] = static_cast<float>(i % 3);
    const FusibleBackward b = linear.backward(std::move(f.context), {dy}, c.run);
    std::vector<float> dbias(8, 0);
    for (int64_t row = 0; row < 5; ++row) {
        const int64_t expert = row < 3 ? 0 : 1;
        const float scale = scales.view().as<float>()[row];
        float dscale = 0;
        for (int64_t j = 0; j < 4; ++j) {
            const float bias = linear.bias()->value.as<float>()[4 * expert + j];
            const float d = dy.view().as<float>()[4 * row + j];
            EXPECT_FLOAT_EQ(f.y.high.view().as<float>()[4 * row + j], scale * bias) << row << " " << j;
            dscale += d * bias;
            dbias[static_cast<size_t>(4 * expert + j)] += d * scale;
        }
        EXPECT_FLOAT_EQ(b.dextra[1].view().as<float>()[row], dscale) << row;
    }
    for (int64_t i = 0; i < 8; ++i)
        EXPECT_FLOAT_EQ(linear.bias()->main_grad.as<float>()[i], dbias[static_cast<size_t>(i)]) << i;
}

TEST(GroupedLinear, DelayedWeightGradientsComeWithBackwardDw) {
    Chain c;
    GroupedLinear now(c.parameters, "now", {.num_groups = 2, .in_features = 8, .out_features = 4});
    GroupedLinear later(c.parameters, "later",
                        {.num_groups = 2, .in_features = 8, .out_features = 4, .delay_wgrad_compute = true});
    c.place();
    const Tensor x = Tensor::zeros("x", {5, 8}, DType::F32, c.run.exec);
    for (int64_t i = 0; i < 40; ++i) x.view().as<float>()[i] = static_cast<float>(i);
    const Tensor sizes = Tensor::empty("splits", {2}, DType::I32, c.run.exec);
    const int32_t splits[] = {3, 2};
    copy_from_host(sizes, splits, c.run.exec);
    const Tensor extra[] = {sizes};
    const Tensor dy = Tensor::zeros("dy", {5, 4}, DType::F32, c.run.exec);
    for (int64_t i = 0; i < 20; ++i) dy.view().as<float>()[i] = 1;
    c.parameters.begin_step();
    for (GroupedLinear* linear : {&now, &later}) {
        Forward f = linear->forward({x}, extra, c.run);
        linear->backward(std::move(f.context), {dy}, c.run);
    }
    EXPECT_TRUE(later.weight()->fresh) << "the gradient was made before backward_dw";
    later.backward_dw(c.run);
    for (int64_t i = 0; i < 64; ++i) {
        EXPECT_EQ(later.weight()->main_grad.as<float>()[i], now.weight()->main_grad.as<float>()[i]);
        EXPECT_NE(now.weight()->main_grad.as<float>()[i], 0.0f);
    }
}

}  // namespace
}  // namespace moebius::nn
