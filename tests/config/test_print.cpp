#include "moebius/config/print.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>

#include "helpers.h"
#include "moebius/config/fields.h"
#include "moebius/config/scalar.h"

namespace moebius::config::test {
namespace {

using testing::HasSubstr;
using testing::Not;

Loaded reload(const std::string& yaml) {
    const TempDir dir;
    return load({.config_file = dir.write("again.yaml", yaml), .allow_missing = true, .allow_not_yet = true});
}

TEST(ToYaml, HasEveryKey) {
    const std::string yaml = to_yaml(load_with({}).config);
    for (const std::string& key : all_keys(false)) {
        EXPECT_THAT(yaml, HasSubstr(key.substr(key.rfind('.') + 1) + ":")) << key;
    }
    EXPECT_THAT(yaml, HasSubstr("dataset:\n  path: genome.fa\n"));
    EXPECT_THAT(yaml, HasSubstr("  betas: [0.9, 0.95]\n"));
    EXPECT_THAT(yaml, HasSubstr("kernels: {}\n"));
}

// Every key at a value that is not its default, with text that YAML would take for something else.
TEST(ToYaml, RoundTripKeepsEveryValue) {
    LoadOptions options{.allow_not_yet = true};
    options.overrides = {
        "config_name_or_path='a: b #c'",
        "config_kwargs={hidden_size: 64, head_dim: null, hidden_act: '1', architectures: [A, B]}",
        "config_kwargs.rope_parameters={rope_theta: 1e4, rope_type: default}",
        "num_train_steps=9",
        "grad_acc_steps=3",
        "seed=9223372036854775807",
        "time_budget_minutes=0.1",
        "dtype=bf16",
        "grad_dtype=bf16",
        "device=cuda",
        "num_threads=3",
        "parallelism={dp_size: 2, ep_size: 4}",
        "expert_ffn_mode=loop",
        "fusion='off'",
        "activation_checkpointing=moe",
        "cuda_graph=on",
        "kernels={route: 'on', permute: '010'}",
        "fp8_config={enabled: true, fp8_recipe: DelayedScaling, fp8_format: HYBRID, keep_weights: 'on'}",
        "fp8_config.fp8_recipe_kwargs={margin: 1, x.y: [1, a]}",
        "fp8_config.quantized_model_init_kwargs={enabled: true, preserve_high_precision_init_val: true}",
        "layer_precision=[bf16,'null']",
        "init_from_pretrained=~/weights",
        "spike_no_more_embedding_init=true",
        "use_megatron_scaled_init=true",
        "use_weight_decay_grouping=false",
        "skip_embedding_weight_decay=false",
        "clip_grad_norm=0.3",
        "aux_loss={definition: switch, scope: global_batch}",
        "router={score: sigmoid, selection_bias: true, bias_update_rate: 0.01, num_groups: 4}",
        "router.topk_groups=2",
        "router.z_loss_coeff=0.001",
        "use_sequence_packing=true",
        "dataset={path: 'yes', format: parquet, text_column: 'null', micro_batch_size: 3}",
        "dataset.token_micro_batch_size=20000",
        "dataset.max_seq_length=100",
        "dataset.stride=null",
        "dataset={buffer_size: 7, num_workers: 1, prefetch_factor: 2, mask_degenerate_bases: false}",
        "dataset={uppercase_labels: true, split_samples_in_token_packing: false}",
        "dataset.pad_sequences_to_be_divisible_by=16",
        "adamw_kwargs={lr: 1, betas: [0, 0.1], eps: 1e-30, weight_decay: 0.3, state_dtype: bf16}",
        "lr_scheduler_kwargs={num_warmup_steps: null, num_decay_steps: 0, min_lr_ratio: 1}",
        "checkpoint={ckpt_dir: 'a\"b\\c', save_every_n_steps: 1, save_final_model: false}",
        "checkpoint={resume_from_checkpoint: false, max_checkpoints: 1, async_save: false}",
        "logger={frequency: 2, run_dir: 'ü/x y'}",
        "validation={enabled: true, eval_interval: 1, num_batches: 2, fraction: 0.05}",
        "profiler={enabled: true, start_step: 0, end_step: 1}",
        "fp8_stats_config.enabled=true"};
    const Loaded loaded = load(options);
    // What stays at its default here: what contradicts another key above.
    for (const auto& [key, place] : loaded.places) {
        if (key == "optimizer_master_weights" || key == "optimizer_store_param_remainders" ||
            key == "validation.data_path" || key == "dataset.tokenizer")
            continue;
        EXPECT_NE(place, "default") << key;
    }
    const std::string yaml = to_yaml(loaded.config);
    const Loaded again = reload(yaml);
    EXPECT_EQ(to_yaml(again.config), yaml);
    EXPECT_EQ(again.config.config_name_or_path, "a: b #c");
    EXPECT_EQ(again.config.config_kwargs, loaded.config.config_kwargs);
    EXPECT_EQ(again.config.seed, INT64_MAX);
    EXPECT_EQ(again.config.kernels, loaded.config.kernels);
    EXPECT_EQ(again.config.fusion, "off");
    EXPECT_EQ(again.config.fp8_config.fp8_recipe_kwargs, loaded.config.fp8_config.fp8_recipe_kwargs);
    EXPECT_EQ(again.config.layer_precision, loaded.config.layer_precision);
    EXPECT_EQ(again.config.dataset.path, "yes");
    EXPECT_EQ(again.config.dataset.text_column, "null");
    EXPECT_EQ(again.config.dataset.stride, std::nullopt);
    EXPECT_EQ(again.config.adamw_kwargs.eps, 1e-30);
    EXPECT_EQ(again.config.checkpoint.ckpt_dir, "a\"b\\c");
    EXPECT_EQ(again.config.logger.run_dir, "ü/x y");
    EXPECT_EQ(again.config.validation.fraction, 0.05);
    EXPECT_EQ(again.config.lr_scheduler_kwargs.num_warmup_steps, std::nullopt);
}

TEST(ToYaml, RoundTripOfControlCharacters) {
    const std::string path = "a\tb\nc\x01\x7f";
    const std::string yaml = to_yaml(load_with({"dataset.path=\"" + path + "\""}).config);
    EXPECT_EQ(reload(yaml).config.dataset.path, path);
}

TEST(ToYaml, RequiredKeysStayOpen) {
    const std::string yaml = to_yaml(load({.allow_missing = true}).config);
    EXPECT_THAT(yaml, HasSubstr("config_name_or_path: ???\n"));
    EXPECT_THAT(yaml, HasSubstr("num_train_steps: ???\n"));
    EXPECT_THAT(yaml, HasSubstr("  ckpt_dir: ???\n"));
    EXPECT_EQ(to_yaml(reload(yaml).config), yaml);
}

TEST(ToYaml, PlacesAreComments) {
    const Loaded loaded = load_with({"seed=3", "kernels.route=cpu"});
    const std::string yaml = to_yaml(loaded.config, loaded.places);
    EXPECT_THAT(yaml, testing::ContainsRegex("seed: 3 +# command line\n"));
    EXPECT_THAT(yaml, testing::ContainsRegex("grad_acc_steps: 1 +# default\n"));
    EXPECT_THAT(yaml, testing::ContainsRegex("  route: cpu +# command line\n"));
    EXPECT_EQ(to_yaml(reload(yaml).config), to_yaml(loaded.config));
}

TEST(Help, HasEveryKeyWithTypeDefaultAndRange) {
    const std::string help = help_text();
    for (const std::string& key : all_keys(false)) EXPECT_THAT(help, HasSubstr("  " + key + " (")) << key;
    EXPECT_THAT(help, HasSubstr("dataset.stride (whole number or null, at least 0; default 200)"));
    EXPECT_THAT(help, HasSubstr("dataset.path (text; required)"));
    EXPECT_THAT(help, HasSubstr("dtype (one of fp32, bf16; default fp32)"));
    EXPECT_THAT(help,
                HasSubstr("validation.fraction (number or null, above 0 and at most 0.5; default null)"));
    EXPECT_THAT(help, HasSubstr("Only auto, fasta for now: this build reads FASTA only."));
    EXPECT_THAT(help, Not(HasSubstr("protein")));
}

TEST(Help, NamesComeFromTheCaller) {
    const Choices choices = {{"dataset.tokenizer", {"nucleotide", "protein"}},
                             {"kernels", {"route", "permute"}}};
    EXPECT_THAT(help_text(choices),
                HasSubstr("dataset.tokenizer (one of nucleotide, protein; default nucleotide)"));
    EXPECT_THAT(help_text(choices), HasSubstr("kernels (map of names for route, permute; default {})"));
    EXPECT_THAT(docs_page(choices), HasSubstr("one of nucleotide, protein"));
}

TEST(DocsPage, HasARowAKeyAndASectionAGroup) {
    const std::string page = docs_page();
    EXPECT_TRUE(page.starts_with("# Configuration\n"));
    for (const std::string& key : all_keys(false))
        EXPECT_THAT(page, HasSubstr("\n| `" + key + "` | ")) << key;
    EXPECT_THAT(page, HasSubstr("\n## `dataset`\n"));
    EXPECT_THAT(page, HasSubstr("\n## `fp8_config.quantized_model_init_kwargs`\n"));
    EXPECT_THAT(page, HasSubstr("| `dataset.stride` | whole number or null, at least 0 | `200` |"));
    EXPECT_THAT(page, HasSubstr("- `moe_aux_loss_coeff`\n"));
    EXPECT_THAT(page, HasSubstr("kernels.&lt;op>=&lt;variant>"));
    // Four cells a row, whatever the texts hold.
    size_t rows = 0;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with("| `")) continue;
        ++rows;
        int64_t bars = 0;
        for (size_t at = 0; at < line.size(); ++at)
            bars += line[at] == '|' && (at == 0 || line[at - 1] != '\\');
        EXPECT_EQ(bars, 5) << line;
    }
    EXPECT_EQ(rows, all_keys(false).size());
}

