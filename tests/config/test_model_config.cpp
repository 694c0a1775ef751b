#include "moebius/config/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "helpers.h"

namespace moebius::config::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kText = R"({
  "architectures": ["MixtralForCausalLM"],
  "head_dim": null,
  "hidden_size": 64,
  "num_hidden_layers": 2,
  "rms_norm_eps": 1e-05,
  "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
  "tie_word_embeddings": false,
  "vendor_option": 3,
  "vendor_null": null,
  "eos_token_id": [0, 7]
})";

ModelConfig sample() {
    return ModelConfig::parse(kText, "m/config.json");
}

Literals literals(std::initializer_list<std::pair<std::string, std::string>> pairs) {
    Literals result;
    for (const auto& [key, json] : pairs) result[key] = {json, "command line"};
    return result;
}

TEST(ModelConfig, TypedGetters) {
    const ModelConfig config = sample();
    EXPECT_EQ(config.get_int("hidden_size"), 64);
    EXPECT_EQ(config.get_double("rms_norm_eps"), 1e-5);
    EXPECT_EQ(config.get_double("hidden_size"), 64.0);
    EXPECT_EQ(config.get_double("rope_parameters.rope_theta"), 1e6);
    EXPECT_EQ(config.get_string("rope_parameters.rope_type"), "default");
    EXPECT_FALSE(config.get_bool("tie_word_embeddings"));
    EXPECT_THAT(config.get_strings("architectures"), ElementsAre("MixtralForCausalLM"));
    EXPECT_THAT(config.get_ints("eos_token_id"), ElementsAre(0, 7));
    EXPECT_THAT(config.get_ints("vendor_option"), ElementsAre(3));
    EXPECT_TRUE(config.has("head_dim") && config.is_null("head_dim"));
    EXPECT_TRUE(!config.has("absent") && config.is_null("absent"));
    EXPECT_FALSE(config.has("hidden_size.x"));
}

TEST(ModelConfig, FallbacksStandForAbsentAndNullOnly) {
    const ModelConfig config = sample();
    EXPECT_EQ(config.get_int("head_dim", 16), 16);
    EXPECT_EQ(config.get_int("absent", 16), 16);
    EXPECT_EQ(config.get_int("hidden_size", 16), 64);
    EXPECT_EQ(config.get_double("absent", 0.5), 0.5);
    EXPECT_TRUE(config.get_bool("absent", true));
    EXPECT_EQ(config.get_string("absent", "silu"), "silu");
    EXPECT_THAT(error_of([&] { config.get_int("tie_word_embeddings", 3); }),
                HasSubstr("m/config.json: tie_word_embeddings = false must be a whole number"));
}

TEST(ModelConfig, GettersNameFileKeyAndValue) {
    const ModelConfig config = sample();
    EXPECT_EQ(error_of([&] { config.get_int("vocab_size"); }),
              "m/config.json: key vocab_size is missing; it must be a whole number");
    EXPECT_EQ(error_of([&] { config.get_int("head_dim"); }),
              "m/config.json: head_dim = null must be a whole number");
    EXPECT_EQ(error_of([&] { config.get_int("rms_norm_eps"); }),
              "m/config.json: rms_norm_eps = 1e-05 must be a whole number");
    EXPECT_EQ(error_of([&] { config.get_string("hidden_size"); }),
              "m/config.json: hidden_size = 64 must be text");
    EXPECT_EQ(error_of([&] { config.get_bool("hidden_size"); }),
              "m/config.json: hidden_size = 64 must be true or false");
    EXPECT_EQ(
        error_of([&] { config.get_ints("architectures"); }),
        "m/config.json: architectures = [\"MixtralForCausalLM\"] must be a whole number or a list of them");
}

