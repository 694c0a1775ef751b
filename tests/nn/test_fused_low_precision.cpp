// The fused experts' MLP under the recipes against the chain that it replaces, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "moebius/base/philox.h"
#include "moebius/nn/grouped_linear.h"
#include "moebius/nn/low_precision.h"
#include "moebius/nn/sequential.h"

namespace moebius::nn {
namespace {

using precision::make_recipe;
using precision::Recipe;

constexpr int64_t kRows = 190, kUsed = 187, kHidden = 48;

struct Chain {
    Device device = Device::cpu_from_environment();
    HostArena pool;
    ThreadPool threads{2};
    ParameterSet parameters;
    Run run{.exec = {.device = &device, .pool = &pool, .threads = &threads}};
    std::unique_ptr<Sequential> mlp;
    Tensor x, dy, sizes, probs;

    Chain(DType dtype, int64_t intermediate) {
        run.dtype = dtype;
        mlp = grouped_mlp(parameters, "mlp",
                          {.experts = 3,
                           .hidden = kHidden,
                           .intermediate = intermediate,
                           .init_std = 0.3,
                           .down_init_std = 0.2});
        parameters.place({.dtype = dtype}, run.exec);
        parameters.fill(1, run.exec);
        x = random("x", {kRows, kHidden}, dtype);
        dy = random("dy", {kRows, kHidden}, dtype);
        probs = random("probs", {kRows}, DType::F32);
        sizes = Tensor::empty("sizes", {3}, DType::I32, run.exec);
        const int32_t split[] = {133, 0, kUsed - 133};
        copy_from_host(sizes, split, run.exec);
    }
    Tensor random(const char* name, const Shape& shape, DType dtype) const {
        Tensor made = Tensor::empty(name, shape, dtype, run.exec);
        const Philox numbers(7, name);
        for (int64_t i = 0; i < shape.numel(); ++i) {
            const auto value = static_cast<float>(numbers.normal(static_cast<uint64_t>(i)));
            if (dtype == DType::BF16) {
                made.view().as<BF16>()[i] = to_bf16(value);
            } else {
                made.view().as<float>()[i] = value;
            }
        }
        return made;
    }

