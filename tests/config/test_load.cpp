// Types, ranges, required, unknown and refused keys, and where messages say a value came from.
#include "moebius/config/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "helpers.h"

namespace moebius::config::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(Load, DefaultsAreTheRecipes) {
    const TrainConfig c = load_with({}).config;
    EXPECT_EQ(c.grad_acc_steps, 1);
    EXPECT_EQ(c.seed, 42);
    EXPECT_EQ(c.parallelism.dp_size, 1);
    EXPECT_EQ(c.parallelism.ep_size, 1);
    EXPECT_EQ(c.expert_ffn_mode, "grouped_linear");
    EXPECT_FALSE(c.fp8_config.enabled);
    EXPECT_EQ(c.fp8_config.fp8_recipe, "MXFP8BlockScaling");
    EXPECT_EQ(c.fp8_config.fp8_format, "E4M3");
    EXPECT_TRUE(c.fp8_config.fp8_recipe_kwargs.empty());
    EXPECT_FALSE(c.layer_precision.has_value());
    EXPECT_TRUE(c.optimizer_master_weights);
    EXPECT_FALSE(c.optimizer_store_param_remainders);
    EXPECT_FALSE(c.init_from_pretrained.has_value());
    EXPECT_TRUE(c.use_weight_decay_grouping);
    EXPECT_TRUE(c.skip_embedding_weight_decay);
    EXPECT_FALSE(c.use_sequence_packing);
    EXPECT_EQ(c.dataset.format, "auto");
    EXPECT_EQ(c.dataset.tokenizer, "nucleotide");
    EXPECT_EQ(c.dataset.micro_batch_size, 8);
    EXPECT_FALSE(c.dataset.token_micro_batch_size.has_value());
    EXPECT_EQ(c.dataset.max_seq_length, 8192);
    EXPECT_EQ(c.dataset.stride, 200);
    EXPECT_EQ(c.dataset.buffer_size, 50000);
    EXPECT_EQ(c.dataset.num_workers, 4);
    EXPECT_EQ(c.dataset.prefetch_factor, 4);
    EXPECT_TRUE(c.dataset.mask_degenerate_bases);
    EXPECT_FALSE(c.dataset.uppercase_labels);
    EXPECT_TRUE(c.dataset.split_samples_in_token_packing);
    EXPECT_EQ(c.adamw_kwargs.lr, 3e-3);
    EXPECT_THAT(c.adamw_kwargs.betas, ElementsAre(0.9, 0.95));
    EXPECT_EQ(c.adamw_kwargs.eps, 1e-5);
    EXPECT_EQ(c.adamw_kwargs.weight_decay, 0.1);
    EXPECT_EQ(c.clip_grad_norm, 1.0);
    EXPECT_EQ(c.lr_scheduler_kwargs.num_warmup_steps, 2000);
    EXPECT_EQ(c.lr_scheduler_kwargs.num_decay_steps, 498000);
    EXPECT_EQ(c.lr_scheduler_kwargs.min_lr_ratio, 1e-6);
    EXPECT_EQ(c.checkpoint.save_every_n_steps, 50);
    EXPECT_EQ(c.checkpoint.max_checkpoints, 5);
    EXPECT_TRUE(c.checkpoint.save_final_model && c.checkpoint.resume_from_checkpoint &&
                c.checkpoint.async_save);
    EXPECT_EQ(c.logger.frequency, 100);
    EXPECT_EQ(c.logger.run_dir, "runs/train-genome");
    EXPECT_FALSE(c.validation.enabled);
    EXPECT_EQ(c.validation.eval_interval, 500);
    EXPECT_EQ(c.validation.num_batches, 10);
    EXPECT_FALSE(c.profiler.enabled);
    EXPECT_EQ(c.aux_loss.scope, "micro_batch");
    EXPECT_EQ(c.router.score, "softmax");
}