TEST(ModelConfig, SetEraseAndCopy) {
    ModelConfig config = sample();
    ModelConfig copy = config;
    config.set_int("hidden_size", 8);
    config.set_double("new.nested.value", 0.25);
    config.set_bool("tie_word_embeddings", true);
    config.set_string("dtype", "bfloat16");
    config.set_null("num_hidden_layers");
    config.erase("rope_parameters.rope_type");
    config.erase("absent");
    EXPECT_EQ(config.get_int("hidden_size"), 8);
    EXPECT_EQ(config.get_double("new.nested.value"), 0.25);
    EXPECT_TRUE(config.get_bool("tie_word_embeddings"));
    EXPECT_EQ(config.get_string("dtype"), "bfloat16");
    EXPECT_TRUE(config.is_null("num_hidden_layers") && config.has("num_hidden_layers"));
    EXPECT_FALSE(config.has("rope_parameters.rope_type"));
    EXPECT_EQ(copy.get_int("hidden_size"), 64);
    copy = config;
    EXPECT_EQ(copy.get_int("hidden_size"), 8);
    EXPECT_THAT(error_of([&] { config.set_int("hidden_size.x", 1); }), HasSubstr("hidden_size is not a map"));
}

TEST(ModelConfig, ToJsonIsSortedAndReadsBack) {
    const std::string text = sample().to_json();
    EXPECT_TRUE(
        text.starts_with("{\n  \"architectures\": [\n    \"MixtralForCausalLM\"\n  ],\n  \"eos_token_id\""));
    EXPECT_TRUE(text.ends_with("}\n"));
    EXPECT_EQ(ModelConfig::parse(text, "x").to_json(), text);
    EXPECT_EQ(sample().value_json("rope_parameters"), R"({"rope_theta":1000000.0,"rope_type":"default"})");
    EXPECT_EQ(sample().value_json("absent"), "null");
    EXPECT_EQ(sample().keys().size(), 10u);
}

// Hugging Face refuses a whole number for what it declares as a float.
TEST(ModelConfigText, FloatsAreWrittenAsFloats) {
    const std::string text =
        ModelConfig::parse(
            R"({"router_aux_loss_coef": 0, "rms_norm_eps": 1, "hidden_size": 8, "unknown": 3})", "x")
            .to_json();
    EXPECT_THAT(text, HasSubstr("\"router_aux_loss_coef\": 0.0"));
    EXPECT_THAT(text, HasSubstr("\"rms_norm_eps\": 1.0"));
    EXPECT_THAT(text, HasSubstr("\"hidden_size\": 8"));
    EXPECT_THAT(text, HasSubstr("\"unknown\": 3\n"));
}

TEST(ModelConfig, OverridesApply) {
    ModelConfig config = sample();
    config.apply(literals({{"hidden_size", "128"},
                           {"head_dim", "32"},
                           {"moe_aux_loss_coeff", "0.01"},  // known, not in the file
                           {"vendor_option", "4"},          // in the file, not known
                           {"vendor_null", "\"text\""},     // null in the file: of any type
                           {"rope_parameters.rope_theta", "10000"}}));
    EXPECT_EQ(config.get_int("hidden_size"), 128);
    EXPECT_EQ(config.get_int("head_dim"), 32);
    EXPECT_EQ(config.get_double("moe_aux_loss_coeff"), 0.01);
    EXPECT_EQ(config.get_int("vendor_option"), 4);
    EXPECT_EQ(config.get_string("vendor_null"), "text");
    EXPECT_EQ(config.get_double("rope_parameters.rope_theta"), 10000.0);
    EXPECT_EQ(config.get_string("rope_parameters.rope_type"), "default");
    // What is refused later names where that value stands, and no other.
    EXPECT_EQ(config.place_of("head_dim"), "command line");
    EXPECT_EQ(config.place_of("num_hidden_layers"), config.origin());
    EXPECT_EQ(error_of([&] { config.get_int("vendor_null"); }),
              "command line: vendor_null = \"text\" must be a whole number");
}

TEST(ModelConfig, OverridesFollowTheFilesSpelling) {
    ModelConfig nested = sample();
    nested.apply(literals({{"rope_theta", "5.0"}}));
    EXPECT_EQ(nested.get_double("rope_parameters.rope_theta"), 5.0);
    EXPECT_FALSE(nested.has("rope_theta"));
    ModelConfig flat = ModelConfig::parse(R"({"rope_theta": 1.0, "torch_dtype": "float32"})", "x");
    flat.apply(literals({{"rope_parameters.rope_theta", "6.0"}, {"dtype", "\"bfloat16\""}}));
    EXPECT_EQ(flat.get_double("rope_theta"), 6.0);
    EXPECT_FALSE(flat.has("rope_parameters"));
    EXPECT_EQ(flat.get_string("torch_dtype"), "bfloat16");
    ModelConfig none = ModelConfig::parse("{}", "x");
    none.apply(literals({{"rope_theta", "7.0"}}));
    EXPECT_EQ(none.get_double("rope_theta"), 7.0);
}