TEST(Scalar, YamlTextQuotesWhatReadersWouldChange) {
    EXPECT_EQ(yaml_text("runs/L0_sanity"), "runs/L0_sanity");
    EXPECT_EQ(yaml_text("/data/x.fa.gz"), "/data/x.fa.gz");
    for (const char* text : {"yes", "No",   "ON", "y",  "true", "null", "~",  "1",    "1e5",  "010", "", " x",
                             "a b", "a: b", "#",  "-x", "[a]",  "???",  ".5", "0x10", "1:30", ".inf"}) {
        EXPECT_EQ(yaml_text(text).front(), '"') << text;
    }
}

TEST(Scalar, Utf8IsToldFromBytes) {
    for (const char* text :
         {"", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xed\x9f\xbf", "\xf0\x9f\xa7\xac", "\xf4\x8f\xbf\xbf"})
        EXPECT_TRUE(is_utf8(text)) << text;
    // Latin-1, a lone continuation, cut short, overlong, a surrogate, beyond the last code point.
    for (const char* text : {"g\xe9nome", "\x80", "\xc3", "\xe2\x82", "\xf0\x9f\xa7", "\xc0\xaf",
                             "\xe0\x80\xaf", "\xf0\x80\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"})
        EXPECT_FALSE(is_utf8(text)) << text;
}

TEST(Scalar, DoubleTextReadsBack) {
    for (const double value : {1.0, 0.1, 3e-3, 1e-6, 1e300, 1e-300, 123456789.0, 2.0 / 3.0}) {
        EXPECT_EQ(to_double(double_text(value)), value);
    }
    EXPECT_EQ(double_text(1.0), "1.0");
}

}  // namespace
}  // namespace moebius::config::test