TEST(Load, OverridesOfEveryKindArriveTyped) {
    const TrainConfig c =
        load_with({"adamw_kwargs.lr=1e-4", "adamw_kwargs.betas=[0.5,0.75]", "seed=7",
                   "use_sequence_packing=true", "dataset.path='a b.fa'", "dataset.stride=null",
                   "dataset.token_micro_batch_size=9000", "kernels.grouped_gemm=loop",
                   "config_kwargs.hidden_size=64", "config_kwargs.rope_parameters.rope_theta=5e5",
                   "time_budget_minutes=2", "clip_grad_norm=.5", "init_from_pretrained=weights"})
            .config;
    EXPECT_EQ(c.adamw_kwargs.lr, 1e-4);
    EXPECT_THAT(c.adamw_kwargs.betas, ElementsAre(0.5, 0.75));
    EXPECT_EQ(c.seed, 7);
    EXPECT_TRUE(c.use_sequence_packing);
    EXPECT_EQ(c.dataset.path, "a b.fa");
    EXPECT_EQ(c.dataset.stride, std::nullopt);
    EXPECT_EQ(c.dataset.token_micro_batch_size, 9000);
    EXPECT_EQ(c.kernels.at("grouped_gemm"), "loop");
    EXPECT_EQ(c.config_kwargs.at("hidden_size").json, "64");
    EXPECT_EQ(c.config_kwargs.at("rope_parameters.rope_theta").json, "500000.0");
    EXPECT_EQ(c.time_budget_minutes, 2.0);
    EXPECT_EQ(c.clip_grad_norm, 0.5);
    EXPECT_EQ(c.init_from_pretrained, "weights");
}

TEST(Load, RequiredKeysAreAllNamedAtOnce) {
    const std::string text = error_of([] { load({}); });
    for (const char* key :
         {"config_name_or_path", "num_train_steps", "dataset.path", "checkpoint.ckpt_dir"}) {
        EXPECT_THAT(text, HasSubstr(std::string(key) + " is required: give it on the command line as " + key +
                                    "=VALUE"));
    }
}

TEST(Load, MissingMarkNamesItsPlace) {
    const TempDir dir;
    const auto file = dir.write("a.yaml", with_required("dataset:\n  path: ???\nseed: ???\n"));
    const std::string text = error_of([&] { load_file(file); });
    EXPECT_THAT(text, HasSubstr("dataset.path is required"));
    EXPECT_THAT(text, HasSubstr(file.string() + ":7 leaves it ???"));
    EXPECT_THAT(text, HasSubstr("seed is required"));  // ??? makes any key required
    EXPECT_THAT(text, Not(HasSubstr("num_train_steps")));
    EXPECT_EQ(load_file(file, {"dataset.path=x", "seed=1"}).config.dataset.path, "x");
}

TEST(Load, MissingIsAllowedForPrinting) {
    const Loaded loaded = load({.allow_missing = true});
    EXPECT_EQ(loaded.config.dataset.path, "");
    EXPECT_EQ(loaded.config.num_train_steps, kNotGiven);
    EXPECT_EQ(loaded.config.checkpoint.ckpt_dir, "");
}

TEST(Load, UnknownKeyNamesPlaceAndNearest) {
    EXPECT_EQ(error_with({"dataset.strid=3"}),
              "unknown key dataset.strid (command line); did you mean dataset.stride?");
    EXPECT_EQ(error_with({"sede=3"}), "unknown key sede (command line); did you mean seed?");
    EXPECT_EQ(error_with({"lr=1e-3"}), "unknown key lr (command line); did you mean adamw_kwargs.lr?");
    EXPECT_EQ(error_with({"hidden_size=64"}),
              "unknown key hidden_size (command line); did you mean config_kwargs.hidden_size?");
    EXPECT_EQ(error_with({"model.num_local_experts=8"}),
              "unknown key model (command line); did you mean config_kwargs.num_local_experts?");
    EXPECT_EQ(error_with({"dataset.num_local_experts=8"}),
              "unknown key dataset.num_local_experts (command line); did you mean "
              "config_kwargs.num_local_experts?");
    EXPECT_THAT(error_with({"enabled=true"}), HasSubstr("did you mean fp8_config.enabled or "));
    EXPECT_THAT(error_with({"device=gpu"}),
                HasSubstr("must be one of auto, cpu, cuda (command line); did you mean cuda?"));
    EXPECT_EQ(error_with({"datasett.path=x"}), "unknown key datasett (command line); did you mean dataset?");
    EXPECT_EQ(error_with({"qqqqqqqqqqqqqqqq=x"}), "unknown key qqqqqqqqqqqqqqqq (command line)");
    const TempDir dir;
    const auto file = dir.write("a.yaml", with_required("dataset:\n  path: x\n  micro_batchsize: 3\n"));
    EXPECT_EQ(error_of([&] { load_file(file); }), "unknown key dataset.micro_batchsize (" + file.string() +
                                                      ":8); did you mean dataset.micro_batch_size?");
}

