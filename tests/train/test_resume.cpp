#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebius/base/error.h"
#include "moebius/train/resume.h"

namespace moebius::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The settings alone, of a model with two layers.
std::vector<std::string> changed(const std::string& saved, const std::string& now) {
    const auto state = [](const std::string& yaml) {
        TrainerState state;
        state.model_config = R"({"num_hidden_layers": 2})";
        state.config_yaml = yaml;
        return state;
    };
    return changed_settings(state(saved), state(now));
}

TEST(Resume, SettingsThatChangedAreNamedWithBothValues) {
    const std::string saved =
        "num_train_steps: 10\ngrad_acc_steps: 1\ndataset:\n  micro_batch_size: 8\n  num_workers: 1\n"
        "adamw_kwargs:\n  lr: 0.003\ncheckpoint:\n  save_every_n_steps: 50\n";
    const std::string now =
        "num_train_steps: 20\ngrad_acc_steps: 2\ndataset:\n  micro_batch_size: 4\n  num_workers: 3\n"
        "adamw_kwargs:\n  lr: 0.003\n  eps: 1e-08\ncheckpoint:\n  save_every_n_steps: 5\n";
    EXPECT_THAT(changed(saved, now),
                ElementsAre("adamw_kwargs.eps: (unset) -> 1e-08", "dataset.micro_batch_size: 8 -> 4",
                            "grad_acc_steps: 1 -> 2"));
    EXPECT_THAT(changed(now, now), ElementsAre());
    // What made the first weights does nothing later, and is not said to.
    EXPECT_THAT(changed("init_from_pretrained: null\n", "init_from_pretrained: DIR\n"),
                ElementsAre("init_from_pretrained: null -> DIR (changes nothing: the run has begun)"));
}

TEST(Resume, OptionsOfARecipeAreShownWithTheirDefaults) {
    const auto options = [](const std::string& more) {
        return "fp8_config:\n  fp8_recipe: DelayedScaling\n  fp8_recipe_kwargs:" + more;
    };
    EXPECT_THAT(changed(options(" {}\n"), options("\n    amax_history_len: 5\n    margin: 0\n")),
                ElementsAre("fp8_config.fp8_recipe_kwargs.amax_history_len: 1024 (default) -> 5"));
    EXPECT_THAT(
        changed(options("\n    amax_compute_algo: \"most_recent\"\n    margin: 3\n"), options(" {}\n")),
        ElementsAre("fp8_config.fp8_recipe_kwargs.amax_compute_algo: \"most_recent\" -> \"max\" (default)",
                    "fp8_config.fp8_recipe_kwargs.margin: 3 -> 0 (default)"));
    EXPECT_THAT(changed("layer_precision: null\n", "layer_precision: [fp8, fp8]\n"), ElementsAre());
    EXPECT_THAT(changed("layer_precision: [bf16, fp8]\n", "layer_precision: [\"null\", fp8]\n"),
                ElementsAre());
    EXPECT_THAT(changed("layer_precision: null\n", "layer_precision: [bf16, fp8]\n"),
                ElementsAre("layer_precision: null -> [bf16, fp8]"));
}

TEST(Resume, AnotherTimeBudgetIsSaidToChangeNothing) {
    const auto state = [](const std::string& steps, const std::string& minutes) {
        TrainerState state;
        state.num_train_steps = 73;
        state.config_yaml = "num_train_steps: " + steps + "\ntime_budget_minutes: " + minutes + "\n";
        return state;
    };
    EXPECT_THAT(unused_time_budget(state("0", "10.0"), state("0", "60.0")),
                testing::AllOf(HasSubstr("time_budget_minutes = 60.0 changes nothing (it was 10.0)"),
                               HasSubstr("73 steps"), HasSubstr("num_train_steps=N")));
    EXPECT_EQ(unused_time_budget(state("0", "10.0"), state("0", "10.0")), "");
    EXPECT_EQ(unused_time_budget(state("0", "10.0"), state("80", "60.0")), "") << "the number counts";
    EXPECT_THAT(unused_time_budget(state("73", "null"), state("0", "60.0")), HasSubstr("73 steps"));
}

// The same masters, but weights whose master is a tie round otherwise: the run says so.
TEST(Resume, RemaindersMayComeAndGoAndAreTold) {
    EXPECT_THAT(changed("optimizer_store_param_remainders: false\ngrad_dtype: fp32\n",
                        "optimizer_store_param_remainders: true\ngrad_dtype: bf16\n"),
                ElementsAre("grad_dtype: fp32 -> bf16", "optimizer_store_param_remainders: false -> true"));
}

TrainerState state_of(const std::string& dtype, const std::string& masters, const std::string& moments) {
    TrainerState state;
    state.dtype = dtype;
    state.config_yaml = "optimizer_master_weights: " + masters +
                        "\nadamw_kwargs:\n  lr: 0.1\n  state_dtype: " + moments + "\n";
    return state;
}

TEST(Resume, WhatWouldBeRoundedIsNamedWithBothValues) {
    const auto message = [](const TrainerState& saved, const TrainerState& now) -> std::string {
        try {
            check_state_is_kept(saved, now, "runs/x/step_000004");
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    };
    const TrainerState wide = state_of("bf16", "true", "fp32"), narrow = state_of("bf16", "false", "bf16");
    EXPECT_THAT(message(wide, state_of("bf16", "false", "fp32")),
                testing::AllOf(HasSubstr("optimizer_master_weights = false"), HasSubstr("has true"),
                               HasSubstr("masters"), HasSubstr("step_000004")));
    EXPECT_THAT(message(wide, state_of("bf16", "true", "bf16")),
                testing::AllOf(HasSubstr("adamw_kwargs.state_dtype = bf16"), HasSubstr("has fp32"),
                               HasSubstr("moments")));
    EXPECT_EQ(message(narrow, wide), "") << "widening is exact";
    EXPECT_EQ(message(wide, wide), "");
    // fp32 weights are their own masters.
    EXPECT_EQ(message(state_of("fp32", "true", "fp32"), state_of("fp32", "false", "fp32")), "");
    // Before the keys were there.
    TrainerState old;
    old.dtype = "bf16";
    EXPECT_THAT(message(old, narrow), HasSubstr("optimizer_master_weights"));
    EXPECT_TRUE(has_masters(old));
    EXPECT_FALSE(has_masters(narrow));
    EXPECT_FALSE(has_masters(state_of("fp32", "true", "fp32")));
}

}  // namespace
}  // namespace moebius::train
