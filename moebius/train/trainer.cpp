#include "moebius/train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>

#include "moebius/base/error.h"
#include "moebius/comm/registry.h"
#include "moebius/config/print.h"
#include "moebius/train/budget.h"
#include "moebius/train/data_setup.h"
#include "moebius/train/fused_variants.h"
#include "moebius/train/held_out.h"
#include "moebius/train/machine.h"
#include "moebius/train/metrics.h"
#include "moebius/train/resolve.h"
#include "moebius/train/run_checkpoints.h"
#include "moebius/train/run_folder.h"

namespace moebius::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr const char *kRunDir = "logger.run_dir", *kCkptDir = "checkpoint.ckpt_dir";

// A step that is queued, and what its results are told with.
struct InFlight {
    int64_t update = 0;
    int64_t tokens = 0, real_tokens = 0, labels = 0;
    std::string position;                 // of the data, behind its batch
    std::vector<data::MicroBatch> micro;  // nothing but the origins
};

class Trainer {
  public:
    explicit Trainer(const TrainOptions& options);
    TrainResult run();

  private:
    void open_run();
    bool try_resume();
    void fill_model();
    StepPlan make_step();
    void note_fusion(const VariantLog& log) const;
    void note_graph(bool used) const;
    void note_data() const;
    void choose_steps(double flops_per_step);
    void loop();
    void queue_step(int64_t update);
    void finish_steps(size_t still_in_flight);
    void take(const StepResult& result);
    bool state_is_due(int64_t update) const;
    void stop_on_bad_step(const StepResult& result);
    void report(const StepResult& result);
    void validate(bool final);
    void save(bool final);
    void tell_saved();
    bool stop_asked() const { return options_.stop != nullptr && options_.stop->load(); }
    void note(const std::string& line) const { options_.sink->note(line); }

    const TrainOptions& options_;
    const config::TrainConfig& c_;
    std::filesystem::path run_dir_;
    Machine machine_;
    std::unique_ptr<Communicator> world_;
    models::Model model_;
    nn::Run run_;
    HostStaging staging_;
    RunData data_;
    std::unique_ptr<data::Loader> loader_;
    std::optional<Step> step_;
    std::optional<FolderLock> run_lock_, ckpt_lock_;  // given back after the last save
    std::optional<RunCheckpoints> checkpoints_;
    std::unique_ptr<MetricsFile> metrics_;
    Schedule schedule_;
    MetricWindow window_;
    double waited_ = 0;  // of the loader, at the last metrics line
    int64_t num_steps_ = 0, update_ = 0;
    std::string position_;  // of the data, behind the batch of update_
    std::deque<InFlight> in_flight_;
    size_t behind_ = 0;       // steps whose results may be outstanding while the next one is queued
    Clock::time_point mark_;  // where the time of the oldest step in flight begins
    bool said_no_labels_ = false;
    int64_t told_ = -1;  // the last checkpoint that was told
    TrainResult result_;
};

int thread_count(const config::TrainConfig& c) {
    return c.num_threads > 0 ? static_cast<int>(c.num_threads) : available_cpus();
}

Trainer::Trainer(const TrainOptions& options)
    : options_(options),
      c_(options.loaded.config),
      run_dir_(c_.logger.run_dir),
      machine_(c_.device, thread_count(c_)),
      world_(make_communicator("self")),
      model_(config::ModelConfig::load(c_.config_name_or_path, options.config_dirs, c_.config_kwargs),
             model_options(c_, options.loaded.places)),
      staging_(machine_.exec()),
      behind_(static_cast<size_t>(options.results_behind.value_or(machine_.on_gpu() ? 1 : 0))) {
    MOEBIUS_CHECK(behind_ < Step::kInFlight, behind_);
    run_.exec = machine_.exec(&c_.kernels);
    run_.dtype = dtype_from(c_.dtype);
    run_.world = world_.get();
}

TrainResult Trainer::run() {
    check_device(c_, machine_.device(), options_.loaded.places);
    check_aux_loss(model_, c_);
    data_ = open_data(c_);
    check_model_fits_data(model_, *data_.tokenizer, options_.loaded);
    note(machine_.line());
    open_run();
    if (result_.already_complete) return result_;
    loop();
    return result_;
}