    using Bytes = std::vector<uint8_t>;
    static Bytes bytes_of(const View& view, int64_t rows) {
        const auto count = static_cast<size_t>(view.bytes() / view.size(0) * rows);
        Bytes bytes(count);
        std::memcpy(bytes.data(), view.data, count);
        return bytes;
    }
    struct Outcome {
        Bytes y, dx, dscales, gradients;
        int64_t kept = 0;
    };
    // Two micro-batches: the second adds to the gradients of the first.
    Outcome step(const std::shared_ptr<const Recipe>& recipe, FusionMode fusion, bool input_stays = false) {
        Outcome out;
        run.fusion = fusion;
        parameters.begin_step();
        for (int micro = 0; micro < 2; ++micro) {
            Forward f;
            {
                const Autocast scope(run, recipe != nullptr, recipe);
                const Tensor extra[] = {sizes, probs, sizes};
                f = mlp->forward({.high = x, .stays = input_stays}, extra, run);
            }
            out.kept = f.context->bytes();
            const FusibleBackward b = mlp->backward(std::move(f.context), {dy}, run);
            out.y = bytes_of(f.y.high, kUsed);
            out.dx = bytes_of(b.dx.high, kUsed);
            out.dscales = bytes_of(b.dextra[1], kUsed);
        }
        parameters.finish_gradients(run.exec);
        out.gradients = bytes_of(parameters.gradients(), parameters.gradients().size(0));
        return out;
    }
};

struct Way {
    const char *recipe, *format;
};

class FusedLowPrecision : public testing::TestWithParam<std::tuple<Way, DType, int64_t>> {};

TEST_P(FusedLowPrecision, GivesTheBitsOfTheChain) {
    const auto [way, dtype, intermediate] = GetParam();
    Chain chain(dtype, intermediate);
    const auto recipe = make_recipe(way.recipe, way.format, {});
    const Chain::Outcome apart = chain.step(recipe, FusionMode::Off);
    EXPECT_FALSE(chain.mlp->fusion_report()[0].fused);
    const Chain::Outcome fused = chain.step(recipe, FusionMode::Strict);
    EXPECT_TRUE(chain.mlp->fusion_report()[0].fused);
    EXPECT_EQ(fused.y, apart.y);
    EXPECT_EQ(fused.dx, apart.dx);
    EXPECT_EQ(fused.dscales, apart.dscales);
    EXPECT_EQ(fused.gradients, apart.gradients);
    const Chain::Outcome high = chain.step(nullptr, FusionMode::Strict);
    EXPECT_NE(fused.y, high.y) << "not quantized at all";
    EXPECT_NE(fused.gradients, high.gradients);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, FusedLowPrecision,
    testing::Combine(testing::Values(Way{"Float8BlockScaling", "E4M3"}, Way{"Float8BlockScaling", "HYBRID"},
                                     Way{"MXFP8BlockScaling", "E4M3"}, Way{"MXFP8BlockScaling", "HYBRID"},
                                     Way{"Float8CurrentScaling", "E4M3"},
                                     Way{"Float8CurrentScaling", "HYBRID"}),
                     testing::Values(DType::F32, DType::BF16), testing::Values<int64_t>(128, 52)),
    [](const auto& info) {
        const Way& way = std::get<0>(info.param);
        return std::string(way.recipe) + way.format + std::string(name(std::get<1>(info.param))) +
               std::to_string(std::get<2>(info.param));
    });

TEST(FusedLowPrecision, SaysWhatIsLeftToAPassOfItsOwn) {
    Chain chain(DType::BF16, 128);
    chain.step(make_recipe("Float8CurrentScaling", "", {}), FusionMode::Strict);
    EXPECT_THAT(chain.mlp->fusion_report()[0].note, testing::HasSubstr("after the last tile"));
    chain.step(make_recipe("Float8BlockScaling", "", {}), FusionMode::Strict);
    EXPECT_EQ(chain.mlp->fusion_report()[0].note, "");
}

// A dry step of a layer of 8x7B's shapes: beside what is there after forward, backward takes dC's column-wise
// codes and the down weight's. The rest lies in gradients that are not written yet, and where C lay.
TEST(FusedLowPrecision, BackwardTakesLittleBesideDcsColumnwiseCodes) {
    constexpr int64_t kCopies = 32768, kWide = 4096, kInner = 14336, kExperts = 8;
    const Device device = Device::cpu_from_environment();
    for (const char* recipe : {"Float8BlockScaling", "Float8CurrentScaling", "MXFP8BlockScaling"}) {
        CountingPool pool, forwards;  // what is kept and backward's; the rest of forward's
        ThreadPool threads{1};
        ParameterSet parameters;
        nn::Run run{.exec = {.device = &device, .pool = &forwards, .threads = &threads, .dry = true},
                    .dtype = DType::BF16,
                    .fusion = FusionMode::Strict};
        run.keep = &pool;
        run.pass.lend_gradients = true;
        const auto mlp =
            grouped_mlp(parameters, "mlp", {.experts = kExperts, .hidden = kWide, .intermediate = kInner});
        parameters.place({.dtype = DType::BF16, .grad_dtype = DType::BF16}, run.exec);
        parameters.begin_step();
        const auto make = [&](Shape shape, DType dtype) {
            return Tensor::empty("rows", shape, dtype, run.exec);
        };
        const Tensor dy = make({kCopies, kWide}, DType::BF16), sizes = make({kExperts}, DType::I32),
                     probs = make({kCopies}, DType::F32);
        ContextPtr context;
        {
            const Autocast scope(run, true, make_recipe(recipe, "", {}));
            const Tensor extra[] = {sizes, probs, sizes};
            context = mlp->forward({make({kCopies, kWide}, DType::BF16)}, extra, run).context;
        }
        run.exec.pool = &pool;
        run.keep = nullptr;
        const int64_t before = pool.report().current_bytes;
        const int64_t dc = kCopies * 2 * kInner, down = kExperts * kWide * kInner;
        const FusibleBackward made = mlp->backward(std::move(context), {dy}, run);
        const int64_t most = pool.report().peak_bytes - before;
        EXPECT_GE(most, dc) << recipe;
        EXPECT_LT(most, dc + down + dc / 12) << recipe;  // scales: a 32nd; rows up to 128: another
    }
}

// The pre-activation aside, a byte an element of the input and the scales: half of what bf16 keeps. The
// activation's codes are made again.
TEST(FusedLowPrecision, KeepsCodesForBackward) {
    Chain chain(DType::BF16, 128);
    const int64_t c = kRows * 2 * 128 * 2;
    const int64_t padded = padded_rows(kRows, 3);
    const Chain::Outcome fused = chain.step(make_recipe("Float8BlockScaling", "", {}), FusionMode::Strict);
    EXPECT_EQ(fused.kept - c, kHidden * (padded + padded / 128 * 4));
}

// Where the input stays anyway, its codes are made again too: C alone is left, and the bits are the same.
TEST(FusedLowPrecision, KeepsNothingOfAnInputThatStays) {
    for (const char* name : {"Float8BlockScaling", "MXFP8BlockScaling", "Float8CurrentScaling"}) {
        Chain chain(DType::BF16, 128);
        const auto recipe = make_recipe(name, "HYBRID", {});
        const Chain::Outcome codes = chain.step(recipe, FusionMode::Strict),
                             again = chain.step(recipe, FusionMode::Strict, true);
        EXPECT_EQ(again.kept, kRows * 2 * 128 * 2) << name;
        EXPECT_LT(again.kept, codes.kept) << name;
        EXPECT_EQ(again.dx, codes.dx) << name;
        EXPECT_EQ(again.gradients, codes.gradients) << name;
    }
}

}  // namespace
}  // namespace moebius::nn
