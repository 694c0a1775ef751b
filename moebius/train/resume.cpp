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

// Dotted key -> value, of the block style that config::to_yaml writes (two spaces a level).
std::map<std::string, std::string> flat_keys(const std::string& yaml) {
    std::map<std::string, std::string> keys;
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

std::string value_of(const std::map<std::string, std::string>& keys, const std::string& key) {
    const auto found = keys.find(key);
    return found == keys.end() ? "(unset)" : found->second;
}

constexpr const char* kMasters = "optimizer_master_weights";

// A key of the run's configuration; `fallback` where it was written before the key was there.
std::string key_of(const TrainerState& state, const std::string& key, const std::string& fallback) {
    const std::map<std::string, std::string> keys = flat_keys(state.config_yaml);
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

// Drops the options of the recipe that are as they would be unset.
void drop_defaults(std::map<std::string, std::string>& keys) {
    const std::string kFormat = "fp8_config.fp8_format", kOptions = "fp8_config.fp8_recipe_kwargs.";
    const auto recipe = [&](const std::string& without) {
        precision::Keywords keywords;
        for (const auto& [key, value] : keys) {
            if (key.starts_with(kOptions) && key != without)
                keywords[key.substr(kOptions.size())] = keyword_value(value).value_or(value);
        }
        const bool has_format = keys.count(kFormat) > 0 && without != kFormat;
        return precision::make_recipe(value_of(keys, "fp8_config.fp8_recipe"),
                                      has_format ? keys.at(kFormat) : "", keywords);
    };
    std::vector<std::string> unset;
    for (const auto& [key, value] : keys) {
        if (key != kFormat && !key.starts_with(kOptions)) continue;
        try {
            if (*recipe(key) == *recipe("")) unset.push_back(key);
        } catch (const Error&) {
            // An option that another needs, or one of another version: as it stands.
        }
    }
    for (const std::string& key : unset) keys.erase(key);
}

// Of what is quantized, and how.
std::map<std::string, std::string> low_precision_keys(const TrainerState& state) {
    std::map<std::string, std::string> found;
    for (const auto& [key, value] : flat_keys(state.config_yaml)) {
        const bool other = is_about_the_beginning(key) || key == "fp8_config.keep_weights";
        if ((key.starts_with("fp8_config.") && !other) || key == "layer_precision") found[key] = value;
    }
    const Json model = Json::parse(state.model_config);
    for (const char* key : {"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"})
        found[std::string("config_kwargs.") + key] = model.value(key, Json(0)).dump();
    drop_defaults(found);
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

std::vector<std::string> changed_settings(const std::string& saved_yaml, const std::string& now_yaml) {
    const std::map<std::string, std::string> saved = flat_keys(saved_yaml), now = flat_keys(now_yaml);
    std::vector<std::string> changed;
    std::set<std::string> keys;
    for (const auto* each : {&saved, &now})
        for (const auto& [key, value] : *each) keys.insert(key);
    for (const std::string& key : keys) {
        const std::string old = value_of(saved, key), value = value_of(now, key);
        if (old == value || is_about_the_process(key)) continue;
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
    return low_precision_keys(saved) == low_precision_keys(now);
}

void check_persistent_weights(const TrainerState& saved, const TrainerState& now,
                              const std::string& checkpoint) {
    constexpr const char* kEnabled = "fp8_config.quantized_model_init_kwargs.enabled";
    const auto holds_codes = [&](const TrainerState& state) {
        return state.dtype != "fp32" && key_of(state, kEnabled, "false") == "true";
    };
    if (!holds_codes(saved) && !holds_codes(now)) return;
    const auto before = low_precision_keys(saved), after = low_precision_keys(now);
    // The key itself first: another one that is put back would not help.
    std::vector<std::string> keys = {kEnabled};
    for (const auto* each : {&after, &before})
        for (const auto& [key, value] : *each) keys.push_back(key);
    for (const std::string& key : keys) {
        const std::string old = value_of(before, key), value = value_of(after, key);
        if (old == value) continue;
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
