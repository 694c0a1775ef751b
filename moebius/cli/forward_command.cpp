// moebius forward: one batch through a model folder, to compare with any other implementation.
#include <fmt/format.h>

#include <filesystem>

#include "moebius/base/error.h"
#include "moebius/base/log.h"
#include "moebius/cli/command.h"
#include "moebius/cli/terminal.h"
#include "moebius/config/nearest.h"
#include "moebius/eval/forward.h"
#include "moebius/train/budget.h"
#include "moebius/train/machine.h"
#include "moebius/train/resolve.h"

namespace moebius::cli {
namespace {

class ForwardCommand : public Command {
  public:
    std::string name() const override { return "forward"; }
    std::string help() const override {
        return "Run one batch and write logits, loss, routing and gradients";
    }
    void declare(Arguments& arguments) override {
        arguments.option("--model", model_, "Hugging Face model folder, as a checkpoint's model/", true);
        arguments.option("--input", input_,
                         "safetensors: input_ids, optional labels (not shifted) and cu_seqlens", true);
        arguments.option("--output", output_, "safetensors to write", true);
        arguments.flag("--gradients", gradients_, "Write grad.<Hugging Face name> too");
        arguments.option("--dtype", config_.dtype, "fp32 (default) or bf16", false);
        arguments.option("--expert-ffn-mode", config_.expert_ffn_mode,
                         "loop, grouped_linear, fused_grouped_mlp", false);
        arguments.option("--activation-checkpointing", config_.activation_checkpointing,
                         "none, moe, attention, full", false);
        arguments.option(
            "--fp8-recipe", recipe_,
            "Quantize as fp8_config.fp8_recipe does: none (default), " + list(precision::recipe_names()),
            false);
        arguments.option("--fp8-format", config_.fp8_config.fp8_format, "E4M3 (default) or HYBRID", false);
        arguments.option("--device", config_.device, "auto (default), cpu, cuda", false);
        arguments.number("--threads", threads_, "CPU threads; 0: all");
        arguments.rest("kernels", kernels_,
                       "kernels.OP=VARIANT forces a variant; device=cpu is --device cpu");
    }
    int run(const std::vector<std::string>&) override {
        install_signals();
        check("--dtype", config_.dtype, {"fp32", "bf16"});
        check("--expert-ffn-mode", config_.expert_ffn_mode, {"loop", "grouped_linear", "fused_grouped_mlp"});
        check("--activation-checkpointing", config_.activation_checkpointing,
              {"none", "moe", "attention", "full"});
        if (threads_ < 0 || threads_ > kMaxThreads) {
            throw Error(fmt::format("--threads {} must be between 0 and {}", threads_, kMaxThreads));
        }
        if (recipe_.empty())
            throw Error("--fp8-recipe has no name after it: none, " + list(precision::recipe_names()));
        std::vector<std::string> recipes = precision::recipe_names();
        recipes.insert(recipes.begin(), "none");
        check("--fp8-recipe", recipe_, recipes);
        check("--fp8-format", config_.fp8_config.fp8_format, {"E4M3", "HYBRID"});
        config_.fp8_config.enabled = recipe_ != "none";
        if (config_.fp8_config.enabled) config_.fp8_config.fp8_recipe = recipe_;
        if (!config_.fp8_config.enabled && config_.fp8_config.fp8_format != "E4M3") {
            throw Error(fmt::format("--fp8-format {} needs --fp8-recipe", config_.fp8_config.fp8_format));
        }
        take_overrides();
        check("--device", config_.device, {"auto", "cpu", "cuda"});
        check_model_folder();
        train::Machine machine(config_.device, threads_ > 0 ? threads_ : train::available_cpus());
        train::check_device(config_, machine.device());
        if (machine.on_gpu()) print(machine.line());
        models::ModelOptions model_options = train::model_options(config_);
        model_options.low_precision.keep_weights = gradients_;  // each is used once without
        VariantLog variants;
        Exec exec = machine.exec(&config_.kernels);
        exec.log = &variants;
        const eval::ForwardSummary summary =
            eval::forward({.model = model_,
                           .input = input_,
                           .output = output_,
                           .gradients = gradients_,
                           .dtype = train::dtype_from(config_.dtype),
                           .model_options = model_options,
                           .free_bytes = train::available_memory(machine.device())},
                          exec);
        for (const std::string& line : train::unused_kernels(config_.kernels, variants)) log_warning(line);
        const std::string loss = summary.labels > 0
                                     ? fmt::format("{} labels, loss {:.6f}", summary.labels, summary.loss)
                                     : "no labels, so no loss";
        print(fmt::format("{} tokens in {} sequences, {}; {} (experts' names: {})", summary.tokens,
                          summary.sequences, loss, output_, summary.layout));
        return 0;
    }

  private:
    static constexpr int kMaxThreads = 1024;  // as num_threads of a configuration

    static std::string list(const std::vector<std::string>& words) {
        std::string text;
        for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
        return text;
    }

    static void check(const std::string& option, const std::string& value,
                      const std::vector<std::string>& choices) {
        for (const std::string& choice : choices) {
            if (value == choice) return;
        }
        throw Error(fmt::format("{} {} is not one of {}{}", option, value, list(choices),
                                config::did_you_mean(value, choices)));
    }

    // The checkpoint's folder in place of the model's in it is an easy mistake.
    void check_model_folder() const {
        const std::filesystem::path folder = model_;
        std::error_code error;
        if (std::filesystem::exists(folder / "config.json", error)) return;
        if (std::filesystem::exists(folder / "model" / "config.json", error)) {
            throw Error(fmt::format("--model {} is a checkpoint; its model is {}", model_,
                                    (folder / "model").string()));
        }
        throw Error(fmt::format("--model {} is no model folder: there is no {}", model_,
                                (folder / "config.json").string()));
    }

    void take_overrides() {
        for (const std::string& word : kernels_) {
            const size_t equals = word.find('=');
            const std::string key = word.substr(0, equals);
            const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
            if (key == "device" && !value.empty()) {
                if (config_.device != "auto" && config_.device != value) {
                    throw Error(
                        fmt::format("--device {} and {} contradict each other", config_.device, word));
                }
                config_.device = value;
            } else if (key.starts_with("kernels.") && !value.empty()) {
                take_kernel(key, value);
            } else {
                throw Error(fmt::format("{}: only device=… and kernels.OP=VARIANT can stand here", word));
            }
        }
    }
    void take_kernel(const std::string& key, const std::string& value) {
        const config::Choices choices = train::registry_choices();
        if (choices.count(key) == 0) throw Error(fmt::format("{}: there is no such op", key));
        check(key, value, choices.at(key));
        const auto [at, added] = config_.kernels.emplace(key.substr(std::string("kernels.").size()), value);
        if (!added && at->second != value) {
            throw Error(fmt::format("{0}={1} and {0}={2} contradict each other", key, at->second, value));
        }
    }

    std::string model_, input_, output_;
    std::vector<std::string> kernels_;
    bool gradients_ = false;
    int threads_ = 0;
    config::TrainConfig config_;
    std::string recipe_ = "none";
};

}  // namespace

std::unique_ptr<Command> forward_command() {
    return std::make_unique<ForwardCommand>();
}

}  // namespace moebius::cli
