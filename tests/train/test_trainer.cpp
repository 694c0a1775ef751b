// Whole runs on a small FASTA: resume bit for bit, repeats, bad input, what lies in the run's folder.
#include "moebius/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "moebius/base/error.h"
#include "moebius/train/resolve.h"
#include "tests/train/trainer_fixture.h"

namespace moebius::train {
namespace {

using testing::HasSubstr;

TEST_F(Trainer, ResumeIsBitForBit) {
    for (const char* mode : {"grouped_linear", "fused_grouped_mlp"}) {
        for (const char* dtype : {"fp32", "bf16"}) {
            const std::string whole = std::string("whole_") + mode + dtype,
                              parts = std::string("parts_") + mode + dtype;
            const std::vector<std::string> keys = {
                std::string("expert_ffn_mode=") + mode, std::string("dtype=") + dtype,
                "router.selection_bias=true", "config_kwargs.router_jitter_noise=0.05"};
            run(overrides(whole, keys));
            std::vector<std::string> first = keys;
            first.push_back("num_train_steps=4");
            EXPECT_TRUE(run(overrides(parts, first)).complete);
            const TrainResult second = run(overrides(parts, keys));
            EXPECT_EQ(second.first_step, 4);
            EXPECT_EQ(second.last_step, 6);
            const std::string a = tensors(whole, 6), b = tensors(parts, 6);
            ASSERT_GT(a.size(), 10000u);
            EXPECT_TRUE(a == b) << mode << " " << dtype;
            const auto lines_a = metrics(whole), lines_b = metrics(parts);
            ASSERT_EQ(lines_a.size(), lines_b.size());
            for (size_t i = 0; i < lines_a.size(); ++i) {
                EXPECT_EQ(lines_a[i]["step"], lines_b[i]["step"]);
                EXPECT_EQ(lines_a[i]["loss"], lines_b[i]["loss"]) << "step " << lines_a[i]["step"];
            }
        }
    }
}

// A checkpoint of one device goes on on the other: the same weights to the bit, and a loss as that of the
// device that it left.
TEST_F(Trainer, TheOtherDeviceGoesOn) {
    if (test_device() == "cpu") GTEST_SKIP() << "there is only one device";
    const auto on = [](const char* device) { return std::string("device=") + device; };
    const auto weights = [&](const std::string& name, const char* step) {
        return read(folder_ / name / "checkpoints" / step / "model" / "model.safetensors");
    };
    for (const auto& [first, then] : {std::pair{"cpu", "cuda"}, std::pair{"cuda", "cpu"}}) {
        for (const char* dtype : {"fp32", "bf16"}) {
            const std::string name = std::string(first) + dtype;
            const std::vector<std::string> keys = {std::string("dtype=") + dtype};
            run(overrides(name + "whole", with(keys, {on(first)})));
            const std::vector<Progress> whole = sink_.steps;

            // A rate of zero leaves the weights as they are.
            for (const char* part : {"parts", "still"})
                run(overrides(name + part, with(keys, {on(first), "num_train_steps=4"})));
            run(overrides(name + "still", with(keys, {on(then), "adamw_kwargs.lr=0"})));
            const std::string before = weights(name + "still", "step_000004");
            ASSERT_GT(before.size(), 1000u);
            EXPECT_TRUE(before == weights(name + "still", "step_000006")) << name;

            EXPECT_EQ(run(overrides(name + "parts", with(keys, {on(then)}))).first_step, 4);
            ASSERT_EQ(sink_.steps.size(), 2u);
            for (size_t i = 0; i < 2; ++i) {
                EXPECT_NEAR(sink_.steps[i].loss, whole[4 + i].loss,
                            dtype == std::string("fp32") ? 1e-4 : 2e-2)
                    << name << " step " << 5 + i;
            }
        }
    }
}

const std::vector<std::vector<std::string>> kStateOptions = {
    {"grad_dtype=bf16"},
    {"adamw_kwargs.state_dtype=bf16"},
    {"optimizer_master_weights=false"},
    {"optimizer_store_param_remainders=true"},
    {"grad_dtype=bf16", "adamw_kwargs.state_dtype=bf16", "optimizer_store_param_remainders=true"},
    {"grad_dtype=bf16", "adamw_kwargs.state_dtype=bf16", "optimizer_master_weights=false"}};

TEST_F(Trainer, ResumeIsBitForBitWithEveryOptimizerState) {
    for (size_t i = 0; i < kStateOptions.size(); ++i) {
        const std::string whole = "whole" + std::to_string(i), parts = "parts" + std::to_string(i);
        const std::vector<std::string> keys = with({"dtype=bf16"}, kStateOptions[i]);
        run(overrides(whole, keys));
        EXPECT_TRUE(run(overrides(parts, with(keys, {"num_train_steps=4"}))).complete);
        EXPECT_EQ(run(overrides(parts, keys)).first_step, 4);
        EXPECT_TRUE(tensors(whole, 6) == tensors(parts, 6)) << kStateOptions[i].back();
        const auto a = metrics(whole), b = metrics(parts);
        ASSERT_EQ(a.size(), b.size());
        for (size_t line = 0; line < a.size(); ++line) EXPECT_EQ(a[line]["loss"], b[line]["loss"]);
    }
    // fp32 weights, which are their own masters.
    const std::vector<std::string> keys = {"grad_dtype=bf16", "adamw_kwargs.state_dtype=bf16"};
    run(overrides("whole", keys));
    run(overrides("parts", with(keys, {"num_train_steps=4"})));
    run(overrides("parts", keys));
    EXPECT_TRUE(tensors("whole", 6) == tensors("parts", 6));
}

// A short run learns as with fp32 state. Without masters it is slower: small steps are lost.
TEST_F(Trainer, LossesStayCloseToThoseOfFp32State) {
    const std::vector<std::string> run_keys = {"dtype=bf16", "num_train_steps=40",
                                               "lr_scheduler_kwargs.num_decay_steps=60",
                                               "checkpoint.save_every_n_steps=100"};
    const auto losses = [&](const std::string& name, const std::vector<std::string>& keys) {
        run(overrides(name, with(run_keys, keys)));
        std::vector<double> values;
        for (const Progress& p : sink_.steps) values.push_back(p.loss);
        return values;
    };
    const std::vector<double> wide = losses("wide", {});
    ASSERT_EQ(wide.size(), 40u);
    const double learned = wide.front() - wide.back();
    ASSERT_GT(learned, 0.5);
    for (size_t i = 0; i < kStateOptions.size(); ++i) {
        const std::vector<double> narrow = losses("narrow" + std::to_string(i), kStateOptions[i]);
        ASSERT_EQ(narrow.size(), wide.size());
        for (size_t step = 0; step < wide.size(); ++step)
            EXPECT_NEAR(narrow[step], wide[step], 0.05 * learned) << kStateOptions[i].back() << " " << step;
    }
}

// The masters of a checkpoint, whichever form the run that wrote it had.
TEST_F(Trainer, RemaindersComeAndGoWithTheSameMastersAndAreTold) {
    const auto masters = [&](const std::string& name) {
        return read(folder_ / name / "checkpoints" / "step_000004" / "optimizer" /
                    "optimizer-00000-of-00001.safetensors");
    };
    const std::string wide = "dtype=bf16", split = "optimizer_store_param_remainders=true";
    for (const bool from_split : {false, true}) {
        const std::string name = from_split ? "from_split" : "from_wide";
        std::vector<std::string> first = {wide, "num_train_steps=4"}, then = {wide};
        (from_split ? first : then).push_back(split);
        run(overrides(name, first));
        const std::string before = masters(name);
        ASSERT_GT(before.size(), 10000u);
        std::atomic<bool> stop{true};
        EXPECT_TRUE(run(overrides(name, then), &stop).stopped);  // saves step 4 again, in the other form
        EXPECT_TRUE(masters(name) == before);
        EXPECT_THAT(
            sink_.notes,
            testing::Contains(HasSubstr(from_split ? "optimizer_store_param_remainders: true -> false"
                                                   : "optimizer_store_param_remainders: false -> true")));
        EXPECT_TRUE(run(overrides(name, then)).complete);
        for (const std::string& note : sink_.notes) EXPECT_THAT(note, testing::Not(HasSubstr("warning")));
    }
}

TEST_F(Trainer, StateThatWouldBeRoundedIsRefusedAndNarrowStateIsWidened) {
    const auto message = [&](const std::string& name, std::vector<std::string> more) {
        try {
            run(overrides(name, with({"dtype=bf16"}, more)));
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_EQ(message("wide", {"num_train_steps=3"}), "");
    EXPECT_THAT(message("wide", {"optimizer_master_weights=false"}),
                testing::AllOf(HasSubstr("optimizer_master_weights = false"), HasSubstr("has true")));
    EXPECT_THAT(message("wide", {"adamw_kwargs.state_dtype=bf16"}),
                testing::AllOf(HasSubstr("adamw_kwargs.state_dtype = bf16"), HasSubstr("has fp32")));
    const std::vector<std::string> narrow = {"optimizer_master_weights=false",
                                             "adamw_kwargs.state_dtype=bf16", "grad_dtype=bf16"};
    EXPECT_EQ(message("narrow", with(narrow, {"num_train_steps=3"})), "");
    for (const bool split : {true, false}) {
        const std::string name = split ? "narrow_split" : "narrow";
        if (split) fs::copy(folder_ / "narrow", folder_ / "narrow_split", fs::copy_options::recursive);
        EXPECT_EQ(message(name, {split ? "optimizer_store_param_remainders=true" : "seed=42"}), "");
        std::string notes;
        for (const std::string& line : sink_.notes) notes += line + "\n";
        EXPECT_THAT(notes, testing::AllOf(HasSubstr("optimizer_master_weights: false -> true"),
                                          HasSubstr("adamw_kwargs.state_dtype: bf16 -> fp32"),
                                          HasSubstr("grad_dtype: bf16 -> fp32")));
    }
    EXPECT_TRUE(fs::exists(folder_ / "narrow" / "checkpoints" / "step_000006"));
}

TEST_F(Trainer, EightRepeatsAndAnyThreadCountGiveTheSameBits) {
    run(overrides("first", {"num_train_steps=3"}));
    const std::string reference = tensors("first", 3);
    ASSERT_GT(reference.size(), 10000u);
    const int threads[] = {2, 2, 2, 2, 1, 3, 5, 8};
    for (int i = 0; i < 8; ++i) {
        const std::string name = "again" + std::to_string(i);
        run(overrides(name, {"num_train_steps=3", "num_threads=" + std::to_string(threads[i]),
                             "dataset.num_workers=" + std::to_string(i % 3)}));
        EXPECT_TRUE(tensors(name, 3) == reference) << "repeat " << i << ", " << threads[i] << " threads";
    }
}

TEST_F(Trainer, EightRepeatsUnderARecipeGiveTheSameBits) {
    for (const char* recipe : {"Float8BlockScaling", "MXFP8BlockScaling", "DelayedScaling"}) {
        const auto of = [&](int i) {
            const std::string name = recipe + std::to_string(i);
            run(overrides(name, {"num_train_steps=3", "dtype=bf16", "expert_ffn_mode=fused_grouped_mlp",
                                 "fp8_config.enabled=true", "fp8_config.fp8_recipe=" + std::string(recipe)}));
            return tensors(name, 3);
        };
        const std::string reference = of(0);
        // A sanitizer sees in one repeat what it sees in eight.
        for (int i = 1; i <= (kInstrumented ? 1 : 8); ++i)
            EXPECT_TRUE(of(i) == reference) << recipe << ", repeat " << i;
    }
}

TEST_F(Trainer, TheFirstLinesSayTheBytesATokenKeptForBackward) {
    std::vector<int64_t> bytes;
    for (const char* dtype : {"fp32", "bf16"}) {
        run(overrides(dtype, {"num_train_steps=1", "dtype=" + std::string(dtype)}));
        for (const std::string& line : sink_.notes) {
            const size_t at = line.find("MiB at most (");
            if (!line.starts_with("model: ") || at == std::string::npos) continue;
            long long mib = -1, each = -1;
            int end = 0;
            std::sscanf(line.c_str() + at, "MiB at most (%lld kept for backward, %lld bytes a token)%n", &mib,
                        &each, &end);
            EXPECT_EQ(at + static_cast<size_t>(end), line.size()) << line;
            bytes.push_back(each);
            // Micro-batches of 2 x 64 tokens; MiB are rounded.
            EXPECT_NEAR(static_cast<double>(each * 128) / (1 << 20), static_cast<double>(mib), 0.51);
        }
    }
    ASSERT_EQ(bytes.size(), 2u) << "one line a run";
    EXPECT_GT(bytes[1], 0);
    EXPECT_LT(bytes[1], bytes[0]) << "bf16 keeps less than fp32";
}

TEST_F(Trainer, AForcedKernelOfNoOperationIsSaidAloud) {
    const auto said = [&](const std::string& name, const std::string& mode) {
        run(overrides(name, {"device=cpu", "num_train_steps=1", "kernels.grouped_mlp=cpu_fused",
                             "expert_ffn_mode=" + mode}));
        return std::count_if(sink_.notes.begin(), sink_.notes.end(), [](const std::string& line) {
            return line.starts_with("warning: kernels.grouped_mlp = cpu_fused: no operation of a step is ");
        });
    };
    EXPECT_EQ(said("linear", "grouped_linear"), 1);
    EXPECT_EQ(said("fused", "fused_grouped_mlp"), 0);
}

TEST_F(Trainer, ACompleteRunSaysSoAndNamesTheKeys) {
    run(overrides("done"));
    const TrainResult again = run(overrides("done"));
    EXPECT_TRUE(again.already_complete);
    std::string notes;
    for (const std::string& line : sink_.notes) notes += line + "\n";
    EXPECT_THAT(notes, HasSubstr("step 6 of 6"));
    EXPECT_THAT(notes, HasSubstr("num_train_steps="));
    EXPECT_THAT(notes, HasSubstr("checkpoint.resume_from_checkpoint=false"));
}

TEST_F(Trainer, AFreshStartSetsTheFormerRunAside) {
    run(overrides("run"));
    const std::string before = tensors("run", 6);
    const TrainResult fresh = run(overrides("run", {"checkpoint.resume_from_checkpoint=false", "seed=43"}));
    EXPECT_EQ(fresh.first_step, 0);
    EXPECT_TRUE(fs::exists(folder_ / "run.old-1" / "checkpoints" / "step_000006"));
    EXPECT_FALSE(tensors("run", 6) == before) << "another seed gave the same weights";
}

TEST_F(Trainer, AChangedModelKeyIsNamedWithBothValues) {
    run(overrides("run", {"num_train_steps=3"}));
    const auto message = [&](std::vector<std::string> more) {
        try {
            run(overrides("run", more));
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("no error");
    };
    EXPECT_THAT(message({"config_kwargs.intermediate_size=40"}),
                testing::AllOf(HasSubstr("config_kwargs.intermediate_size = 40"), HasSubstr("has 48")));
    EXPECT_THAT(message({"dtype=bf16"}),
                testing::AllOf(HasSubstr("dtype"), HasSubstr("bf16"), HasSubstr("fp32")));
    EXPECT_THAT(message({"dataset.max_seq_length=32"}), HasSubstr("max_seq_length"));
}

TEST_F(Trainer, CheckpointsBehindTheStepsAreToldWhenTheyAreWhole) {
    run(overrides("behind", {"checkpoint.async_save=true", "checkpoint.save_every_n_steps=1"}));
    EXPECT_EQ(sink_.saves, (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
}

TEST_F(Trainer, StopsWithBatchAndStateWhenTheLossIsNotFinite) {
    try {
        run(overrides(
            "bad", {"adamw_kwargs.lr=1e30", "lr_scheduler_kwargs.num_warmup_steps=0", "clip_grad_norm=0"}));
        FAIL() << "a rate of 1e30 did not break the run";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("not finite"), HasSubstr("genome.fa"),
                                                 HasSubstr("bases"), HasSubstr("step_0000")));
    }
    ASSERT_FALSE(sink_.saves.empty());
    const int64_t step = sink_.saves.back();
    EXPECT_EQ(static_cast<size_t>(step), sink_.steps.size())
        << "the state saved is the one before the bad step";
}

// As on a GPU, where a step is queued before the results of the one before it are read.
TEST_F(Trainer, ResultsReadOneStepLaterChangeNothing) {
    const std::vector<std::string> more = {"+config_kwargs.moe_aux_loss_coeff=0.02",
                                           "router.selection_bias=true",
                                           "router.bias_update_rate=0.01",
                                           "validation.enabled=true",
                                           "validation.fraction=0.2",
                                           "validation.eval_interval=2",
                                           "logger.frequency=1",
                                           "validation.num_batches=2",
                                           "num_train_steps=7"};
    run(overrides("together", more), nullptr, 0);
    const QuietSink together = sink_;
    run(overrides("behind", more), nullptr, 1);
    for (const int step : {3, 6, 7})
        EXPECT_TRUE(tensors("behind", step) == tensors("together", step)) << step;
    EXPECT_EQ(sink_.saves, together.saves);
    const auto a = metrics("together"), b = metrics("behind");
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
        for (const char* key : {"step", "loss", "grad_norm", "aux_loss", "expert_load", "val_loss"}) {
            EXPECT_EQ(a[i].value(key, nlohmann::json()), b[i].value(key, nlohmann::json()))
                << i << " " << key;
        }
    }
    // Ends and goes on in the middle.
    std::atomic<bool> stop{true};
    run(overrides("halves", more), &stop, 1);
    run(overrides("halves", more), nullptr, 1);
    EXPECT_TRUE(tensors("halves", 7) == tensors("together", 7));
}

TEST_F(Trainer, ABadStepIsFoundOneStepLaterWithTheStateBeforeIt) {
    const std::vector<std::string> more = {"adamw_kwargs.lr=1e30", "lr_scheduler_kwargs.num_warmup_steps=0",
                                           "clip_grad_norm=0", "checkpoint.save_every_n_steps=100"};
    std::vector<std::string> texts, states;
    for (const int64_t behind : {0, 1}) {
        const std::string name = behind == 0 ? "now" : "later";
        try {
            run(overrides(name, more), nullptr, behind);
            FAIL() << "a rate of 1e30 did not break the run";
        } catch (const Error& error) {
            const std::string text = error.what();
            texts.push_back(text.substr(0, text.find("the state before")));
        }
        ASSERT_EQ(sink_.saves.size(), 1u);
        EXPECT_EQ(static_cast<size_t>(sink_.saves[0]), sink_.steps.size());
        states.push_back(tensors(name, static_cast<int>(sink_.saves[0])));
    }
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_TRUE(states[0] == states[1]);
}

TEST_F(Trainer, AGraphAndNoGraphGiveTheSameBits) {
    if (test_device() != "cuda") {
        EXPECT_THROW(run(overrides("graph", {"cuda_graph=on"})), Error);
        GTEST_SKIP() << "graphs are CUDA's";
    }
    for (const char* dtype : {"fp32", "bf16"}) {
        // With one micro-batch a step, what is kept lies in gradients' memory.
        for (const char* micro_batches : {"1", "2"}) {
            const std::string dtype_key = std::string("dtype=") + dtype,
                              name = std::string(dtype) + micro_batches;
            for (const char* mode : {"on", "off"}) {
                run(overrides(name + mode, {dtype_key, std::string("cuda_graph=") + mode,
                                            std::string("grad_acc_steps=") + micro_batches,
                                            "validation.enabled=true", "validation.fraction=0.2",
                                            "validation.eval_interval=2", "validation.num_batches=2"}));
            }
            for (const int step : {3, 6}) {
                EXPECT_TRUE(tensors(name + "on", step) == tensors(name + "off", step)) << name << " " << step;
            }
        }
    }
}

TEST_F(Trainer, RefusesToBeginAgainOverDamagedCheckpoints) {
    run(overrides("run", {"num_train_steps=2", "checkpoint.max_checkpoints=1"}));
    const fs::path dir = folder_ / "run" / "checkpoints";
    for (const auto& entry : fs::directory_iterator(dir)) {
        if (entry.is_directory()) std::ofstream(entry.path() / "trainer.json", std::ios::app) << "x";
    }
    try {
        run(overrides("run"));
        FAIL() << "a run began anew over damaged checkpoints";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("damaged"), HasSubstr("step_000002"),
                                                 HasSubstr("checkpoint.resume_from_checkpoint=false")));
    }
}

TEST_F(Trainer, StopFlagSavesAndTheRunGoesOn) {
    run(overrides("whole"));
    std::atomic<bool> stop{true};
    const TrainResult stopped = run(overrides("stopped"), &stop);
    EXPECT_TRUE(stopped.stopped);
    EXPECT_EQ(stopped.last_step, 0);
    run(overrides("stopped"));
    EXPECT_TRUE(tensors("stopped", 6) == tensors("whole", 6));
}

TEST_F(Trainer, WritesConfigurationRunAndMetrics) {
    run(overrides("run", {"validation.enabled=true", "validation.fraction=0.2", "validation.eval_interval=2",
                          "validation.num_batches=2"}));
    EXPECT_THAT(sink_.notes, testing::Contains(HasSubstr("memory of the step when it is most, in MiB: ")));
    const auto record = nlohmann::json::parse(read(folder_ / "run" / "run.json"));
    EXPECT_EQ(record["num_train_steps"], 6);
    EXPECT_EQ(record["inputs"][0]["bytes"], fs::file_size(folder_ / "genome.fa"));
    EXPECT_EQ(record["inputs"][0]["xxh3_128"].get<std::string>().size(), 32u);
    EXPECT_EQ(record["seed"], 42);
    EXPECT_EQ(record["threads"], 2);
    EXPECT_EQ(record["command_line"], nlohmann::json::array({"test"}));
    for (const char* key : {"version", "commit", "build_type", "compiler"})
        EXPECT_FALSE(record["moebius"][key].get<std::string>().empty()) << key;
    EXPECT_FALSE(record["device"]["name"].get<std::string>().empty());
    const std::string libraries = record["libraries"].dump();
    for (const char* library : {"htslib ", "yaml-cpp ", "xxHash ", "fmt ", "nlohmann-json ", "glibc "})
        EXPECT_THAT(libraries, HasSubstr(library));
    EXPECT_THAT(read(folder_ / "run" / "config.yaml"), HasSubstr("hidden_size"));
    int with_loss = 0, with_validation = 0;
    for (const auto& line : metrics("run")) {
        with_loss += line.contains("loss");
        with_validation += line.contains("val_loss");
        if (!line.contains("loss")) continue;
        for (const char* key : {"grad_norm", "learning_rate", "step_time", "tokens_per_second_per_gpu",
                                "unpadded_tokens_per_second_per_gpu", "total_unpadded_tokens_per_batch",
                                "mfu", "model_tflops_per_gpu", "memory_peak_bytes", "memory_current_bytes",
                                "perplexity", "expert_load"}) {
            EXPECT_TRUE(line.contains(key)) << key;
        }
        ASSERT_EQ(line["expert_load"].size(), 2u);
        for (const auto& layer : line["expert_load"]) {
            EXPECT_GE(layer["max_over_mean"], 1.0);
            EXPECT_GT(layer["entropy"], 0.0);
            EXPECT_EQ(layer["dropped"], 0.0);
        }
    }
    EXPECT_EQ(with_loss, 3);
    EXPECT_EQ(with_validation, 3);  // after steps 2 and 4, and at the end
    EXPECT_EQ(sink_.validations.size(), 3u);
    EXPECT_TRUE(sink_.validations.back().final);
    EXPECT_GT(sink_.validations.back().order1, 1.0);
}

TEST_F(Trainer, AuxLossOfTheGlobalBatchDoesNotDependOnAccumulation) {
    const std::vector<std::string> aux = {"config_kwargs.moe_aux_loss_coeff=0.5",
                                          "aux_loss.scope=global_batch", "router.z_loss_coeff=0.01",
                                          "num_train_steps=2", "lr_scheduler_kwargs.num_warmup_steps=0"};
    const auto losses = [&](const std::string& name, int micro, int accumulate, const std::string& scope) {
        std::vector<std::string> keys = aux;
        keys.push_back("dataset.micro_batch_size=" + std::to_string(micro));
        keys.push_back("grad_acc_steps=" + std::to_string(accumulate));
        keys.push_back("aux_loss.scope=" + scope);
        run(overrides(name, keys));
        std::vector<double> values;
        for (const Progress& p : sink_.steps) values.push_back(p.grad_norm);
        return values;
    };
    const auto one = losses("one", 4, 1, "global_batch"), two = losses("two", 2, 2, "global_batch");
    const auto micro = losses("micro", 2, 2, "micro_batch");
    ASSERT_EQ(one.size(), 2u);
    EXPECT_NEAR(one[0], two[0], 1e-5 * one[0]);
    EXPECT_GT(std::abs(one[0] - micro[0]), 1e-5 * one[0]) << "the two scopes should differ";
}

}  // namespace
}  // namespace moebius::train