TEST(Load, UnknownKeyIsFoundAtTheTopToo) {
    const TempDir dir;
    const auto file = dir.write("a.yaml", with_required("grad_acc_step: 3\n"));
    EXPECT_THAT(error_of([&] { load_file(file); }), HasSubstr("did you mean grad_acc_steps?"));
}

TEST(Load, DottedKeyInYamlIsExplained) {
    const TempDir dir;
    const auto file = dir.write("a.yaml", with_required("dataset.path: x\n"));
    EXPECT_THAT(error_of([&] { load_file(file); }), HasSubstr("dotted keys are for the command line"));
}

TEST(Load, WrongTypesNameKeyValueAndPlace) {
    EXPECT_EQ(error_with({"seed=abc"}), "seed = abc must be a whole number (command line)");
    EXPECT_EQ(error_with({"seed=3.5"}), "seed = 3.5 must be a whole number (command line)");
    EXPECT_EQ(error_with({"seed=null"}), "seed = null must be a whole number (command line)");
    EXPECT_EQ(error_with({"seed='3'"}), "seed = \"3\" must be a whole number (command line)");
    EXPECT_EQ(error_with({"seed=[3]"}), "seed = [3] must be a whole number (command line)");
    EXPECT_EQ(error_with({"seed=0x10"}), "seed = 0x10 must be a whole number (command line)");
    EXPECT_EQ(error_with({"dataset.stride=abc"}),
              "dataset.stride = abc must be a whole number or null (command line)");
    EXPECT_EQ(error_with({"adamw_kwargs.lr=fast"}), "adamw_kwargs.lr = fast must be a number (command line)");
    EXPECT_EQ(error_with({"adamw_kwargs.lr=nan"}), "adamw_kwargs.lr = nan must be a number (command line)");
    EXPECT_EQ(error_with({"adamw_kwargs.lr=1e999"}),
              "adamw_kwargs.lr = 1e999 must be a number (command line)");
    EXPECT_EQ(error_with({"adamw_kwargs.betas=0.9"}),
              "adamw_kwargs.betas = 0.9 must be a list of two numbers (command line)");
    EXPECT_EQ(error_with({"adamw_kwargs.betas=[0.9,0.9,0.9]"}),
              "adamw_kwargs.betas = [0.9, 0.9, 0.9] must be a list of two numbers (command line)");
    EXPECT_EQ(error_with({"adamw_kwargs.betas=[0.9,x]"}),
              "adamw_kwargs.betas[1] = x must be a number (command line)");
    EXPECT_EQ(error_with({"dataset.path=null"}), "dataset.path = null must be text (command line)");
    EXPECT_EQ(error_with({"dataset.path="}), "dataset.path =  must be text that is not empty (command line)");
    EXPECT_EQ(error_with({"dataset.path=${HOME}/x"}),
              "dataset.path = ${HOME}/x must be written out: ${…} is not replaced (command line)");
    EXPECT_EQ(error_with({"dataset=ecoli"}),
              "dataset = ecoli must be a map: dataset is a group of keys (command line)");
    EXPECT_EQ(error_with({"dataset=null"}),
              "dataset = null must be a map: dataset is a group of keys (command line)");
    EXPECT_EQ(error_with({"seed=99999999999999999999"}),
              "seed = 99999999999999999999 must be a whole number that fits into 64 bits (command line)");
}

