// What the fused experts' MLP on codes refuses, and why a card's kernel does not take it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebius/base/error.h"
#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"
#include "moebius/ops/grouped_mlp_quantized/sm100.h"
#include "moebius/ops/grouped_mlp_quantized/sm90_config.h"
#include "moebius/tensor/quantized.h"

namespace moebius::ops {
namespace {

struct Sizes {
    int64_t rows = 64, hidden = 48, intermediate = 128, experts = 2;
};

// Arguments in memory that nobody reads.
struct Forward {
    Device device = Device::cpu_from_environment();
    HostArena pool;
    ThreadPool threads{1};
    Exec exec{.device = &device, .pool = &pool, .threads = &threads};
    Quantized x, gate_up, down, activation;
    Tensor c, y, sizes, seen;
    GroupedMlpQuantizedArgs args;

    explicit Forward(const Sizes& s = {}, ScaleKind kind = ScaleKind::Block128, bool power_of_two = true,
                     DType dtype = DType::BF16) {
        const auto make = [&](const MatrixShape& matrix, bool column) {
            return Quantized::empty(
                "codes", {.scale = kind, .power_of_two = power_of_two, .column = column, .matrix = matrix},
                exec);
        };
        x = make({s.rows, s.hidden, s.experts}, false);
        gate_up = make({2 * s.intermediate, s.hidden, s.experts, true}, false);
        down = make({s.hidden, s.intermediate, s.experts, true}, false);
        activation = make({s.rows, s.intermediate, s.experts}, true);
        c = Tensor::empty("c", {s.rows, 2 * s.intermediate}, dtype, exec);
        y = Tensor::empty("y", {s.rows, s.hidden}, dtype, exec);
        sizes = Tensor::zeros("sizes", {s.experts}, DType::I64, exec);
        seen = Tensor::empty("seen", {s.experts}, DType::F32, exec);
        args = {.x = x.row(),
                .gate_up = gate_up.row(),
                .down = down.row(),
                .split_sizes = sizes,
                .activation = {.row = activation.row(), .column = activation.column()},
                .c = c,
                .y = y};
    }
    std::string reason() const { return sm90::why_not_mlp_quantized(args, exec); }
};

TEST(GroupedMlpQuantized, SaysWhyNotOnHopper) {
    EXPECT_EQ(Forward().reason(), "");
    EXPECT_THAT(Forward({}, ScaleKind::Tensor).reason(), testing::HasSubstr("not tensor"));
    EXPECT_THAT(Forward({}, ScaleKind::MX32).reason(), testing::HasSubstr("not mx32"));
    EXPECT_THAT(Forward({}, ScaleKind::Block128, false).reason(), testing::HasSubstr("powers of two"));
    EXPECT_THAT(Forward({}, ScaleKind::Block128, true, DType::F32).reason(), testing::HasSubstr("f32"));
    EXPECT_THAT(Forward({.intermediate = 192}).reason(), testing::HasSubstr("192 is not a multiple of 128"));
    EXPECT_THAT(Forward({.hidden = 40}).reason(), testing::HasSubstr("40 is not a multiple of 16"));
    EXPECT_THAT(Forward({.experts = 600}).reason(), testing::HasSubstr("600 experts"));
    Forward interleaved;
    interleaved.args.options.interleave = 32;
    EXPECT_THAT(interleaved.reason(), testing::HasSubstr("glu_interleave_size = 32"));
    Forward observed;
    observed.args.activation.rule.observed_amax = observed.seen;
    EXPECT_THAT(observed.reason(), testing::HasSubstr("statistics"));
}

TEST(GroupedMlpQuantized, SaysWhyNotWithGivenScalesOnHopper) {
    const auto reason = [](const Forward& forward) {
        return sm90::why_not_mlp_quantized_given(forward.args, forward.exec);
    };
    Forward given({}, ScaleKind::Tensor);
    EXPECT_EQ(reason(given), "takes scales that are known before, not those of the activation's own amax");
    given.args.activation.rule = {.scale = given.seen, .observed_amax = given.seen};
    EXPECT_EQ(reason(given), "");
    given.args.activation.rule.counts = given.seen;
    EXPECT_EQ(reason(given), "counts no codes");
    given.args.activation.rule = {.amax = given.seen};
    EXPECT_EQ(reason(given), "");
    EXPECT_EQ(reason(Forward()), "takes scales of kind tensor, not block128");
    Forward narrow({.intermediate = 192}, ScaleKind::Tensor);
    narrow.args.activation.rule.scale = narrow.seen;
    EXPECT_EQ(reason(narrow), "intermediate size 192 is not a multiple of 128");
}

TEST(GroupedMlpQuantized, SaysWhyNotWithTheActivationsOwnScalesOnHopper) {
    const auto reason = [](const Forward& forward) {
        return sm90::why_not_mlp_quantized_amax(forward.args, forward.exec);
    };
    Forward current({}, ScaleKind::Tensor);
    EXPECT_EQ(reason(current), "");
    // Whose codes another operation makes, and counts.
    current.args.activation.rule = {.observed_amax = current.seen, .counts = current.seen};
    EXPECT_EQ(reason(current), "");
    current.args.activation.rule = {.scale = current.seen};
    EXPECT_EQ(reason(current), "takes scales of the activation's own amax, not those known before");
    EXPECT_EQ(reason(Forward()), "takes scales of kind tensor, not block128");
    EXPECT_EQ(reason(Forward({.hidden = 40}, ScaleKind::Tensor)), "hidden size 40 is not a multiple of 16");
}

TEST(GroupedMlpQuantized, SaysWhyNotOnBlackwell) {
    constexpr ScaleKind kMx = ScaleKind::MX32;
    const auto reason = [](const Forward& forward) {
        return sm100::why_not_mlp_quantized(forward.args, forward.exec);
    };
    EXPECT_EQ(reason(Forward({.intermediate = 96}, kMx)), "");
    EXPECT_EQ(reason(Forward()), "takes mx32 scales, not block128");
    EXPECT_EQ(reason(Forward({}, kMx, true, DType::F32)), "keeps c in bf16, not f32");
    EXPECT_EQ(reason(Forward({.intermediate = 80}, kMx)), "intermediate size 80 is not a multiple of 32");
    EXPECT_EQ(reason(Forward({.hidden = 40}, kMx)), "hidden size 40 is not a multiple of 16");
    EXPECT_EQ(reason(Forward({.experts = 600}, kMx)), "has 600 experts, more than 512");
    Forward changed({}, kMx);
    changed.args.options.interleave = 32;
    EXPECT_EQ(reason(changed), "takes gates first, then ups, not glu_interleave_size = 32");
    changed.args.options.interleave = 0;
    changed.args.activation.rule.observed_amax = changed.seen;
    EXPECT_EQ(reason(changed), "keeps no statistics of codes");
    changed.args.activation.rule.observed_amax = {};
    changed.args.activation.row.format.element = DType::F8E5M2;
    EXPECT_EQ(reason(changed), "makes the activation in f8e4m3, not f8e5m2");
}

TEST(GroupedMlpQuantized, RefusesWhatDoesNotFit) {
    Forward mixed;
    const Forward tensor({}, ScaleKind::Tensor);
    mixed.args.down = tensor.down.row();
    EXPECT_THROW(grouped_mlp_quantized(mixed.args, mixed.exec), Error);
    Forward narrow;
    const Forward other({.hidden = 64});
    narrow.args.gate_up = other.gate_up.row();
    EXPECT_THROW(grouped_mlp_quantized(narrow.args, narrow.exec), Error);
    Forward wide;
    wide.args.options.interleave = 48;
    EXPECT_THROW(grouped_mlp_quantized(wide.args, wide.exec), Error);
    Forward output;
    output.args.y = Tensor::empty("y", {64, 48}, DType::F32, output.exec);
    EXPECT_THROW(grouped_mlp_quantized(output.args, output.exec), Error);
}

}  // namespace
}  // namespace moebius::ops
