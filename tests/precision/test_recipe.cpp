#include "moebius/precision/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "moebius/base/error.h"

namespace moebius::precision {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& name, const std::string& format, const Keywords& keywords) {
    try {
        make_recipe(name, format, keywords);
    } catch (const Error& error) {
        return error.what();
    }
    return "accepted";
}

std::string text(const OperandRule& rule) {
    if (!rule.used) return "-";
    return std::string(name(rule.format.element)) + " " + std::to_string(rule.format.block_rows) + "x" +
           std::to_string(rule.format.block_columns) + (rule.format.power_of_two ? " pow2" : "") +
           (rule.direction == Direction::Row ? " row" : " column");
}

TEST(Recipe, Float8BlockScaling) {
    const auto recipe = make_recipe("Float8BlockScaling", "", {});
    EXPECT_EQ(recipe->scale, ScaleKind::Block128);
    EXPECT_EQ(text(recipe->operand(Role::Input, Use::Forward)), "f8e4m3 1x128 pow2 row");
    EXPECT_EQ(text(recipe->operand(Role::Weight, Use::Forward)), "f8e4m3 128x128 pow2 row");
    EXPECT_EQ(text(recipe->operand(Role::GradOutput, Use::Dgrad)), "f8e4m3 1x128 pow2 row");
    EXPECT_EQ(text(recipe->operand(Role::Weight, Use::Dgrad)), "f8e4m3 128x128 pow2 column");
    EXPECT_EQ(text(recipe->operand(Role::Input, Use::Wgrad)), "f8e4m3 128x1 pow2 column");
    EXPECT_EQ(text(recipe->operand(Role::GradOutput, Use::Wgrad)), "f8e4m3 128x1 pow2 column");
    EXPECT_EQ(text(recipe->operand(Role::Input, Use::Dgrad)), "-");
    EXPECT_EQ(text(recipe->operand(Role::Weight, Use::Wgrad)), "-");
    EXPECT_EQ(text(recipe->operand(Role::GradOutput, Use::Forward)), "-");
    for (const Use use : {Use::Forward, Use::Dgrad, Use::Wgrad}) EXPECT_FALSE(recipe->fast(use));
    const auto any = make_recipe("Float8BlockScaling", "E4M3",
                                 {{"use_f32_scales", true}, {"fp8_quant_bwd_grad.amax_epsilon", 1e-4}});
    EXPECT_FALSE(any->tensor(Role::Input).power_of_two);
    EXPECT_EQ(any->tensor(Role::GradOutput).amax_epsilon, 1e-4f);
    EXPECT_EQ(any->tensor(Role::Input).amax_epsilon, 0.0f);
}

TEST(Recipe, MXFP8BlockScaling) {
    const auto recipe = make_recipe("MXFP8BlockScaling", "HYBRID", {{"margin", int64_t{0}}});
    EXPECT_EQ(text(recipe->operand(Role::Input, Use::Forward)), "f8e4m3 1x32 pow2 row");
    EXPECT_EQ(text(recipe->operand(Role::Weight, Use::Dgrad)), "f8e4m3 32x1 pow2 column");
    EXPECT_EQ(text(recipe->operand(Role::GradOutput, Use::Wgrad)), "f8e5m2 32x1 pow2 column");
    EXPECT_EQ(make_recipe("MXFP8BlockScaling", "", {})->tensor(Role::GradOutput).element, DType::F8E4M3);
}