// Folder, checkpoint to resume from, memory, data, step.
void Trainer::open_run() {
    // What can be told from data and model alone is told before anything is made.
    check_memory_for_batches(data::batch_shape(*data_.training, loader_options(c_)), c_);
    // Codes alone take what weights in bf16 would.
    const nn::LowPrecisionOptions& low = model_.options().low_precision;
    const bool beside = low.keeps_weights(machine_.device()) && !(low.persistent && c_.dtype != "fp32");
    nn::Decoder& decoder = model_.decoder();
    check_memory_for_parameters(
        model_.parameters().numel(),
        {.quantized = beside ? decoder.low_precision_numel() : 0, .histories = decoder.amax_history_numel()},
        place_options(c_), c_.checkpoint.async_save, machine_.device());
    const std::filesystem::path ckpt_dir = c_.checkpoint.ckpt_dir;
    if (!c_.checkpoint.resume_from_checkpoint) {
        // The one inside the other goes with it, so that nothing is left for the second turn.
        for (const auto& [folder, key] : {std::pair(run_dir_, kRunDir), std::pair(ckpt_dir, kCkptDir)}) {
            if (!holds_a_run(folder)) continue;
            const FolderLock held(folder, key);
            note(fmt::format("{}: set aside as {}", folder.string(), set_aside(folder).string()));
        }
    }
    make_run_folder(run_dir_);
    run_lock_.emplace(run_dir_, kRunDir);
    note(fmt::format("folder: {}", run_dir_.string()));
    // Held before the store looks: it clears away what looks half-written.
    std::error_code error;
    if (!std::filesystem::equivalent(run_dir_, ckpt_dir, error)) ckpt_lock_.emplace(ckpt_dir, kCkptDir);
    checkpoints_.emplace(c_, model_, run_.dtype, *data_.tokenizer, staging_);
    model_.place(place_options(c_), run_.exec);
    num_steps_ = c_.num_train_steps;
    const bool resumed = c_.checkpoint.resume_from_checkpoint && try_resume();
    if (result_.already_complete) return;
    if (!resumed) {
        fill_model();
        const config::QuantizedModelInit& init = c_.fp8_config.quantized_model_init_kwargs;
        if (init.enabled && !init.preserve_high_precision_init_val)
            model_.decoder().low_precision().round_weights(run_);
    }

    data::LoaderOptions options = loader_options(c_);
    options.position = position_;
    loader_ = std::make_unique<data::Loader>(data_.training, options);
    position_ = loader_->position();
    const StepPlan plan = make_step();
    if (num_steps_ == 0) choose_steps(plan.cost.flops);
    schedule_ = schedule(c_, num_steps_);
    metrics_ = std::make_unique<MetricsFile>(run_dir_ / "metrics.jsonl", update_);
    write_file(run_dir_ / "config.yaml", config::to_yaml(c_));
    write_file(run_dir_ / "run.json", run_json({.command_line = options_.command_line,
                                                .config_name = options_.loaded.name,
                                                .device = &machine_.device(),
                                                .threads = machine_.threads(),
                                                .seed = static_cast<uint64_t>(c_.seed),
                                                .num_train_steps = num_steps_,
                                                .inputs = data_.inputs,
                                                .resumed_from_step = update_}));
    result_.first_step = update_;
}

bool Trainer::try_resume() {
    const std::optional<FoundRun> found = checkpoints_->resume(run_.exec);
    if (!found) return false;
    num_steps_ = found->point.num_train_steps;
    update_ = found->point.update;
    result_.checkpoint = found->path;
    result_.first_step = result_.last_step = update_;
    data::LoaderOptions options = loader_options(c_);
    options.position = found->point.position;
    data::check_position(*data_.training, options);
    if (!found->unused_budget.empty()) note("warning: " + found->unused_budget);
    if (found->complete) {
        result_.already_complete = result_.complete = true;
        note(fmt::format("this run is complete: {} has step {} of {}", found->path, update_, num_steps_));
        if (!found->changed.empty()) {
            note(fmt::format("warning: it had other settings, and nothing was trained with these: {}",
                             fmt::join(found->changed, "; ")));
        }
        note(fmt::format(
            "to prolong it: num_train_steps={}; to start anew: checkpoint.resume_from_checkpoint=false or "
            "another logger.run_dir (words of the command; with make: make run ARGS=\"…\")",
            2 * std::max(num_steps_, update_)));
        return true;
    }
    window_ = MetricWindow::parse(found->point.window);
    position_ = found->point.position;
    note(fmt::format("resumed from {} at step {}", found->path, update_));
    if (!found->changed.empty()) {
        note(fmt::format("warning: from here on with settings that the run did not have before: {}",
                         fmt::join(found->changed, "; ")));
    }
    return true;
}