TEST(Load, NumbersHoldInSinglePrecision) {
    EXPECT_THAT(error_with({"adamw_kwargs.betas=[0.99999999999,0.9]"}), HasSubstr("adamw_kwargs.betas[0]"));
    EXPECT_THAT(error_with({"adamw_kwargs.eps=1e-60"}), HasSubstr("must be above 0 in fp32"));
    for (const char* key : {"adamw_kwargs.lr", "adamw_kwargs.eps", "adamw_kwargs.weight_decay",
                            "clip_grad_norm", "router.bias_update_rate", "router.z_loss_coeff"}) {
        EXPECT_THAT(error_with({std::string(key) + "=1e39"}), HasSubstr(std::string(key) + " = 1e+39"));
        EXPECT_NO_THROW(load_with({std::string(key) + "=1e38"}));
    }
    EXPECT_THAT(error_with({"dataset.prefetch_factor=4294967297"}), HasSubstr("at most 2147483647"));
    EXPECT_THAT(error_with({"dataset.num_workers=4294967297"}), HasSubstr("at most 1024"));
}

TEST(Load, TextIsUtf8) {
    EXPECT_THAT(error_with({"dataset.path=g\xe9nome.fa"}), HasSubstr("must be UTF-8 text"));
    EXPECT_EQ(load_with({"dataset.path=g\xc3\xa9nome.fa"}).config.dataset.path, "g\xc3\xa9nome.fa");
}

TEST(Load, BooleansAreTrueAndFalseOnly) {
    for (const char* text : {"yes", "no", "on", "True", "FALSE", "1", "0", "null", "'true'"}) {
        EXPECT_THAT(error_with({std::string("use_sequence_packing=") + text}),
                    HasSubstr("must be true or false"))
            << text;
    }
    const TempDir dir;
    const auto file = dir.write("a.yaml", with_required("dataset: {path: x}\nuse_sequence_packing: yes\n"));
    EXPECT_EQ(error_of([&] { load_file(file); }),
              "use_sequence_packing = yes must be true or false (" + file.string() + ":7)");
}

TEST(Load, NumbersAreDecimal) {
    EXPECT_EQ(error_with({"seed=010"}),
              "seed = 010 must be written without leading zeros (numbers are decimal) (command line)");
    EXPECT_EQ(
        error_with({"adamw_kwargs.lr=010"}),
        "adamw_kwargs.lr = 010 must be written without leading zeros (numbers are decimal) (command line)");
    EXPECT_EQ(error_with({"seed=1_000"}), "seed = 1_000 must be written without underscores (command line)");
    EXPECT_EQ(load_with({"seed=0"}).config.seed, 0);
    EXPECT_EQ(load_with({"seed=+5"}).config.seed, 5);
    EXPECT_EQ(load_with({"dataset.path=010"}).config.dataset.path, "010");  // text may look like anything
    EXPECT_EQ(load_with({"dataset.path=yes"}).config.dataset.path, "yes");
    const TempDir dir;
    const auto file = dir.write("a.yaml", with_required("dataset: {path: x}\nseed: 010\n"));
    EXPECT_THAT(error_of([&] { load_file(file); }),
                HasSubstr("seed = 010 must be written without leading zeros"));
}

TEST(Load, FloatsInEveryUsualSpelling) {
    for (const auto& [text, value] : std::vector<std::pair<std::string, double>>{{"1e-5", 1e-5},
                                                                                 {"1E-5", 1e-5},
                                                                                 {"1.e-5", 1e-5},
                                                                                 {"0.00001", 1e-5},
                                                                                 {"+1e-05", 1e-5},
                                                                                 {"3", 3.0}}) {
        EXPECT_EQ(load_with({"adamw_kwargs.eps=" + text}).config.adamw_kwargs.eps, value) << text;
    }
}

