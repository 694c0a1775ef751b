// moebius forward: one batch through a model folder, to compare with any other implementation.
#include <fmt/format.h>

#include "moebius/base/error.h"
#include "moebius/cli/command.h"
#include "moebius/cli/terminal.h"
#include "moebius/eval/forward.h"
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
        arguments.option("--model", model_, "Hugging Face model folder", true);
        arguments.option("--input", input_, "safetensors: input_ids, optional labels and cu_seqlens", true);
        arguments.option("--output", output_, "safetensors to write", true);
        arguments.flag("--gradients", gradients_, "Write grad.<Hugging Face name> too");
        arguments.option("--dtype", config_.dtype, "fp32 (default) or bf16", false);
        arguments.option("--expert-ffn-mode", config_.expert_ffn_mode,
                         "loop, grouped_linear, fused_grouped_mlp", false);
        arguments.option("--activation-checkpointing", config_.activation_checkpointing,
                         "none, moe, attention, full", false);
        arguments.number("--threads", threads_, "CPU threads; 0: all");
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
        Device device = Device::cpu_from_environment();
        HostArena pool;
        ThreadPool threads(threads_ > 0 ? threads_ : train::available_cpus());
        const Exec exec{.device = &device, .pool = &pool, .threads = &threads};
        const eval::ForwardSummary summary = eval::forward({.model = model_,
                                                            .input = input_,
                                                            .output = output_,
                                                            .gradients = gradients_,
                                                            .dtype = train::dtype_from(config_.dtype),
                                                            .model_options = train::model_options(config_)},
                                                           exec);
        print(fmt::format("{} tokens in {} sequences, {} labels, loss {:.6f}; {} ({})", summary.tokens,
                          summary.sequences, summary.labels, summary.loss, output_, summary.layout));
        return 0;
    }

  private:
    static constexpr int kMaxThreads = 1024;  // as num_threads of a configuration

    static void check(const char* option, const std::string& value, const std::vector<std::string>& choices) {
        for (const std::string& choice : choices) {
            if (value == choice) return;
        }
        std::string list;
        for (const std::string& choice : choices) list += (list.empty() ? "" : ", ") + choice;
        throw Error(fmt::format("{} {} is not one of {}", option, value, list));
    }

    std::string model_, input_, output_;
    bool gradients_ = false;
    int threads_ = 0;
    config::TrainConfig config_;
};

}  // namespace

std::unique_ptr<Command> forward_command() {
    return std::make_unique<ForwardCommand>();
}

}  // namespace moebius::cli