TEST(ModelConfig, OverrideErrors) {
    ModelConfig config = sample();
    EXPECT_EQ(
        error_of([&] {
            config.apply(literals({{"hiden_size", "1"}}));
        }),
        "unknown key config_kwargs.hiden_size (command line): m/config.json has no such key; did you mean "
        "hidden_size?");
    EXPECT_EQ(error_of([&] {
                  config.apply(literals({{"vendor_option", "\"x\""}}));
              }),
              "config_kwargs.vendor_option = \"x\" must be of the type of 3 in m/config.json (command line)");
    EXPECT_EQ(error_of([&] {
                  config.apply(literals({{"hidden_size", "0"}}));
              }),
              "config_kwargs.hidden_size = 0 must be at least 1 (command line)");
    // Rows of zeros, such as padding, would divide by it.
    EXPECT_EQ(error_of([&] {
                  config.apply(literals({{"rms_norm_eps", "0"}}));
              }),
              "config_kwargs.rms_norm_eps = 0 must be at least 1e-12 (command line)");
    EXPECT_EQ(error_of([&] {
                  config.apply(literals({{"hidden_size", "null"}}));
              }),
              "config_kwargs.hidden_size = null must be a whole number (command line)");
    EXPECT_EQ(error_of([&] {
                  config.apply({{"num_hidden_layers", {"1.5", ""}}});
              }),
              "config_kwargs.num_hidden_layers = 1.5 must be a whole number");
}

TEST(ModelConfig, BadFiles) {
    EXPECT_EQ(error_of([] { ModelConfig::parse("{\n\"a\": 1,\n\"b\": }\n", "f"); }), "f:3: not valid JSON");
    EXPECT_THAT(error_of([] { ModelConfig::parse("", "f"); }), HasSubstr("f:1: not valid JSON"));
    EXPECT_THAT(error_of([] { ModelConfig::parse("[1]", "f"); }), HasSubstr("is a JSON object"));
    EXPECT_EQ(error_of([] { ModelConfig::parse(R"({"a": {"b": 1, "b": 2}})", "f"); }),
              "f: key b appears twice in one map");
    // Copying and writing deep ones would take the stack.
    const std::string open(100000, '['), close(100000, ']');
    EXPECT_THAT(error_of([&] { ModelConfig::parse("{\"a\": " + open + close + "}", "f"); }),
                HasSubstr("f: nested more than 32 deep"));
    EXPECT_THAT(error_of([] { ModelConfig::parse(R"({"a": 18446744073709551615})", "f").get_int("a"); }),
                HasSubstr("a = 18446744073709551615 must be a whole number"));
    EXPECT_EQ(ModelConfig::parse(R"({"a": {"b": 1}, "c": {"b": 2}, "b": [{"b": 3}]})", "f").get_int("c.b"),
              2);
}

TEST(ModelConfig, FindsFilesDirectoriesAndShippedNames) {
    const TempDir dir;
    dir.write("models/tiny/config.json", "{\"hidden_size\": 1}");
    const auto file = dir.write("mine/config.json", "{\"hidden_size\": 2}");
    const std::vector<std::filesystem::path> dirs = {dir.path()};
    EXPECT_EQ(ModelConfig::load("tiny", dirs).get_int("hidden_size"), 1);
    EXPECT_EQ(ModelConfig::load((dir.path() / "mine").string(), dirs).get_int("hidden_size"), 2);
    const ModelConfig config = ModelConfig::load(file.string(), dirs, literals({{"hidden_size", "3"}}));
    EXPECT_EQ(config.get_int("hidden_size"), 3);
    EXPECT_EQ(config.origin(), file.string());
    EXPECT_EQ(ModelConfig(config).place_of("hidden_size"), "command line");
    EXPECT_EQ(
        error_of([&] { ModelConfig::load("tinny", dirs); }),
        "config_name_or_path = tinny is neither a config.json, a directory that holds one, nor the name of a "
        "shipped model; did you mean tiny?");
    EXPECT_THAT(error_of([&] { ModelConfig::load(dir.path().string(), dirs); }),
                HasSubstr("is a directory without a config.json"));
}

}  // namespace
}  // namespace moebius::config::test