TEST(Load, RangesNameTheBounds) {
    EXPECT_EQ(error_with({"grad_acc_steps=0"}), "grad_acc_steps = 0 must be at least 1 (command line)");
    EXPECT_EQ(error_with({"num_train_steps=-3"}), "num_train_steps = -3 must be at least 0 (command line)");
    EXPECT_EQ(error_with({"lr_scheduler_kwargs.num_warmup_steps=-1"}),
              "lr_scheduler_kwargs.num_warmup_steps = -1 must be at least 0 (command line)");
    EXPECT_EQ(error_with({"adamw_kwargs.betas=[0.9,1.0]"}),
              "adamw_kwargs.betas[1] = 1.0 must be at least 0 and below 1 (command line)");
    EXPECT_EQ(error_with({"adamw_kwargs.betas=[-0.1,0.9]"}),
              "adamw_kwargs.betas[0] = -0.1 must be at least 0 and below 1 (command line)");
    EXPECT_EQ(error_with({"validation.fraction=0"}),
              "validation.fraction = 0 must be above 0 and at most 0.5 (command line)");
    EXPECT_EQ(error_with({"validation.fraction=0.51"}),
              "validation.fraction = 0.51 must be above 0 and at most 0.5 (command line)");
    EXPECT_EQ(load_with({"validation.fraction=0.5"}).config.validation.fraction, 0.5);
    EXPECT_EQ(error_with({"clip_grad_norm=-1"}), "clip_grad_norm = -1 must be at least 0 (command line)");
}

TEST(Load, ChoicesAreChecked) {
    EXPECT_EQ(error_with({"dtype=fp16"}), "dtype = fp16 must be one of fp32, bf16 (command line)");
    EXPECT_EQ(error_with({"expert_ffn_mode=xxxxxxxxxxxx"}),
              "expert_ffn_mode = xxxxxxxxxxxx must be one of loop, grouped_linear, fused_grouped_mlp "
              "(command line)");
    EXPECT_THAT(error_with({"expert_ffn_mode=grouped_liner"}), HasSubstr("; did you mean grouped_linear?"));
    EXPECT_EQ(load_with({"expert_ffn_mode=loop"}).config.expert_ffn_mode, "loop");
}

TEST(Load, ChoicesOfRegistriesReplaceTheSchemas) {
    LoadOptions options{.overrides = required_keys(),
                        .choices = {{"dataset.tokenizer", {"nucleotide", "protein"}}}};
    options.overrides.push_back("dataset.tokenizer=protein");
    EXPECT_EQ(load(options).config.dataset.tokenizer, "protein");
    options.overrides.back() = "dataset.tokenizer=protien";
    EXPECT_EQ(error_of([&] { load(options); }),
              "dataset.tokenizer = protien must be one of nucleotide, protein (command line); did you mean "
              "protein?");
}

TEST(Load, KernelNamesAreCheckedAgainstTheRegistry) {
    LoadOptions options{.overrides = required_keys(),
                        .choices = {{"kernels", {"grouped_gemm", "route"}}, {"kernels.route", {"cpu"}}}};
    options.overrides.push_back("kernels.gruoped_gemm=x");
    EXPECT_EQ(error_of([&] { load(options); }),
              "unknown key kernels.gruoped_gemm (command line); did you mean grouped_gemm?");
    options.overrides.back() = "kernels.route=gpu";
    EXPECT_THAT(error_of([&] { load(options); }), HasSubstr("kernels.route = gpu must be one of cpu"));
    options.overrides.back() = "kernels.route=cpu";
    EXPECT_EQ(load(options).config.kernels.at("route"), "cpu");
}

TEST(Load, KeysNotHonouredYetAreRefusedAllAtOnce) {
    const std::string text =
        error_with({"parallelism.ep_size=2", "profiler.enabled=true", "profiler.start_step=12",
                    "profiler.end_step=20", "dataset.format=fastq", "parallelism.dp_size=4"});
    for (const char* key : {"parallelism.ep_size = 2", "parallelism.dp_size = 4", "profiler.enabled = true",
                            "profiler.start_step = 12", "profiler.end_step = 20", "dataset.format = fastq"}) {
        EXPECT_THAT(text, HasSubstr(std::string(key) + " is not supported: this build ")) << key;
    }
    EXPECT_THAT(text, HasSubstr("(command line)"));
}