void Trainer::fill_model() {
    if (!c_.init_from_pretrained) {
        model_.parameters().fill(static_cast<uint64_t>(c_.seed), run_.exec);
        return;
    }
    checkpoint::ImportReport report;
    try {
        report = model_.load(*c_.init_from_pretrained, run_.exec);
    } catch (const Error& error) {
        throw Error(fmt::format("{} (init_from_pretrained = {})", error.what(), *c_.init_from_pretrained));
    }
    note(fmt::format("weights from {} ({})", *c_.init_from_pretrained, report.layout));
    const std::string other = models::precision_warning(report, *c_.init_from_pretrained, run_.dtype);
    if (!other.empty()) note("warning: " + other);
    const std::string recipe = models::recipe_warning(report, *c_.init_from_pretrained, model_.options());
    if (!recipe.empty()) note("warning: " + recipe);
    const std::vector<std::string> settings = models::other_settings(*c_.init_from_pretrained, model_);
    if (!settings.empty()) {
        note(fmt::format("warning: {} was made with other settings: {}", *c_.init_from_pretrained,
                         fmt::join(settings, ", ")));
    }
}

StepPlan Trainer::make_step() {
    StepOptions options = step_options(c_, loader_->shape());
    options.cuda_graph = use_cuda_graph(c_, model_.options(), machine_.device());
    step_.emplace(model_, options, run_, &machine_.host_memory());
    StepPlan plan = step_->plan();
    check_memory_for_step(plan, machine_.memory(), c_, machine_.device());
    const models::Model& m = model_;
    constexpr double kMiB = 1 << 20;
    note(fmt::format(
        "model: {:.2f} M parameters ({:.2f} M active a token), {}; step: {} x {} tokens, {:.1f} GFLOP, "
        "{:.0f} MiB at most ({:.0f} kept for backward, {} bytes a token)",
        static_cast<double>(m.parameters().numel()) / 1e6, static_cast<double>(m.active_parameters()) / 1e6,
        c_.dtype, c_.grad_acc_steps, loader_->shape().capacity, plan.cost.flops / 1e9,
        static_cast<double>(plan.bytes + plan.scratch_bytes) / kMiB,
        static_cast<double>(plan.saved_bytes) / kMiB, plan.saved_bytes / loader_->shape().capacity));
    std::vector<std::string> holders;
    for (const PoolReport::Row& row : plan.memory.at_peak(6))
        holders.push_back(fmt::format("{} {:.1f}", row.name, static_cast<double>(row.at_peak_bytes) / kMiB));
    note(
        fmt::format("memory of the step when it is most, in MiB: {}; kept in memory of gradients that are "
                    "written later: {:.1f}",
                    fmt::join(holders, ", "), static_cast<double>(plan.lent_bytes) / kMiB));
    if (const auto keys = keys_beyond_hugging_face(c_); !keys.empty()) {
        note(
            fmt::format("warning: {}: config.json has no such key, so whoever opens this run's model folders "
                        "computes without it",
                        fmt::join(keys, ", ")));
    }
    if (m.options().low_precision.recipe)
        note(fmt::format("low precision: {}", describe_low_precision(model_.decoder())));
    note_fusion(plan.variants);
    for (const std::string& line : unused_kernels(c_.kernels, plan.variants)) note("warning: " + line);
    if (machine_.on_gpu()) note_graph(options.cuda_graph);
    note_data();
    return plan;
}

void Trainer::note_data() const {
    note(fmt::format("data: {} training windows of {} files, {} tokens held out", data_.training->size(),
                     data_.inputs.size(), data_.held_out ? data_.held_out->tokens() : 0));
    for (const std::string& line : unused_fp8_keys(c_.fp8_config)) note("warning: " + line);
    if (const double share = data_.dataset->uncertain_share();
        share >= 0.01 && c_.dataset.mask_degenerate_bases) {
        note(fmt::format(
            "data: {:.1f}% of the letters are not A, C, G or T (N, other IUPAC codes, U of RNA) and "
            "are no labels: dataset.mask_degenerate_bases=false makes them labels",
            100 * share));
    }
    if (!data_.dataset->soft_masked()) return;
    note(fmt::format("data: {:.1f}% of the letters are lower case (soft masking), {}",
                     100 * data_.dataset->lower_case_share(),
                     c_.dataset.uppercase_labels
                         ? "and labels are upper case: the model sees the mask and need not predict it"
                         : "which are tokens of their own: dataset.uppercase_labels=true, in another "
                           "logger.run_dir, keeps the model from learning to predict the mask"));
}

