#include "moebius/train/resume.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "moebius/base/error.h"

namespace moebius::train {
namespace {

using Json = nlohmann::ordered_json;

// Keys of config.json that say nothing about the weights or the mathematics.
const std::set<std::string> kCosmetic = {"architectures",
                                         "dtype",
                                         "torch_dtype",
                                         "use_cache",
                                         "initializer_range",
                                         "transformers_version",
                                         "max_position_embeddings"};

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

}  // namespace

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

}  // namespace moebius::train