TEST(Load, ValuesThatAreHonouredPass) {
    const Loaded loaded =
        load_with({"device=cuda", "cuda_graph=on", "dataset.format=fasta", "parallelism.ep_size=1",
                   "fp8_config.enabled=false", "config_kwargs.num_layers_at_end_in_bf16=0",
                   "use_sequence_packing=true", "activation_checkpointing=full", "dtype=bf16",
                   "grad_dtype=bf16", "adamw_kwargs.state_dtype=bf16", "optimizer_master_weights=false"});
    EXPECT_THAT(not_honoured(loaded.config), ElementsAre());
    const Loaded low = load_with({"fp8_config.enabled=true", "fp8_config.fp8_recipe=DelayedScaling",
                                  "fp8_config.fp8_recipe_kwargs.margin=1", "fp8_stats_config.enabled=true",
                                  "layer_precision=[null, fp8, 'null', bf16]"});
    EXPECT_THAT(low.config.layer_precision.value(), ElementsAre("null", "fp8", "null", "bf16"));
    EXPECT_THAT(not_honoured(low.config), ElementsAre());
}

TEST(Load, PlanningMayAllowWhatThisBuildLacks) {
    LoadOptions options{.overrides = required_keys(), .allow_not_yet = true};
    options.overrides.push_back("parallelism.ep_size=8");
    const Loaded loaded = load(options);
    EXPECT_EQ(loaded.config.parallelism.ep_size, 8);
    EXPECT_THAT(
        not_honoured(loaded.config),
        ElementsAre("parallelism.ep_size = 8 is not supported: this build trains in one process only"));
}

TEST(Load, LowPrecisionThatContradictsItself) {
    EXPECT_THAT(error_with({"layer_precision=[fp8]"}), HasSubstr("needs fp8_config.enabled = true"));
    for (const char* enabled : {"fp8_config.enabled=true", "fp8_config.enabled=false"})
        EXPECT_THAT(error_with({enabled, "layer_precision=[]"}), HasSubstr("layer_precision = [] must list"));
    EXPECT_EQ(load_with({"layer_precision=[bf16]"}).config.layer_precision->size(), 1u);
    EXPECT_THAT(error_with({"fp8_config.enabled=true", "fp8_config.quantized_model_init_kwargs.enabled=true",
                            "fp8_config.keep_weights=off"}),
                HasSubstr("fp8_config.keep_weights = off contradicts"));
    EXPECT_THAT(error_with({"fp8_stats_config.enabled=true"}),
                HasSubstr("fp8_stats_config.enabled = true needs fp8_config.enabled = true"));
    EXPECT_THAT(error_with({"config_kwargs.num_layers_at_end_in_bf16=2"}),
                HasSubstr("config_kwargs.num_layers_at_end_in_bf16 = 2 needs fp8_config.enabled = true"));
    EXPECT_THAT(error_with({"fp8_config.enabled=true", "layer_precision=[fp8, bf16]",
                            "config_kwargs.num_layers_at_start_in_bf16=1"}),
                HasSubstr("both say which layers"));
    EXPECT_THAT(error_with({"fp8_config.enabled=true", "layer_precision=[fp4]"}),
                HasSubstr("layer_precision[0] = fp4 must be one of fp8, bf16, null"));
    EXPECT_THAT(error_with({"fp8_config.quantized_model_init_kwargs.preserve_high_precision_init_val=true"}),
                HasSubstr("which is false"));
    for (const char* masters : {"optimizer_store_param_remainders=true", "optimizer_master_weights=false"}) {
        EXPECT_THAT(error_with({"dtype=bf16", "fp8_config.enabled=true", masters,
                                "fp8_config.quantized_model_init_kwargs.enabled=true"}),
                    HasSubstr("needs fp32 masters"));
    }
    EXPECT_THAT(error_with({"fp8_config.fp8_format=E5M2"}), HasSubstr("fp8_config.fp8_format = E5M2"));
}

