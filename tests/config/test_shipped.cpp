// The configurations in configs/: all load, and what they say agrees with the recipes they stand for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "helpers.h"
#include "moebius/config/model_config.h"
#include "moebius/config/print.h"

namespace moebius::config::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const std::filesystem::path kConfigs = std::filesystem::path(MOEBIUS_SOURCE_DIR) / "configs";

Loaded shipped(const std::string& name, std::vector<std::string> overrides = {}, bool allow_not_yet = false) {
    return load({.config_name = name,
                 .search_dirs = {kConfigs},
                 .overrides = std::move(overrides),
                 .allow_not_yet = allow_not_yet});
}

ModelConfig model_of(const Loaded& loaded) {
    return ModelConfig::load(loaded.config.config_name_or_path, {kConfigs}, loaded.config.config_kwargs);
}

TEST(Shipped, TheListIsWhole) {
    EXPECT_THAT(config_names({kConfigs}),
                ElementsAre("L0_sanity", "L1_8x7B_ep", "bench_8x7b_layers", "my_genome", "og2_8x7B"));
}

TEST(Shipped, AllLoadAndRoundTrip) {
    for (const std::string& name : config_names({kConfigs})) {
        SCOPED_TRACE(name);
        const Loaded loaded = shipped(name, {"dataset.path=x.fa"}, /*allow_not_yet=*/true);
        EXPECT_EQ(loaded.config.logger.run_dir, "runs/" + name + "-x");
        EXPECT_EQ(loaded.config.checkpoint.ckpt_dir, "runs/" + name + "-x/checkpoints");
        EXPECT_EQ(model_of(loaded).get_string("model_type"), "mixtral");
        const TempDir dir;
        const auto file = dir.write("again.yaml", to_yaml(loaded.config));
        EXPECT_EQ(to_yaml(load({.config_file = file, .allow_not_yet = true}).config), to_yaml(loaded.config));
    }
}

TEST(Shipped, L0SanityNeedsNothingMore) {
    const Loaded loaded = shipped("L0_sanity");
    EXPECT_EQ(loaded.config.dataset.path, "build/data/NC_008253.fna.gz");
    EXPECT_EQ(loaded.config.logger.run_dir, "runs/L0_sanity");
    EXPECT_EQ(loaded.config.dataset.micro_batch_size * loaded.config.dataset.max_seq_length, 8 * 1024);
    EXPECT_EQ(loaded.config.validation.fraction, 0.05);
    const ModelConfig model = model_of(loaded);
    EXPECT_EQ(model.get_int("hidden_size"), 256);
    EXPECT_EQ(model.get_int("intermediate_size"), 512);
    EXPECT_EQ(model.get_int("num_hidden_layers"), 2);
    EXPECT_EQ(model.get_int("num_attention_heads"), 4);
    EXPECT_EQ(model.get_int("num_key_value_heads"), 2);
    EXPECT_EQ(model.get_int("num_local_experts"), 4);
    EXPECT_EQ(model.get_int("num_experts_per_tok"), 2);
    EXPECT_EQ(model.get_int("vocab_size"), 256);
    EXPECT_EQ(model.get_int("eos_token_id"), 0);
    EXPECT_EQ(model.get_int("pad_token_id"), 1);
    EXPECT_EQ(model.get_int("bos_token_id"), 2);
}

TEST(Shipped, MyGenomeNeedsTheDataOnly) {
    EXPECT_THAT(error_of([] { shipped("my_genome"); }), StartsWith("dataset.path is required"));
    const Loaded loaded = shipped("my_genome", {"dataset.path=mine.fa"});
    EXPECT_EQ(loaded.config.num_train_steps, 0);
    EXPECT_TRUE(loaded.config.time_budget_minutes.has_value());
    EXPECT_TRUE(loaded.config.validation.enabled);
    EXPECT_EQ(loaded.config.lr_scheduler_kwargs.num_warmup_steps, std::nullopt);
    EXPECT_EQ(shipped("my_genome", {"dataset.path=x", "num_train_steps=5"}).config.num_train_steps, 5);
}

TEST(Shipped, L1IsRefusedOnlyForWhatThisBuildLacks) {
    const Loaded loaded = shipped("L1_8x7B_ep", {"dataset.path=x"}, /*allow_not_yet=*/true);
    EXPECT_THAT(not_honoured(loaded.config), ElementsAre(StartsWith("parallelism.ep_size = 8 ")));
    EXPECT_THAT(error_of([] { shipped("L1_8x7B_ep", {"dataset.path=x"}); }),
                HasSubstr("parallelism.ep_size = 8 is not supported"));
    const ModelConfig model = model_of(loaded);
    EXPECT_EQ(model.get_int("num_hidden_layers"), 32);
    EXPECT_EQ(model.get_int("hidden_size"), 4096);
    EXPECT_EQ(model.get_int("intermediate_size"), 14336);
    EXPECT_EQ(model.get_int("num_attention_heads"), 32);
    EXPECT_EQ(model.get_int("num_key_value_heads"), 8);
    EXPECT_EQ(model.get_int("num_local_experts"), 8);
    EXPECT_EQ(model.get_int("eos_token_id"), 0);  // the tokenizer's, not Mixtral's
}

TEST(Shipped, Og2AndBenchHave8x7BLayers) {
    const Loaded og2 = shipped("og2_8x7B", {"dataset.path=x"});
    const Loaded bench = shipped("bench_8x7b_layers", {"dataset.path=x"});
    EXPECT_EQ(model_of(og2).get_int("num_hidden_layers"), 32);
    EXPECT_EQ(model_of(bench).get_int("num_hidden_layers"), 2);
    for (const Loaded* loaded : {&og2, &bench}) {
        EXPECT_EQ(model_of(*loaded).get_int("vocab_size"), 256);
        EXPECT_EQ(model_of(*loaded).get_int("hidden_size"), 4096);
        EXPECT_EQ(model_of(*loaded).get_int("intermediate_size"), 14336);
    }
}

}  // namespace
}  // namespace moebius::config::test