// What became of a fusion that was asked for, of the layers and inside the operations that replace them; a
// lost one is said aloud.
void Trainer::note_fusion(const VariantLog& log) const {
    if (c_.expert_ffn_mode != "fused_grouped_mlp") return;
    const std::vector<FusedVariant> variants =
        fused_variants(log, ops::registry(), machine_.device().kind(), machine_.device().cc());
    if (c_.fusion == "strict") check_strict_fusion(variants);
    const std::vector<nn::FusionReportRow> report = model_.decoder().fusion_report();
    const auto lost = std::find_if(report.begin(), report.end(), [](const auto& row) { return !row.fused; });
    if (!report.empty() && lost == report.end()) {
        const std::string& rest = report.front().note;
        note(fmt::format("experts: {} in all {} layers{}; {}", report.front().pattern, report.size(),
                         rest.empty() ? "" : ", " + rest, describe(variants)));
    } else {
        note(fmt::format(
            "warning: expert_ffn_mode = fused_grouped_mlp runs unfused: {}",
            lost == report.end() || lost->reason.empty() ? "fusion = " + c_.fusion : lost->reason));
    }
}

void Trainer::note_graph(bool used) const {
    const std::string reason = why_no_cuda_graph(model_.options());
    note(used ? "steps run as one CUDA graph from the second on"
              : fmt::format("steps run without a CUDA graph: {}",
                            c_.cuda_graph == "off" ? "cuda_graph = off" : reason));
}

void Trainer::choose_steps(double flops_per_step) {
    const StepBudget budget =
        choose_num_steps({.training_tokens = data_.training->tokens(),
                          .tokens_per_step = loader_->shape().capacity * c_.grad_acc_steps,
                          .flops_per_step = flops_per_step,
                          .minutes = c_.time_budget_minutes.value_or(10.0),
                          .dtype = run_.dtype,
                          .codes = model_.options().low_precision.recipe != nullptr},
                         run_.exec);
    num_steps_ = budget.steps;
    note(fmt::format("num_train_steps = {} chosen: {}", num_steps_, budget.reason));
}

void Trainer::loop() {
    const auto start = Clock::now();
    for (int64_t queued = update_; queued < num_steps_ && !stop_asked();) {
        queue_step(++queued);
        finish_steps(state_is_due(queued) || stop_asked() ? 0 : behind_);
        checkpoints_->poll();
        tell_saved();
        if (!in_flight_.empty()) continue;
        const bool last = update_ == num_steps_;
        const bool due = c_.validation.eval_interval > 0 && update_ % c_.validation.eval_interval == 0;
        if (data_.held_out && due && !last) validate(false);
        if (last || stop_asked()) break;
        if (update_ % c_.checkpoint.save_every_n_steps == 0) save(false);
    }
    finish_steps(0);
    result_.seconds = seconds_since(start);
    result_.last_step = update_;
    result_.complete = update_ == num_steps_;
    result_.stopped = !result_.complete;
    const auto save_last = [&] {
        const bool due =
            result_.last_step > result_.first_step && update_ % c_.checkpoint.save_every_n_steps == 0;
        if (result_.stopped || due || c_.checkpoint.save_final_model) save(true);
    };
    // The checkpoint comes last: a run that ends in between is not taken for complete, and its validation is
    // made up for.
    if (result_.complete && data_.held_out) {
        try {
            validate(true);
        } catch (...) {
            save_last();
            throw;
        }
    }
    save_last();
    checkpoints_->wait();
    tell_saved();
}

// Whether something is done with the state behind this step, so that its results must be in first.
bool Trainer::state_is_due(int64_t update) const {
    const int64_t every = c_.validation.eval_interval;
    return update == num_steps_ || update % c_.checkpoint.save_every_n_steps == 0 ||
           (data_.held_out && every > 0 && update % every == 0);
}

void Trainer::queue_step(int64_t update) {
    if (in_flight_.empty()) mark_ = Clock::now();
    const data::StepBatch* batch = loader_->next_step();
    MOEBIUS_CHECK(batch != nullptr, "training data ended");
    InFlight step{.update = update,
                  .tokens = batch->tokens,
                  .real_tokens = batch->real_tokens,
                  .labels = batch->labels,
                  .position = loader_->position()};
    for (const data::MicroBatch& micro : batch->micro) step.micro.push_back({.origins = micro.origins});
    const bool first = step_->variants().entries().empty();
    step_->enqueue(*batch, update, schedule_.rate(update));
    if (first) write_file(run_dir_ / "kernels.json", kernels_json(step_->variants()));
    in_flight_.push_back(std::move(step));
}