TEST(Load, Contradictions) {
    EXPECT_EQ(error_with({"dataset.stride=8190"}),
              "dataset.stride = 8190 must be smaller than dataset.max_seq_length - 2 = 8190 (dataset.stride: "
              "command "
              "line; dataset.max_seq_length: default)");
    EXPECT_EQ(load_with({"dataset.stride=8189"}).config.dataset.stride, 8189);
    EXPECT_EQ(load_with({"dataset.max_seq_length=100", "dataset.stride=null"}).config.dataset.max_seq_length,
              100);
    EXPECT_THAT(error_with({"dataset.token_micro_batch_size=9000"}),
                HasSubstr("dataset.token_micro_batch_size = 9000 needs use_sequence_packing = true"));
    EXPECT_THAT(
        error_with({"dataset.token_micro_batch_size=100", "use_sequence_packing=true"}),
        HasSubstr("dataset.token_micro_batch_size = 100 must be at least dataset.max_seq_length = 8192"));
    EXPECT_THAT(error_with({"dataset.pad_sequences_to_be_divisible_by=16"}),
                HasSubstr("needs use_sequence_packing"));
    EXPECT_THAT(error_with({"dataset.split_samples_in_token_packing=false"}),
                HasSubstr("needs use_sequence_packing"));
    EXPECT_THAT(
        error_with({"config_kwargs.dtype=bfloat16"}),
        HasSubstr("config_kwargs.dtype = \"bfloat16\" does not set the run's precision: dtype = fp32"));
    EXPECT_EQ(load_with({"config_kwargs.torch_dtype=bfloat16", "dtype=bf16"}).config.dtype, "bf16");
    EXPECT_THAT(error_with({"validation.enabled=true"}),
                HasSubstr("needs validation.fraction or validation.data_path"));
    EXPECT_THAT(error_with({"validation.fraction=0.1", "validation.data_path=x"}),
                HasSubstr("set one of them to null"));
    EXPECT_THAT(error_with({"num_train_steps=0"}), HasSubstr("needs time_budget_minutes"));
    EXPECT_EQ(load_with({"num_train_steps=0", "time_budget_minutes=5"}).config.num_train_steps, 0);
    EXPECT_THAT(error_with({"profiler.start_step=20"}),
                HasSubstr("profiler.end_step = 15 must be larger than profiler.start_step = 20"));
    EXPECT_THAT(error_with({"router.num_groups=2", "router.topk_groups=3"}),
                HasSubstr("router.topk_groups = 3 must not be larger than router.num_groups = 2"));
    EXPECT_THAT(error_with({"fusion=strict", "expert_ffn_mode=loop"}),
                HasSubstr("fusion = strict needs expert_ffn_mode = fused_grouped_mlp; loop is never fused"));
}

TEST(Load, PlacesSayWhereEachValueCameFrom) {
    const TempDir dir;
    const auto file = dir.write("a.yaml", with_required("dataset:\n  path: x\n  stride: 5\n"));
    const Loaded loaded =
        load_file(file, {"dataset.stride=6", "kernels.route=cpu", "config_kwargs.hidden_size=8"});
    EXPECT_EQ(loaded.place_of("dataset.path"), file.string() + ":7");
    EXPECT_EQ(loaded.place_of("dataset.stride"), "command line");
    EXPECT_EQ(loaded.place_of("seed"), "default");
    EXPECT_EQ(loaded.place_of("kernels.route"), "command line");
    EXPECT_EQ(loaded.place_of("config_kwargs.hidden_size"), "command line");
    EXPECT_EQ(loaded.config.config_kwargs.at("hidden_size").place, "command line");
    EXPECT_THAT(loaded.files, ElementsAre(file));
}

TEST(Load, FoldersFollowTheName) {
    const TempDir dir;
    const auto file = dir.write("ecoli.yaml", with_required("dataset: {path: x}\n"));
    EXPECT_EQ(load_file(file).name, "ecoli");
    EXPECT_EQ(load_file(file).config.logger.run_dir, "runs/ecoli");
    EXPECT_EQ(load_file(file).config.checkpoint.ckpt_dir, "ckpt");
    EXPECT_EQ(load_file(file, {"checkpoint.ckpt_dir=null"}).config.checkpoint.ckpt_dir,
              "runs/ecoli/checkpoints");
    EXPECT_EQ(load_file(file, {"checkpoint.ckpt_dir=null", "logger.run_dir=/r"}).config.checkpoint.ckpt_dir,
              "/r/checkpoints");
    EXPECT_EQ(load_file(file, {"logger.run_dir=null"}).config.logger.run_dir, "runs/ecoli");
}

