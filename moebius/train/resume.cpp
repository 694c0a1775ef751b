#include "moebius/train/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "moebius/base/error.h"
#include "moebius/precision/recipe.h"
#include "moebius/train/low_precision.h"

namespace moebius::train {
namespace {

using Json = nlohmann::ordered_json;

// Keys of config.json that say nothing about the weights or the mathematics.
const std::set<std::string> kCosmetic = {"architectures", "dtype", "torch_dtype", "use_cache",
                                         "initializer_range", "transformers_version",
                                         "max_position_embeddings",
                                         // Of the same weights; told as settings that changed.
                                         "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"};

[[noreturn]] void differs(const std::string& key, const Json& saved, const Json& now,
                          const std::string& checkpoint) {
    throw Error(
        fmt::format("{} = {}, but the checkpoint {} has {}: the run cannot go on with another model "
                    "(put it back, or start anew with checkpoint.resume_from_checkpoint=false or another "
                    "logger.run_dir)",
                    key, now.dump(), checkpoint, saved.dump()));
}

void compare(const std::string& prefix, const Json& saved, const Json& now, const std::string& checkpoint) {
    std::set<std::string> keys;
    for (const auto& [key, value] : saved.items()) keys.insert(key);
    for (const auto& [key, value] : now.items()) keys.insert(key);
    for (const std::string& key : keys) {
        if (prefix == "config_kwargs." && kCosmetic.count(key)) continue;
        const Json before = saved.value(key, Json()), after = now.value(key, Json());
        if (before != after) differs(prefix + key, before, after, checkpoint);
    }
}

using Keys = std::map<std::string, std::string>;

// Dotted key -> value, of the block style that config::to_yaml writes (two spaces a level).
Keys flat_keys(const std::string& yaml) {
    Keys keys;
    std::vector<std::string> path;
    std::istringstream lines(yaml);
    for (std::string line; std::getline(lines, line);) {
        const size_t indent = line.find_first_not_of(' '), colon = line.find(':');
        if (indent == std::string::npos || colon == std::string::npos || line[indent] == '#') continue;
        path.resize(std::min(path.size(), indent / 2));
        path.push_back(line.substr(indent, colon - indent));
        const size_t value = line.find_first_not_of(' ', colon + 1);
        // An empty map is as one that is not there: its keys are unset.
        if (value != std::string::npos && line.substr(value) != "{}")
            keys[fmt::format("{}", fmt::join(path, "."))] = line.substr(value);
    }
    return keys;
}

std::string value_of(const Keys& keys, const std::string& key) {
    const auto found = keys.find(key);
    return found == keys.end() ? "(unset)" : found->second;
}

constexpr const char* kMasters = "optimizer_master_weights";

// A key of the run's configuration; `fallback` where it was written before the key was there.
std::string key_of(const TrainerState& state, const std::string& key, const std::string& fallback) {
    const Keys keys = flat_keys(state.config_yaml);
    const auto found = keys.find(key);
    return found == keys.end() ? fallback : found->second;
}

// Where a run writes, how it shows itself, on what it runs, and how long: of no effect on the steps behind
// the resume, or meant to be changed.
bool is_about_the_process(const std::string& key) {
    static const std::set<std::string> kKeys = {
        "num_train_steps", "time_budget_minutes", "device", "num_threads", "cuda_graph", "expert_ffn_mode",
        "fusion", "activation_checkpointing", "dataset.num_workers", "dataset.prefetch_factor",
        // The same codes.
        "fp8_config.keep_weights"};
    if (kKeys.count(key)) return true;
    for (const char* group : {"checkpoint.", "logger.", "validation.", "profiler.", "kernels."})
        if (key.starts_with(group)) return true;
    return false;
}

// What makes a run's first weights.
bool is_about_the_beginning(const std::string& key) {
    return key == "init_from_pretrained" || key == "spike_no_more_embedding_init" ||
           key == "use_megatron_scaled_init" || key.ends_with(".preserve_high_precision_init_val");
}

constexpr const char *kRecipe = "fp8_config.fp8_recipe", *kFormat = "fp8_config.fp8_format",
                     *kOptions = "fp8_config.fp8_recipe_kwargs.", *kLayers = "layer_precision";
constexpr const char* kEnds[] = {"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"};

bool is_about_layers(const std::string& key) {
    return key == kLayers || (key.starts_with("config_kwargs.num_layers_at_") && key.ends_with("_in_bf16"));
}

std::shared_ptr<const precision::Recipe> recipe_of(const Keys& keys) {
    precision::Keywords keywords;
    for (const auto& [key, value] : keys) {
        if (key.starts_with(kOptions))
            keywords[key.substr(std::string_view(kOptions).size())] = keyword_value(value).value_or(value);
    }
    const auto format = keys.find(kFormat);
    return precision::make_recipe(value_of(keys, kRecipe), format == keys.end() ? "" : format->second,
                                  keywords);
}

// Whether `one` and `other` give the same recipe; not where they give none: an option that another needs, or
// one of another version.
bool same_recipe(const Keys& one, const Keys& other) {
    try {
        return *recipe_of(one) == *recipe_of(other);
    } catch (const Error&) {
        return false;
    }
}

// Without the options of the recipe that are as they would be unset.
Keys without_defaults(const Keys& keys) {
    Keys rest = keys;
    for (const auto& [key, value] : keys) {
        if (key != kFormat && !key.starts_with(kOptions)) continue;
        Keys unset = keys;
        unset.erase(key);
        if (same_recipe(unset, keys)) rest.erase(key);
    }
    return rest;
}

// value_of, but of an option that is not there what the recipe takes for it: "1024 (default)".
std::string shown(const Keys& keys, const std::string& key) {
    if (keys.count(key) > 0 || !key.starts_with(kOptions)) return value_of(keys, key);
    const Keys plain = {{kRecipe, value_of(keys, kRecipe)}};
    const std::string history = std::to_string(precision::DelayedOptions().history_length);
    for (const std::string& value :
         {std::string("true"), std::string("false"), std::string("0"), history, std::string("\"max\"")}) {
        Keys set = plain;
        set[key] = value;
        if (same_recipe(set, plain)) return value + " (default)";
    }
    return value_of(keys, key);
}

// What is quantized, and how.
struct LowPrecision {
    Keys written;              // every key that says so
    Keys options;              // those that say anything but a default, without those of layers
    std::vector<bool> layers;  // which are quantized, however that was written