TEST(Recipe, PerTensorScaling) {
    for (const char* name : {"Float8CurrentScaling", "DelayedScaling"}) {
        const auto recipe = make_recipe(name, "", {});
        EXPECT_EQ(recipe->scale, ScaleKind::Tensor);
        EXPECT_EQ(text(recipe->operand(Role::Input, Use::Forward)), "f8e4m3 0x0 row");
        EXPECT_EQ(text(recipe->operand(Role::GradOutput, Use::Dgrad)), "f8e5m2 0x0 row");
        EXPECT_TRUE(recipe->fast(Use::Forward));
        EXPECT_FALSE(recipe->fast(Use::Dgrad));
        EXPECT_FALSE(recipe->fast(Use::Wgrad));
    }
    const auto current =
        make_recipe("Float8CurrentScaling", "E4M3",
                    {{"use_power_2_scales", true}, {"fp8_gemm_fprop.use_split_accumulator", true}});
    EXPECT_TRUE(current->tensor(Role::Weight).power_of_two);
    EXPECT_FALSE(current->fast(Use::Forward));
    EXPECT_EQ(current->tensor(Role::GradOutput).element, DType::F8E4M3);
    const auto delayed = make_recipe("DelayedScaling", "HYBRID",
                                     {{"margin", int64_t{2}},
                                      {"amax_history_len", int64_t{16}},
                                      {"amax_compute_algo", std::string("most_recent")},
                                      {"reduce_amax", false}});
    EXPECT_EQ(delayed->delayed.margin, 2);
    EXPECT_EQ(delayed->delayed.history_length, 16);
    EXPECT_EQ(delayed->delayed.algorithm, AmaxAlgorithm::MostRecent);
    EXPECT_FALSE(delayed->delayed.reduce_amax);
    EXPECT_EQ(make_recipe("DelayedScaling", "", {})->delayed.history_length, 1024);
}

TEST(Recipe, WrongOnesAreNamed) {
    EXPECT_THAT(refusal("Float9", "", {}), HasSubstr("fp8_recipe = Float9"));
    EXPECT_THAT(refusal("Float9", "", {}), HasSubstr("Float8BlockScaling"));
    EXPECT_THAT(refusal("DelayedScaling", "E5M2", {}), HasSubstr("fp8_format = E5M2"));
    EXPECT_THAT(refusal("DelayedScaling", "", {{"amax_history_len", int64_t{0}}}),
                HasSubstr("amax_history_len = 0"));
    EXPECT_THAT(refusal("DelayedScaling", "", {{"amax_history_len", 3.5}}),
                HasSubstr("amax_history_len = 3.5"));
    EXPECT_THAT(refusal("DelayedScaling", "", {{"amax_compute_algo", std::string("mean")}}),
                HasSubstr("amax_compute_algo = mean"));
    EXPECT_THAT(refusal("DelayedScaling", "", {{"reduce_amax", int64_t{1}}}), HasSubstr("true or false"));
    EXPECT_THAT(refusal("Float8BlockScaling", "", {{"amax_history_len", int64_t{4}}}),
                HasSubstr("amax_history_len = 4 (Float8BlockScaling): there is no such keyword; there are "));
    EXPECT_THAT(refusal("MXFP8BlockScaling", "", {{"margin", int64_t{1}}}), HasSubstr("margin = 1"));
    EXPECT_THAT(refusal("MXFP8BlockScaling", "", {{"fp8_dpa", true}}), HasSubstr("fp8_dpa = true"));
    EXPECT_THAT(refusal("Float8CurrentScaling", "", {{"fp8_quant_fwd_inp.amax_epsilon", -1.0}}),
                HasSubstr("fp8_quant_fwd_inp.amax_epsilon = -1"));
    EXPECT_THAT(refusal("Float8CurrentScaling", "", {{"fp8_quant_fwd_inp.amax_epsilon", 1e39}}),
                HasSubstr("fp8_quant_fwd_inp.amax_epsilon = 1e+39 (Float8CurrentScaling): a number from 0 on "
                          "that fp32 holds"));
    EXPECT_THAT(refusal("MXFP8BlockScaling", "", {{"margin", 0.0}}), HasSubstr("an integer is expected"));
}

TEST(Recipe, ContradictionsAreNamed) {
    EXPECT_THAT(refusal("Float8CurrentScaling", "E4M3", {{"fp8_format", std::string("HYBRID")}}),
                HasSubstr("fp8_format = HYBRID (Float8CurrentScaling): fp8_config.fp8_format = E4M3"));
    EXPECT_THAT(refusal("Float8BlockScaling", "",
                        {{"use_f32_scales", true}, {"fp8_quant_fwd_weight.power_2_scale", true}}),
                HasSubstr("fp8_quant_fwd_weight.power_2_scale = true (Float8BlockScaling): use_f32_scales"));
    EXPECT_THAT(refusal("Float8BlockScaling", "", {{"fp8_gemm_fprop.use_split_accumulator", false}}),
                HasSubstr("use_split_accumulator = false"));
    EXPECT_THAT(refusal("Float8BlockScaling", "", {{"w_block_scaling_dim", int64_t{1}}}),
                HasSubstr("w_block_scaling_dim = 1"));
}

}  // namespace
}  // namespace moebius::precision