void Trainer::finish_steps(size_t still_in_flight) {
    while (in_flight_.size() > still_in_flight) take(step_->finish());
}

// The results of the oldest step in flight.
void Trainer::take(const StepResult& result) {
    if (result.bad) stop_on_bad_step(result);
    const InFlight step = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (step.labels == 0 && !said_no_labels_) {
        said_no_labels_ = true;
        note(fmt::format(
            "warning: step {}: no label counts (all N, or dataset.mask_degenerate_bases masks them "
            "all): {}",
            step.update, data::describe_origins(*data_.dataset, step.micro.front())));
    }
    position_ = step.position;
    update_ = step.update;
    window_.add(result, step.tokens, step.real_tokens, seconds_since(mark_));
    mark_ = Clock::now();
    result_.final_loss = result.loss;
    report(result);
}

void Trainer::stop_on_bad_step(const StepResult& result) {
    // Nothing was updated, by this step or by one behind it: what is in memory is the state before it.
    std::string kept;
    try {
        save(true);
        kept = "the state before this step is in " + result_.checkpoint;
    } catch (const Error& error) {
        kept = std::string("the state before this step could not be saved: ") + error.what();
    }
    std::string origins;
    for (const data::MicroBatch& micro : in_flight_.front().micro) {
        origins += (origins.empty() ? "" : "; ") + data::describe_origins(*data_.dataset, micro);
    }
    throw Error(
        fmt::format("step {}: loss {}, gradient norm {}: not finite, so nothing was updated\n"
                    "  batch: {}\n  {}\n"
                    "  a smaller adamw_kwargs.lr, a longer lr_scheduler_kwargs.num_warmup_steps or a smaller "
                    "clip_grad_norm may help",
                    update_ + 1, result.loss, result.grad_norm, origins, kept));
}

void Trainer::report(const StepResult& result) {
    const bool window_end = update_ % c_.logger.frequency == 0 || update_ == num_steps_;
    const double seconds = std::max(window_.seconds(), 1e-9);
    options_.sink->progress({.step = update_,
                             .total_steps = num_steps_,
                             .loss = window_.loss(),
                             .learning_rate = schedule_.rate(update_),
                             .grad_norm = result.grad_norm,
                             .tokens_per_second = static_cast<double>(window_.tokens()) / seconds,
                             .seconds_left = seconds / static_cast<double>(window_.steps()) *
                                             static_cast<double>(num_steps_ - update_),
                             .window_end = window_end});
    if (!window_end) return;
    const nn::DecoderOptions& d = model_.options();
    const double waited = loader_->seconds_waited();
    metrics_->append(metrics_json(
        {.step = update_,
         .total_steps = num_steps_,
         .learning_rate = schedule_.rate(update_),
         .last = result,
         .window = &window_,
         .layers = d.layers,
         .experts = d.layer.moe.experts.experts,
         .flops_per_token = model_.flops_per_token(loader_->shape().max_seqlen),
         .peak_flops = peak_flops(machine_.device(), product_dtype(d, run_.dtype, machine_.device())),
         .memory = machine_.memory(),
         .data_wait_seconds = waited - waited_}));
    waited_ = waited;
    window_.reset();
}

void Trainer::validate(bool final) {
    const auto report = HeldOut(data_, c_).measure(model_, step_->base_run(), update_, final);
    if (!report) {
        note("warning: the held-out data have no label that counts, so there is no held-out loss");
        return;
    }
    if (!std::isfinite(report->loss)) {
        note(fmt::format("warning: the held-out loss is not finite at step {}: the model is of no use",
                         update_));
    }
    result_.validation_loss = report->loss;
    metrics_->append(validation_json(*report));
    options_.sink->validation(*report);
}

void Trainer::save(bool final) {
    checkpoints_->wait();
    tell_saved();
    result_.checkpoint = checkpoints_->save({.update = update_,
                                             .num_train_steps = num_steps_,
                                             .position = position_,
                                             .window = window_.to_json()},
                                            final);
    tell_saved();
}

// A checkpoint behind the steps is told when it is whole, not before: it may yet fail.
void Trainer::tell_saved() {
    const int64_t step = checkpoints_->last_saved();
    if (step == told_) return;
    told_ = step;
    options_.sink->saved(checkpoints_->path_of(step), step);
}

}  // namespace

TrainResult train(const TrainOptions& options) {
    return Trainer(options).run();
}

}  // namespace moebius::train
