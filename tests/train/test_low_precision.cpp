// Whole runs under every recipe, on the device that tests of models run on.
#include "moebius/train/low_precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "moebius/base/error.h"
#include "moebius/train/resolve.h"
#include "tests/train/trainer_fixture.h"

namespace moebius::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::vector<std::string>> kRecipes = {
    {"fp8_config.fp8_recipe=Float8BlockScaling"},
    {"fp8_config.fp8_recipe=MXFP8BlockScaling"},
    {"fp8_config.fp8_recipe=Float8CurrentScaling", "fp8_config.fp8_format=HYBRID"},
    {"fp8_config.fp8_recipe=DelayedScaling", "fp8_config.fp8_format=HYBRID",
     "fp8_config.fp8_recipe_kwargs.amax_history_len=3"},
};

class LowPrecisionRun : public Trainer {
  protected:
    static std::vector<std::string> keys(size_t recipe, const std::vector<std::string>& more = {}) {
        return with(with({"dtype=bf16", "fp8_config.enabled=true"}, kRecipes[recipe]), more);
    }
    static std::string name(size_t recipe) { return "recipe" + std::to_string(recipe); }
    std::string notes() const {
        std::string all;
        for (const std::string& line : sink_.notes) all += line + "\n";
        return all;
    }
    std::string message(const std::vector<std::string>& more) {
        try {
            run(overrides("refused", more));
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    }
};

// Nearly all of what bf16 learns: rounding of 2⁻⁴ in the operands is noise to a gradient of many terms.
TEST_F(LowPrecisionRun, EveryRecipeLearns) {
    const std::vector<std::string> longer = {"num_train_steps=40", "lr_scheduler_kwargs.num_decay_steps=60",
                                             "checkpoint.save_every_n_steps=100"};
    const auto losses = [&](const std::string& folder, const std::vector<std::string>& run_keys) {
        run(overrides(folder, with(run_keys, longer)));
        std::vector<double> values;
        for (const Progress& p : sink_.steps) values.push_back(p.loss);
        return values;
    };
    const std::vector<double> wide = losses("bf16", {"dtype=bf16"});
    ASSERT_EQ(wide.size(), 40u);
    const double learned = wide.front() - wide.back();
    ASSERT_GT(learned, 0.5);
    for (size_t r = 0; r < kRecipes.size(); ++r) {
        const std::vector<double> low = losses(name(r), keys(r));
        ASSERT_EQ(low.size(), wide.size());
        EXPECT_NE(low[1], wide[1]) << "not quantized at all?";
        EXPECT_NEAR(low.back(), wide.back(), 0.1 * learned) << kRecipes[r][0];
        for (const double loss : low) EXPECT_TRUE(std::isfinite(loss));
        EXPECT_THAT(notes(), AllOf(HasSubstr("low precision: "), HasSubstr("in 2 of 2 layers")));
        const std::string all = notes();
        const size_t said = all.find("bytes a token");
        ASSERT_NE(said, std::string::npos);
        EXPECT_EQ(all.find("bytes a token", said + 1), std::string::npos) << "once is enough";
    }
}

// The report names the variants that the fused operations run; on the CPU strict has nothing to refuse.
TEST_F(LowPrecisionRun, SaysWhichVariantsTheExpertsRun) {
    const std::vector<std::string> one = {"expert_ffn_mode=fused_grouped_mlp", "num_train_steps=1",
                                          "device=cpu", "fusion=strict"};
    run(overrides("wide", with({"dtype=bf16"}, one)));
    EXPECT_THAT(notes(), HasSubstr("experts: FusedGroupedMLP in all 2 layers; grouped_mlp = cpu_fused; "
                                   "grouped_mlp_backward = cpu_fused\n"));
    run(overrides("low", keys(0, one)));
    EXPECT_THAT(notes(),
                HasSubstr("grouped_mlp_quantized = cpu_composed, composed of several operations: no variant "
                          "for this device fuses them; grouped_mlp_quantized_backward = cpu_composed"));
    // With a layer of its own the other operation runs too.
    run(overrides("mixed", keys(0, with(one, {"config_kwargs.num_layers_at_end_in_bf16=1"}))));
    EXPECT_THAT(notes(), AllOf(HasSubstr("grouped_mlp_quantized = cpu_composed"),
                               HasSubstr("grouped_mlp = cpu_fused")));
}

// A model folder says what it was trained under; one of a run without a recipe says nothing.
TEST_F(LowPrecisionRun, FirstWeightsOfAnotherRecipeAreSaidAloud) {
    const std::vector<std::string> one = {"num_train_steps=1", "checkpoint.save_every_n_steps=1"};
    run(overrides("low", keys(2, one)));
    run(overrides("wide", with({"dtype=bf16"}, one)));
    run(overrides("none", keys(2, with(one, {"layer_precision=[bf16,bf16]"}))));
    const auto from = [&](const std::string& folder) {
        return std::vector<std::string>{
            "init_from_pretrained=" + (folder_ / folder / "checkpoints" / "step_000001" / "model").string()};
    };
    int runs = 0;
    const auto said = [&](const std::string& folder, const std::vector<std::string>& more) {
        run(overrides("second" + std::to_string(runs++), with(with(more, one), from(folder))));
        return notes();
    };
    const char* trained = "was trained under Float8CurrentScaling (HYBRID), here it is computed with ";
    EXPECT_THAT(said("low", {"dtype=bf16"}), HasSubstr(std::string("low/checkpoints/step_000001/model ") +
                                                       trained + "no recipe (fp8_config"));
    EXPECT_THAT(said("low", keys(0)), HasSubstr(std::string(trained) + "Float8BlockScaling (E4M3)"));
    for (const std::string& all :
         {said("low", keys(2)), said("wide", keys(2)), said("none", {"dtype=bf16"})}) {
        EXPECT_THAT(all, AllOf(HasSubstr("weights from "), testing::Not(HasSubstr("was trained under"))));
    }
}

TEST_F(LowPrecisionRun, ResumeIsBitForBit) {
    for (size_t r = 0; r < kRecipes.size(); ++r) {
        const std::string whole = "whole" + name(r), parts = "parts" + name(r);
        run(overrides(whole, keys(r)));
        EXPECT_TRUE(run(overrides(parts, keys(r, {"num_train_steps=4"}))).complete);
        EXPECT_EQ(run(overrides(parts, keys(r))).first_step, 4);
        EXPECT_TRUE(tensors(whole, 6) == tensors(parts, 6)) << kRecipes[r][0];
        const bool state =
            tensors(whole, 6).find("layers.1.moe.down.grad_output.amax_history") != std::string::npos;
        EXPECT_EQ(state, r == 3);
        const auto a = metrics(whole), b = metrics(parts);
        ASSERT_EQ(a.size(), b.size());
        for (size_t line = 0; line < a.size(); ++line) EXPECT_EQ(a[line]["loss"], b[line]["loss"]);
    }
}

TEST_F(LowPrecisionRun, AnyThreadCountGivesTheSameBits) {
    for (size_t r = 0; r < kRecipes.size(); ++r) {
        run(overrides("two" + name(r), keys(r, {"num_train_steps=3"})));
        for (const char* threads : {"1", "5"}) {
            const std::string folder = threads + name(r);
            run(overrides(folder, keys(r, {"num_train_steps=3", std::string("num_threads=") + threads})));
            EXPECT_TRUE(tensors(folder, 3) == tensors("two" + name(r), 3)) << kRecipes[r][0] << threads;
        }
    }
}

TEST_F(LowPrecisionRun, AGraphAndNoGraphGiveTheSameBits) {
    if (test_device() != "cuda") GTEST_SKIP() << "graphs are CUDA's";
    for (size_t r = 0; r < kRecipes.size(); ++r) {
        for (const char* mode : {"on", "off"}) {
            run(overrides(name(r) + mode,
                          keys(r, {std::string("cuda_graph=") + mode, "validation.enabled=true",
                                   "validation.fraction=0.2", "validation.eval_interval=1",
                                   "validation.num_batches=2", "fp8_stats_config.enabled=true"})));
        }
        for (const int step : {3, 6})
            EXPECT_TRUE(tensors(name(r) + "on", step) == tensors(name(r) + "off", step)) << name(r) << step;
        const auto on = metrics(name(r) + "on"), off = metrics(name(r) + "off");
        ASSERT_EQ(on.size(), off.size());
        for (size_t i = 0; i < on.size(); ++i) {
            EXPECT_EQ(on[i].value("fp8_stats", nlohmann::json()),
                      off[i].value("fp8_stats", nlohmann::json()));
        }
    }
}

// With one micro-batch a step a GPU does not keep quantized weights.
TEST_F(LowPrecisionRun, KeptWeightsAndThoseQuantizedForEachUseGiveTheSameBits) {
    for (size_t r = 0; r < kRecipes.size(); ++r) {
        for (const std::string micro_batches : {"1", "2"}) {
            const std::vector<std::string> shared = {"grad_acc_steps=" + micro_batches, "num_train_steps=3"};
            const std::string both = name(r) + "_" + micro_batches;
            const bool kept = micro_batches == "2" || test_device() == "cpu";
            run(overrides(both + "auto", keys(r, shared)));
            EXPECT_EQ(notes().find("quantized weights take") != std::string::npos, kept) << notes();
            run(overrides(both + "other", keys(r, with(shared, {std::string("fp8_config.keep_weights=") +
                                                                (kept ? "off" : "on")}))));
            EXPECT_EQ(notes().find("quantized for each use") != std::string::npos, kept) << notes();
            EXPECT_TRUE(tensors(both + "auto", 3) == tensors(both + "other", 3)) << both;
        }
    }
    // A run may go on the other way.
    run(overrides("goes_on", keys(0, {"num_train_steps=3"})));
    run(overrides("goes_on", keys(0, {"fp8_config.keep_weights=off"})));
    EXPECT_THAT(notes(), testing::Not(HasSubstr("keep_weights:")));
    run(overrides("whole", keys(0)));
    EXPECT_TRUE(tensors("goes_on", 6) == tensors("whole", 6));
}

// Two ways through the same codes: only sums may differ in order.
TEST_F(LowPrecisionRun, AllExpertModesLearnTheSame) {
    std::vector<const char*> modes = {"grouped_linear", "fused_grouped_mlp"};
    if (test_device() != "cuda") modes.push_back("loop");
    for (size_t r = 0; r < kRecipes.size(); ++r) {
        std::vector<std::vector<double>> losses;
        for (const char* mode : modes) {
            run(overrides(name(r) + mode, keys(r, {std::string("expert_ffn_mode=") + mode})));
            losses.emplace_back();
            for (const Progress& p : sink_.steps) losses.back().push_back(p.loss);
        }
        for (size_t mode = 1; mode < losses.size(); ++mode) {
            for (size_t i = 0; i < losses[0].size(); ++i) {
                EXPECT_NEAR(losses[0][i], losses[mode][i], 1e-3 * losses[0][i])
                    << kRecipes[r][0] << " " << modes[mode] << " step " << i;
            }
        }
    }
}

TEST_F(LowPrecisionRun, StatisticsAreInTheMetrics) {
    for (size_t r = 0; r < kRecipes.size(); ++r) {
        run(overrides(name(r), keys(r, {"fp8_stats_config.enabled=true"})));
        size_t tensors_seen = 0;
        for (const auto& line : metrics(name(r))) {
            if (!line.contains("loss")) continue;
            ASSERT_TRUE(line.contains("fp8_stats"));
            const auto& stats = line["fp8_stats"];
            tensors_seen = stats.size();
            for (const char* tensor : {"layers.0.attention.qkv.input", "layers.1.attention.out.weight",
                                       "layers.0.moe.gate_up.grad_output", "layers.1.moe.down.weight"}) {
                ASSERT_TRUE(stats.contains(tensor)) << tensor;
                EXPECT_GT(stats[tensor]["amax"].get<double>(), 0) << tensor;
                EXPECT_EQ(stats[tensor].contains("scale"), r >= 2);
                for (const char* share : {"underflow", "saturation"}) {
                    EXPECT_GE(stats[tensor][share].get<double>(), 0);
                    EXPECT_LE(stats[tensor][share].get<double>(), 1);
                }
                // A scale of its own amax takes that to the largest code, or by a rounding beyond it.
                if (r == 2) {
                    EXPECT_LT(stats[tensor]["saturation"], 0.01);
                }
            }
        }
        EXPECT_EQ(tensors_seen, 2u * 4 * 3);
        run(overrides(name(r) + "plain", keys(r)));
        EXPECT_TRUE(tensors(name(r), 6) == tensors(name(r) + "plain", 6)) << "watching changed the run";
        EXPECT_FALSE(metrics(name(r) + "plain").front().contains("fp8_stats"));
    }
}

TEST_F(LowPrecisionRun, LayersMayStayInBf16) {
    const std::vector<std::string> plain = {"dtype=bf16", "num_train_steps=3"};
    run(overrides("plain", plain));
    run(overrides("none", keys(0, {"layer_precision=[bf16, null]", "num_train_steps=3"})));
    EXPECT_TRUE(tensors("none", 3) == tensors("plain", 3)) << "no layer is in FP8";
    run(overrides("listed", keys(3, {"layer_precision=[bf16, fp8]", "num_train_steps=3"})));
    EXPECT_THAT(notes(), HasSubstr("in 1 of 2 layers"));
    run(overrides("counted", keys(3, {"config_kwargs.num_layers_at_start_in_bf16=1", "num_train_steps=3"})));
    const std::string listed = tensors("listed", 3);
    EXPECT_TRUE(listed == tensors("counted", 3));
    EXPECT_EQ(listed.find("layers.0.moe.down.input.scale"), std::string::npos);
    EXPECT_NE(listed.find("layers.1.moe.down.input.scale"), std::string::npos);
    run(overrides("end", keys(3, {"config_kwargs.num_layers_at_end_in_bf16=1", "num_train_steps=3"})));
    EXPECT_FALSE(listed == tensors("end", 3));
}

TEST_F(LowPrecisionRun, ARunGoesOnUnderAnotherRecipeAndSaysSo) {
    run(overrides("run", {"dtype=bf16", "num_train_steps=2"}));
    const auto go_on = [&](const std::vector<std::string>& more, int steps) {
        EXPECT_EQ(run(overrides("run", with(more, {"num_train_steps=" + std::to_string(steps)}))).last_step,
                  steps);
    };
    go_on(keys(3), 3);
    EXPECT_THAT(notes(), AllOf(HasSubstr("fp8_config.enabled: false -> true"),
                               HasSubstr("amax histories begin anew")));
    go_on(keys(3), 4);
    EXPECT_THAT(notes(), testing::Not(HasSubstr("anew")));
    go_on(keys(3, {"fp8_config.fp8_recipe_kwargs.margin=0"}), 5);
    EXPECT_THAT(notes(), testing::Not(HasSubstr("anew"))) << "an option set to its own default";
    go_on(keys(3, {"fp8_config.fp8_recipe_kwargs.amax_history_len=5"}), 6);
    EXPECT_THAT(notes(), AllOf(HasSubstr("amax_history_len"), HasSubstr("amax histories begin anew")));
    go_on(keys(0), 7);
    EXPECT_THAT(notes(), HasSubstr("fp8_config.fp8_recipe: DelayedScaling -> Float8BlockScaling"));
    go_on(keys(3, {"config_kwargs.num_layers_at_start_in_bf16=1"}), 8);
    EXPECT_THAT(notes(), HasSubstr("amax histories begin anew"));
    go_on(keys(3, {"fp8_config.fp8_recipe_kwargs.amax_history_len=5"}), 9);
    EXPECT_THAT(notes(), HasSubstr("num_layers_at_start_in_bf16: 1 -> (unset)")) << "a key that went";
}

const std::vector<std::string> kCodesAlone = {"fp8_config.quantized_model_init_kwargs.enabled=true"};
const std::string kPreserve = "fp8_config.quantized_model_init_kwargs.preserve_high_precision_init_val=true";

TEST_F(LowPrecisionRun, WeightsMayBeHeldAsCodesAndMastersAlone) {
    for (size_t r = 0; r < kRecipes.size(); ++r) {
        const std::vector<std::string> codes = keys(r, with(kCodesAlone, {kPreserve}));
        const std::string whole = "whole" + name(r), parts = "parts" + name(r);
        run(overrides("both" + name(r), keys(r)));
        const std::vector<Progress> both = sink_.steps;
        run(overrides(whole, codes));
        EXPECT_THAT(notes(), HasSubstr("beside fp32 masters alone"));
        // Codes of masters in place of masters rounded to bf16: a difference of 2⁻⁹ before one of 2⁻⁴.
        for (size_t i = 0; i < both.size(); ++i)
            EXPECT_NEAR(sink_.steps[i].loss, both[i].loss, 0.02 * both[i].loss) << kRecipes[r][0];
        run(overrides(parts, with(codes, {"num_train_steps=4"})));
        run(overrides(parts, codes));
        EXPECT_TRUE(tensors(whole, 6) == tensors(parts, 6)) << kRecipes[r][0];
        run(overrides("rounded" + name(r), keys(r, kCodesAlone)));
        EXPECT_FALSE(tensors("rounded" + name(r), 6) == tensors(whole, 6)) << "masters began as the codes";
    }
    // fp32 weights are their own masters anyway.
    const std::vector<std::string> wide = {"dtype=fp32", "num_train_steps=3"};
    run(overrides("fp32", with(keys(0), wide)));
    run(overrides("fp32_codes", with(keys(0, with(kCodesAlone, {kPreserve})), wide)));
    EXPECT_TRUE(tensors("fp32", 3) == tensors("fp32_codes", 3));
}

TEST_F(LowPrecisionRun, WhichWeightsAreHeldAsCodesStaysWithinARun) {
    run(overrides("refused", keys(0, {"num_train_steps=2"})));
    EXPECT_THAT(message(keys(0, kCodesAlone)),
                AllOf(HasSubstr("fp8_config.quantized_model_init_kwargs.enabled = true"),
                      HasSubstr("has false"), HasSubstr("init_from_pretrained=")));
    EXPECT_THAT(message(keys(3, kCodesAlone)),
                HasSubstr("fp8_config.quantized_model_init_kwargs.enabled = true"))
        << "the recipe alone";
    run(overrides("refused", keys(0, with(kCodesAlone, {"checkpoint.resume_from_checkpoint=false",
                                                        "num_train_steps=2"}))));
    EXPECT_THAT(message(keys(0, with(kCodesAlone, {"layer_precision=[fp8, bf16]"}))),
                AllOf(HasSubstr("layer_precision = [fp8, bf16]"), HasSubstr("has null")));
    EXPECT_THAT(message(keys(0, with(kCodesAlone, {"config_kwargs.num_layers_at_start_in_bf16=1"}))),
                AllOf(HasSubstr("config_kwargs.num_layers_at_start_in_bf16 = 1"), HasSubstr("has 0")));
    EXPECT_EQ(message(keys(0, with(kCodesAlone, {kPreserve}))), "no error");
}

TEST_F(LowPrecisionRun, SaysWhatHistoriesTake) {
    const std::string length = "fp8_config.fp8_recipe_kwargs.amax_history_len=65536";
    run(overrides("long", keys(3, {"num_train_steps=1", length})));
    // In each of two layers attention's two weights and two of four experts: 20 scales of 3 roles.
    EXPECT_THAT(notes(), HasSubstr("; amax histories take 15.0 MiB"));
    run(overrides("other", keys(0, {"num_train_steps=1"})));
    EXPECT_THAT(notes(), testing::Not(HasSubstr("amax histories")));
}

// A recipe's default is a value like another, and is printed.
TEST_F(LowPrecisionRun, FormatsOfWeightsHeldAsCodesAreNamedAsTheyWereGiven) {
    for (size_t r = 0; r < kRecipes.size(); ++r) {
        for (const auto& [before, after] : {std::pair("E4M3", "HYBRID"), std::pair("HYBRID", "E4M3")}) {
            const auto format = [&](const char* name) {
                return keys(r, with(kCodesAlone, {std::string("fp8_config.fp8_format=") + name}));
            };
            run(overrides("refused", with(format(before),
                                          {"checkpoint.resume_from_checkpoint=false", "num_train_steps=1"})));
            EXPECT_THAT(message(format(after)),
                        AllOf(HasSubstr(std::string("fp8_config.fp8_format = ") + after),
                              HasSubstr(std::string("has ") + before)));
        }
    }
    const std::vector<std::string> delayed =
        with(kCodesAlone, {"dtype=bf16", "fp8_config.enabled=true", "fp8_config.fp8_recipe=DelayedScaling"});
    run(overrides("refused",
                  with(delayed, {"checkpoint.resume_from_checkpoint=false", "num_train_steps=1"})));
    EXPECT_THAT(message(with(delayed, {"fp8_config.fp8_recipe_kwargs.amax_history_len=5"})),
                AllOf(HasSubstr("amax_history_len = 5"), HasSubstr("has 1024 (default)")));
}

// How layers are listed is of no matter, which are quantized is.
TEST_F(LowPrecisionRun, TheSameLayersListedOtherwiseGoOn) {
    const std::vector<std::vector<std::string>> spellings = {{"layer_precision=[bf16, fp8]"},
                                                             {"layer_precision=[null, fp8]"},
                                                             {"config_kwargs.num_layers_at_start_in_bf16=1"}};
    for (const bool codes : {false, true}) {
        const std::string name = codes ? "codes" : "histories";
        const auto go_on = [&](const std::vector<std::string>& layers, int steps) {
            const std::vector<std::string> all =
                with(codes ? kCodesAlone : std::vector<std::string>(), layers);
            run(overrides(name, keys(3, with(all, {"num_train_steps=" + std::to_string(steps)}))));
            EXPECT_THAT(notes(),
                        AllOf(testing::Not(HasSubstr("anew")), testing::Not(HasSubstr("layer_precision:")),
                              testing::Not(HasSubstr("num_layers_at_start_in_bf16:"))));
        };
        for (int i = 0; i < 3; ++i) go_on(spellings[static_cast<size_t>(i)], i + 1);
        fs::remove_all(folder_ / name);
        go_on({}, 1);
        go_on({"layer_precision=[fp8, fp8]"}, 2);
    }
}

TEST_F(LowPrecisionRun, BadKeysAreNamedWithTheirValues) {
    EXPECT_THAT(message({"fp8_config.enabled=true", "fp8_config.fp8_recipe=Float9"}),
                AllOf(HasSubstr("fp8_config.fp8_recipe = Float9"), HasSubstr("DelayedScaling")));
    EXPECT_THAT(message(keys(0, {"fp8_config.fp8_recipe_kwargs.margin=3"})),
                AllOf(HasSubstr("fp8_config.fp8_recipe_kwargs.margin = 3"), HasSubstr("Float8BlockScaling"),
                      HasSubstr("(command line)")));
    EXPECT_THAT(message(keys(3, {"fp8_config.fp8_recipe_kwargs.amax_compute_algo=[max]"})),
                HasSubstr("amax_compute_algo = [\"max\"]"));
    EXPECT_THAT(message(keys(0, {"layer_precision=[fp8]"})),
                AllOf(HasSubstr("layer_precision = [fp8] (command line) lists 1"),
                      HasSubstr("num_hidden_layers = 2"), HasSubstr("config.json)")));
    EXPECT_THAT(message(keys(0, {"layer_precision=[fp8, fp7]"})), HasSubstr("layer_precision[1] = fp7"));
    EXPECT_THAT(message(keys(0, {"config_kwargs.num_layers_at_start_in_bf16=2",
                                 "config_kwargs.num_layers_at_end_in_bf16=1"})),
                testing::StartsWith("num_layers_at_start_in_bf16 = 2"));
    const std::string most = std::to_string(std::numeric_limits<int64_t>::max());
    EXPECT_THAT(message(keys(0, {"config_kwargs.num_layers_at_start_in_bf16=" + most,
                                 "config_kwargs.num_layers_at_end_in_bf16=" + most})),
                HasSubstr("num_layers_at_end_in_bf16 = " + most));
    EXPECT_THAT(message({"fp8_config.fp8_recipe_kwargs.margn=1"}),
                HasSubstr("fp8_recipe_kwargs.margn = 1 (MXFP8BlockScaling): there is no such keyword"));
    EXPECT_THAT(message({"fp8_stats_config.enabled=true"}), HasSubstr("fp8_stats_config.enabled = true"));
    EXPECT_THAT(message({"layer_precision=[fp8, bf16]"}), HasSubstr("fp8_config.enabled"));
    EXPECT_THAT(message({"config_kwargs.num_layers_at_end_in_bf16=1"}),
                HasSubstr("config_kwargs.num_layers_at_end_in_bf16 = 1"));
    EXPECT_THAT(message(keys(0, {"config_kwargs.num_layers_at_end_in_bf16=1", "layer_precision=[fp8, fp8]"})),
                HasSubstr("both say"));
}

}  // namespace
}  // namespace moebius::train
