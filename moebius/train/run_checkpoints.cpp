#include "moebius/train/run_checkpoints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <set>

#include "moebius/base/error.h"
#include "moebius/config/print.h"
#include "moebius/data/position.h"

namespace moebius::train {

RunCheckpoints::RunCheckpoints(const config::TrainConfig& config, models::Model& model, DType dtype,
                               const data::Tokenizer& tokenizer, const HostStaging& staging)
    : config_(config),
      model_(model),
      dtype_(dtype),
      tokenizer_(tokenizer),
      staging_(staging),
      store_({.directory = config.checkpoint.ckpt_dir,
              .max_checkpoints = config.checkpoint.max_checkpoints,
              .async = config.checkpoint.async_save},
             checkpoint::real_file_system()) {}

std::optional<FoundRun> RunCheckpoints::resume(const Exec& exec) {
    std::vector<std::string> skipped;
    const auto found =
        checkpoint::latest(checkpoint::real_file_system(), config_.checkpoint.ckpt_dir, &skipped);
    if (!found && skipped.empty()) return {};
    if (!found) {
        // Going on would begin at step 1 and write over what may still be repaired.
        throw Error(fmt::format(
            "every checkpoint in checkpoint.ckpt_dir = {} is damaged or has another's name: {}\n"
            "put one back from a copy, or start anew with checkpoint.resume_from_checkpoint=false, "
            "which sets these aside",
            config_.checkpoint.ckpt_dir, fmt::join(skipped, "; ")));
    }
    FoundRun run{.path = found->path().string()};
    const TrainerState saved = TrainerState::parse(found->trainer(), run.path);
    // A number of steps that was chosen stays.
    const int64_t asked = config_.num_train_steps;
    run.point = {.update = saved.update,
                 .num_train_steps = asked == 0 ? saved.num_train_steps : asked,
                 .window = saved.window};
    check_same_model(saved, state(run.point), run.path);
    check_state_is_kept(saved, state(run.point), run.path);
    run.unused_budget = unused_time_budget(saved, state(run.point));
    check_persistent_weights(saved, state(run.point), run.path);
    // The same layout goes on from its own text; another one's positions are joined.
    const std::vector<std::string> positions = found->rank_texts();
    run.point.position = positions.size() == 1 ? positions.front() : data::resplit(positions, 1).front();
    run.changed = changed_settings(saved, state(run.point));
    run.complete = run.point.update >= run.point.num_train_steps;
    if (run.complete) return run;
    load(*found, saved, exec);
    if (!model_.decoder().low_precision().buffers().empty() && !same_low_precision(saved, state(run.point)))
        run.changed.emplace_back("amax histories begin anew, with scales of 1");
    if (run.point.num_train_steps != saved.num_train_steps) {
        run.changed.push_back(fmt::format("num_train_steps: {} -> {}, over which the learning rate falls",
                                          saved.num_train_steps, run.point.num_train_steps));
    }
    return run;
}

void RunCheckpoints::load(const checkpoint::Checkpoint& from, const TrainerState& saved, const Exec& exec) {
    std::vector<StateEntry> wanted = entries();
    const bool without_masters = !has_masters(saved) && has_masters(state({.update = saved.update}));
    if (without_masters)
        std::erase_if(wanted, [](const StateEntry& entry) { return entry.kind == StateKind::Master; });
    if (!same_low_precision(saved, state({.update = saved.update}))) {
        // Histories of other tensors, or of the same in another format: they begin anew.
        std::set<std::string> fresh;
        for (const StateEntry& entry : model_.decoder().low_precision().buffers())
            fresh.insert(entry.slice.name);
        std::erase_if(wanted, [&](const StateEntry& entry) { return fresh.count(entry.slice.name) > 0; });
    }
    from.load(model_.layouts(), wanted, staging_);
    // The weights that such a run has are its masters.
    if (without_masters) model_.parameters().masters_from_values(exec);
    model_.parameters().touch();
}

std::vector<StateEntry> RunCheckpoints::entries() {
    std::vector<StateEntry> all = model_.parameters().state(true);
    for (StateEntry& buffer : model_.decoder().buffers()) all.push_back(std::move(buffer));
    return all;
}

TrainerState RunCheckpoints::state(const RunPoint& point) const {
    return {.update = point.update,
            .num_train_steps = point.num_train_steps,
            .dtype = config_.dtype,
            .model_config = model_.config().to_json(),
            .router = router_keys(config_),
            .window = point.window,
            .config_yaml = config::to_yaml(config_)};
}

std::string RunCheckpoints::save(const RunPoint& point, bool final) {
    checkpoint::SaveRequest request;
    request.step = point.update;
    request.entries = entries();
    request.staging = &staging_;
    request.pieces = model_.layouts().front().pieces;
    request.model_dtype = dtype_;
    config::ModelConfig written = model_.config();
    written.set_string("dtype", dtype_ == DType::BF16 ? "bfloat16" : "float32");
    request.model_files["config.json"] = written.to_json();
    for (auto& [name, text] : data::hf_tokenizer_files(tokenizer_, config_.dataset.max_seq_length)) {
        request.model_files[name] = std::move(text);
    }
    if (const std::string recipe = models::recipe_in_use(model_.options()); !recipe.empty())
        request.model_metadata[models::kRecipeKey] = recipe;
    request.trainer = state(point).to_json();
    request.rank_text = point.position;
    if (final) {
        store_.save_final(request);
    } else {
        store_.save(request);
    }
    return path_of(point.update);
}

std::string RunCheckpoints::path_of(int64_t step) const {
    return (std::filesystem::path(config_.checkpoint.ckpt_dir) / checkpoint::step_name(step)).string();
}

}  // namespace moebius::train