// A second genome does not meet the first one's run.
TEST(Load, DataOfTheCommandLineNameTheFolderToo) {
    const auto run_dir = [](const std::string& path) {
        return load_with({"dataset.path=" + path}).config.logger.run_dir;
    };
    EXPECT_EQ(run_dir("yeast.fa"), "runs/train-yeast");
    EXPECT_EQ(run_dir("/data/GCF_000146045.2.fna.gz"), "runs/train-GCF_000146045.2");
    EXPECT_EQ(run_dir("a/b.c.fasta.bgz"), "runs/train-b.c");
    EXPECT_EQ(run_dir("plain"), "runs/train-plain");
    EXPECT_EQ(run_dir("genomes/"), "runs/train-genomes");
    for (const char* no_name : {"'*.fa'", "a.fa,b.fa", "..", ".", "/", "../.."})
        EXPECT_EQ(run_dir(no_name), "runs/train") << no_name;
    const TempDir dir;
    const auto file = dir.write("ecoli.yaml", with_required("dataset: {path: x.fa}\n"));
    EXPECT_EQ(load_file(file).config.logger.run_dir, "runs/ecoli");
    EXPECT_EQ(load_file(file, {"dataset.path=y.fa"}).config.logger.run_dir, "runs/ecoli-y");
    EXPECT_EQ(load_file(file, {"dataset.path=y.fa", "logger.run_dir=r"}).config.logger.run_dir, "r");
    EXPECT_EQ(load({.allow_missing = true}).config.logger.run_dir, "runs/train");
}

TEST(Schedule, NullLengthsFollowTheRun) {
    EXPECT_EQ(warmup_steps({}, 100), 2000);
    EXPECT_EQ(decay_steps({}, 100), 498000);
    LrSchedulerKwargs schedule{.num_warmup_steps = 10, .num_decay_steps = std::nullopt};
    EXPECT_EQ(decay_steps(schedule, 180), 170);
    EXPECT_EQ(decay_steps(schedule, 5), 0);
    schedule.num_warmup_steps.reset();
    EXPECT_EQ(warmup_steps(schedule, 180), 9);
    EXPECT_EQ(decay_steps(schedule, 180), 171);
}

TEST(ConfigKwargs, KnownKeysAreTypedWithTheirPlace) {
    EXPECT_EQ(error_with({"config_kwargs.hidden_size=big"}),
              "config_kwargs.hidden_size = \"big\" must be a whole number (command line)");
    EXPECT_EQ(error_with({"config_kwargs.tie_word_embeddings=yes"}),
              "config_kwargs.tie_word_embeddings = \"yes\" must be true or false (command line)");
    EXPECT_EQ(error_with({"config_kwargs.moe_aux_loss_coeff=-1"}),
              "config_kwargs.moe_aux_loss_coeff = -1 must be at least 0 (command line)");
    EXPECT_EQ(error_with({"config_kwargs.head_dim=x"}),
              "config_kwargs.head_dim = \"x\" must be a whole number or null (command line)");
    EXPECT_EQ(
        error_with({"config_kwargs.hidden_size=064"}),
        "config_kwargs.hidden_size = 064 must be written without leading zeros (numbers are decimal), or in "
        "quotes (command line)");
    EXPECT_EQ(load_with({"config_kwargs.head_dim=null"}).config.config_kwargs.at("head_dim").json, "null");
    EXPECT_EQ(load_with({"config_kwargs={router_jitter_noise: 0.01}"})
                  .config.config_kwargs.at("router_jitter_noise")
                  .json,
              "0.01");
    EXPECT_EQ(error_with({"config_kwargs=3"}), "config_kwargs = 3 must be a map (command line)");
}

}  // namespace
}  // namespace moebius::config::test
