#include "moebius/nn/low_precision.h"

#include <gtest/gtest.h>

#include <cmath>

#include "moebius/base/error.h"
#include "moebius/base/philox.h"
#include "moebius/comm/communicator.h"
#include "moebius/nn/grouped_linear.h"

namespace moebius::nn {
namespace {

using precision::make_recipe;

constexpr int64_t kRows = 150, kIn = 160, kOut = 96;

struct Layer {
    Device device = Device::cpu_from_environment();
    HostArena pool;
    ThreadPool threads{2};
    ParameterSet parameters;
    Run run{.exec = {.device = &device, .pool = &pool, .threads = &threads}};
    GroupedLinear linear{parameters, "w", {.num_groups = 3, .in_features = kIn, .out_features = kOut}};
    Tensor x, dy, sizes;

    // Whole numbers from −3 to 3, which scales that are powers of two leave exact; or normal ones.
    explicit Layer(bool integers) {
        parameters.place({}, run.exec);
        x = Tensor::empty("x", {kRows, kIn}, DType::F32, run.exec);
        dy = Tensor::empty("dy", {kRows, kOut}, DType::F32, run.exec);
        for (const auto& [view, name] :
             {std::pair{x.view(), "x"}, {dy.view(), "dy"}, {parameters.values(), "w"}}) {
            const Philox random(3, name);
            for (int64_t i = 0; i < view.numel(); ++i) {
                const auto index = static_cast<uint64_t>(i);
                view.as<float>()[i] = static_cast<float>(
                    integers ? static_cast<double>(random.below(index, 7)) - 3.0 : random.normal(index));
            }
        }
        sizes = Tensor::empty("sizes", {3}, DType::I32, run.exec);
        const int32_t split[] = {101, 0, 49};
        copy_from_host(sizes, split, run.exec);
    }

    struct Outcome {
        std::vector<float> y, dx, dw;
    };
    static std::vector<float> values(const View& view) {
        return {view.as<float>(), view.as<float>() + view.numel()};
    }
    Outcome step(std::shared_ptr<const precision::Recipe> recipe) {
        Outcome out;
        parameters.begin_step();
        Forward f;
        {
            const Autocast scope(run, recipe != nullptr, recipe);
            const Tensor extra[] = {sizes};
            f = linear.forward({x}, extra, run);
        }
        // Out of the scope: backward goes by its forward's recipe.
        const FusibleBackward b = linear.backward(std::move(f.context), {dy}, run);
        out.y = values(f.y.high);
        out.dx = values(b.dx.high);
        out.dw = values(linear.weight()->main_grad);
        return out;
    }
};

double difference(const std::vector<float>& a, const std::vector<float>& b) {
    double error = 0, norm = 0;
    EXPECT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
        error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
        norm += double{b[i]} * b[i];
    }
    EXPECT_GT(norm, 0);
    return std::sqrt(error / norm);
}

TEST(LowPrecision, WholeNumbersStayExact) {
    for (const char* name : {"Float8BlockScaling", "MXFP8BlockScaling"}) {
        Layer layer(true);
        const Layer::Outcome high = layer.step(nullptr), low = layer.step(make_recipe(name, "", {}));
        EXPECT_EQ(low.y, high.y) << name;
        EXPECT_EQ(low.dx, high.dx) << name;
        EXPECT_EQ(low.dw, high.dw) << name;
        EXPECT_NE(low.dw[0], 0.0f);
    }
}

// E4M3 rounds to within 2^−4, evenly spread: 2^−4 / √3 / √2 or so of each factor, √2 of that of a product;
// E5M2 twice.
TEST(LowPrecision, ErrorsAreThoseOfTheFormats) {
    Layer layer(false);
    const Layer::Outcome high = layer.step(nullptr);
    for (const char* name : {"Float8BlockScaling", "MXFP8BlockScaling", "Float8CurrentScaling"}) {
        for (const char* format : {"E4M3", "HYBRID"}) {
            const Layer::Outcome low = layer.step(make_recipe(name, format, {}));
            const double gradient = std::string(format) == "E4M3" ? 0.05 : 0.09;
            for (const auto& [error, most] : {std::pair{difference(low.y, high.y), 0.05},
                                              {difference(low.dx, high.dx), gradient},
                                              {difference(low.dw, high.dw), gradient}}) {
                EXPECT_LT(error, most) << name << " " << format;
                EXPECT_GT(error, 0.01) << name << " " << format << ": not quantized at all?";
            }
        }
    }
}

TEST(LowPrecision, KeepsOneByteAnElementForBackward) {
    Layer layer(false);
    const auto recipe = make_recipe("Float8BlockScaling", "", {});
    const Autocast scope(layer.run, true, recipe);
    const Tensor extra[] = {layer.sizes};
    const int64_t before = layer.pool.report().current_bytes;
    Forward f = layer.linear.forward({layer.x}, extra, layer.run);
    const int64_t padded = padded_rows(kRows, 3);
    const int64_t expected = kIn * padded + padded / 128 * kIn * 4;
    EXPECT_EQ(f.context->bytes(), expected);
    EXPECT_EQ(layer.pool.report().current_bytes - before, kRows * kOut * 4 + expected);
    layer.run.pass.save = false;
    EXPECT_EQ(layer.linear.forward({layer.x}, extra, layer.run).context, nullptr);
}

TEST(LowPrecision, DelayedWeightGradientsAreTheSame) {
    Layer layer(false);
    const auto recipe = make_recipe("MXFP8BlockScaling", "", {});
    const Layer::Outcome now = layer.step(recipe);
    ParameterSet parameters;
    GroupedLinear later(
        parameters, "w",
        {.num_groups = 3, .in_features = kIn, .out_features = kOut, .delay_wgrad_compute = true});
    parameters.place({}, layer.run.exec);
    copy_from_host(parameters.values(), layer.parameters.values().data, layer.run.exec);
    parameters.begin_step();
    const Autocast scope(layer.run, true, recipe);
    const Tensor extra[] = {layer.sizes};
    Forward f = later.forward({layer.x}, extra, layer.run);
    later.backward(std::move(f.context), {layer.dy}, layer.run);
    EXPECT_TRUE(later.weight()->fresh);
    later.backward_dw(layer.run);
    EXPECT_EQ(Layer::values(later.weight()->main_grad), now.dw);
}

TEST(Autocast, ScopesNest) {
    nn::Run run;
    const auto mx = make_recipe("MXFP8BlockScaling", "", {}),
               block = make_recipe("Float8BlockScaling", "", {});
    {
        const Autocast outer(run, true, mx);
        EXPECT_EQ(run.recipe, mx);
        {
            const Autocast off(run, false, mx);
            EXPECT_EQ(run.recipe, nullptr);
            const Autocast inner(run, true, block);
            EXPECT_EQ(run.recipe, block);
        }
        EXPECT_EQ(run.recipe, mx);
    }
    EXPECT_EQ(run.recipe, nullptr);
}

TEST(LowPrecision, WhatIsNotThereIsRefused) {
    Layer layer(false);
    EXPECT_THROW(layer.step(make_recipe("DelayedScaling", "", {})), Error);
    ParameterSet parameters;
    GroupedLinear biased(parameters, "b",
                         {.num_groups = 3, .in_features = kIn, .out_features = kOut, .bias = true});
    parameters.place({}, layer.run.exec);
    const Autocast scope(layer.run, true, make_recipe("MXFP8BlockScaling", "", {}));
    const Tensor extra[] = {layer.sizes};
    EXPECT_THROW(biased.forward({layer.x}, extra, layer.run), Error);
}

}  // namespace
}  // namespace moebius::nn