    bool operator==(const LowPrecision& other) const {
        return options == other.options && layers == other.layers;
    }
    bool differs_in(const std::string& key, const LowPrecision& other) const {
        if (is_about_layers(key)) return layers != other.layers;
        return value_of(options, key) != value_of(other.options, key);
    }
};

std::vector<bool> layers_of(const std::string& list, const Json& model) {
    std::vector<bool> layers;
    if (list.starts_with("[")) {
        std::istringstream names(list);
        for (std::string name; std::getline(names, name, ',');)
            layers.push_back(name.find("fp8") != std::string::npos);  // else bf16 or null
        return layers;
    }
    const auto count = [&](const char* key) { return model.value(key, int64_t{0}); };
    const int64_t all = count("num_hidden_layers"), begin = count(kEnds[0]), end = all - count(kEnds[1]);
    for (int64_t i = 0; i < all; ++i) layers.push_back(i >= begin && i < end);
    return layers;
}

LowPrecision low_precision_of(const TrainerState& state) {
    LowPrecision found;
    for (const auto& [key, value] : flat_keys(state.config_yaml)) {
        const bool other = is_about_the_beginning(key) || key == "fp8_config.keep_weights";
        if ((key.starts_with("fp8_config.") && !other) || key == kLayers) found.written[key] = value;
    }
    found.options = without_defaults(found.written);
    found.options.erase(kLayers);
    const Json model = Json::parse(state.model_config);
    for (const char* key : kEnds)
        found.written[std::string("config_kwargs.") + key] = model.value(key, Json(0)).dump();
    found.layers = layers_of(value_of(found.written, kLayers), model);
    return found;
}

}  // namespace

std::string unused_time_budget(const TrainerState& saved, const TrainerState& now) {
    constexpr const char* kBudget = "time_budget_minutes";
    const std::string before = key_of(saved, kBudget, "null"), after = key_of(now, kBudget, "null");
    // A number that is given is what counts, and is told elsewhere.
    if (before == after || key_of(now, "num_train_steps", "0") != "0") return {};
    return fmt::format(
        "{} = {} changes nothing (it was {}): the run keeps the {} steps that were chosen when it began; "
        "num_train_steps=N sets another number",
        kBudget, after, before, saved.num_train_steps);
}

std::vector<std::string> changed_settings(const TrainerState& saved, const TrainerState& now) {
    const Keys before = flat_keys(saved.config_yaml), after = flat_keys(now.config_yaml);
    const LowPrecision low_before = low_precision_of(saved), low_after = low_precision_of(now);
    std::vector<std::string> changed;
    std::set<std::string> keys;
    for (const auto* each : {&before, &after})
        for (const auto& [key, value] : *each) keys.insert(key);
    for (const std::string& key : keys) {
        const std::string old = shown(before, key), value = shown(after, key);
        if (old == value || is_about_the_process(key)) continue;
        // Another spelling of the same.
        const bool spelled = is_about_layers(key) || key.starts_with(kOptions);
        if (spelled && !low_after.differs_in(key, low_before)) continue;
        changed.push_back(
            fmt::format("{}: {} -> {}{}", key, old, value,
                        is_about_the_beginning(key) ? " (changes nothing: the run has begun)" : ""));
    }
    return changed;
}

std::string TrainerState::to_json() const {
    return Json{{"update", update},
                {"num_train_steps", num_train_steps},
                {"dtype", dtype},
                {"model_config", Json::parse(model_config)},
                {"router", Json::parse(router)},
                {"window", Json::parse(window)},
                {"config_yaml", config_yaml}}
        .dump();
}

TrainerState TrainerState::parse(const std::string& text, const std::string& where) {
    try {
        const Json json = Json::parse(text);
        TrainerState state;
        state.update = json.at("update");
        state.num_train_steps = json.at("num_train_steps");
        state.dtype = json.at("dtype");
        state.model_config = json.at("model_config").dump();
        state.router = json.at("router").dump();
        state.window = json.at("window").dump();
        state.config_yaml = json.at("config_yaml");
        return state;
    } catch (const Json::exception& e) {
        throw Error(fmt::format("{}: trainer.json is not one of this program's: {}", where, e.what()));
    }
}

std::string router_keys(const config::TrainConfig& c) {
    return Json{{"score", c.router.score},
                {"selection_bias", c.router.selection_bias},
                {"num_groups", c.router.num_groups},
                {"topk_groups", c.router.topk_groups}}
        .dump();
}

void check_same_model(const TrainerState& saved, const TrainerState& now, const std::string& checkpoint) {
    if (saved.dtype != now.dtype) differs("dtype", saved.dtype, now.dtype, checkpoint);
    compare("config_kwargs.", Json::parse(saved.model_config), Json::parse(now.model_config), checkpoint);
    compare("router.", Json::parse(saved.router), Json::parse(now.router), checkpoint);
}

bool same_low_precision(const TrainerState& saved, const TrainerState& now) {
    return low_precision_of(saved) == low_precision_of(now);
}

void check_persistent_weights(const TrainerState& saved, const TrainerState& now,
                              const std::string& checkpoint) {
    constexpr const char* kEnabled = "fp8_config.quantized_model_init_kwargs.enabled";
    const auto holds_codes = [&](const TrainerState& state) {
        return state.dtype != "fp32" && key_of(state, kEnabled, "false") == "true";
    };
    if (!holds_codes(saved) && !holds_codes(now)) return;
    const LowPrecision before = low_precision_of(saved), after = low_precision_of(now);
    // The keys themselves first: another one that is put back would not help.
    std::vector<std::string> keys = {kEnabled, "fp8_config.enabled", kRecipe};
    for (const auto* each : {&after, &before})
        for (const auto& [key, value] : each->written) keys.push_back(key);
    for (const std::string& key : keys) {
        const std::string old = shown(before.written, key), value = shown(after.written, key);
        if (old == value || !after.differs_in(key, before)) continue;
        throw Error(fmt::format(
            "{} = {}, but the checkpoint {} has {}: which weights are held as codes and fp32 masters alone "
            "({}) cannot change within a run (put it back, or begin another run from its weights with "
            "init_from_pretrained={}/model and another logger.run_dir)",
            key, value, checkpoint, old, kEnabled, checkpoint));
    }
}

bool has_masters(const TrainerState& state) {
    return state.dtype != "fp32" && key_of(state, kMasters, "true") == "true";
}

void check_state_is_kept(const TrainerState& saved, const TrainerState& now, const std::string& checkpoint) {
    const auto check = [&](const char* key, const char* fallback, const char* wide, const char* what) {
        const std::string before = key_of(saved, key, fallback), after = key_of(now, key, fallback);
        if (before != wide || after == before) return;
        throw Error(fmt::format(
            "{} = {}, but the checkpoint {} has {}: going on would round its fp32 {} (put it back, or begin "
            "another run from its weights with init_from_pretrained={}/model and another logger.run_dir)",
            key, after, checkpoint, before, what, checkpoint));
    };
    // fp32 weights are their own masters.
    if (now.dtype != "fp32") check(kMasters, "true", "true", "masters");
    check("adamw_kwargs.state_dtype", "fp32", "fp32", "moments");
}

}  // namespace moebius::train
