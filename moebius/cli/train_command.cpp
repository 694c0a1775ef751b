// moebius train: from a configuration to a trained model, with a progress line.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "moebius/base/error.h"
#include "moebius/cli/configuration.h"
#include "moebius/cli/terminal.h"
#include "moebius/train/trainer.h"

namespace moebius::cli {
namespace {

std::string duration(double seconds) {
    constexpr double kLongest = 1e15;  // what is beyond fits no whole number
    const auto total = static_cast<int64_t>(std::min(seconds, kLongest) + 0.5);
    if (total >= 3600) return fmt::format("{}h{:02}m", total / 3600, total / 60 % 60);
    return fmt::format("{}m{:02}s", total / 60, total % 60);
}

struct LinePart {
    std::string text;
    int rank;  // the highest goes first where the line is too long
};

// The parts side by side, as many as fit: a line that wraps can't be written over.
std::string fitting_line(std::vector<LinePart> parts, size_t columns) {
    for (;;) {
        std::string line;
        for (const LinePart& part : parts) line += (line.empty() ? "" : "  ") + part.text;
        if (line.size() <= columns) return line;
        if (parts.size() <= 1) return line.substr(0, columns);
        parts.erase(std::max_element(parts.begin(), parts.end(),
                                     [](const LinePart& a, const LinePart& b) { return a.rank < b.rank; }));
    }
}

// On a terminal one line that is written over; elsewhere a plain line a metrics window, and one of the first
// step.
class TerminalSink : public train::Sink {
  public:
    void note(const std::string& line) override { put(line); }
    void progress(const train::Progress& p) override {
        if (!terminal_ && !p.window_end && begun_) return;
        begun_ = true;
        const std::vector<LinePart> parts = {
            {fmt::format("step {:>{}}/{}", p.step, std::to_string(p.total_steps).size(), p.total_steps), 0},
            {fmt::format("loss {:.4f}", p.loss), 1},
            {fmt::format("lr {:.2e}", p.learning_rate), 5},
            {fmt::format("|g| {:.2f}", p.grad_norm), 4},
            {fmt::format("{:>7.0f} tok/s", p.tokens_per_second), 3},
            {duration(p.seconds_left) + " left", 2}};
        if (!terminal_) {
            print(fitting_line(parts, std::string::npos));
            return;
        }
        // One column less: the cursor behind the last one would already be in the next line.
        print_raw("\r" + fitting_line(parts, static_cast<size_t>(output_columns()) - 1) + "\033[K");
        open_ = true;
        if (p.window_end) put("");
    }
    void validation(const train::ValidationReport& v) override {
        std::string line = fmt::format("step {}  held-out loss {:.4f} (perplexity {:.3f}, {} bases)", v.step,
                                       v.loss, std::exp(v.loss), v.labels);
        if (v.order1 > 0) {
            line +=
                fmt::format("\n  count models of the same training bases: order 1: {:.4f}, order 3: {:.4f}",
                            v.order1, v.order3);
            if (v.cased) {
                line +=
                    "\n  the model's loss contains telling lower case from upper, theirs does not: not to be "
                    "compared (dataset.uppercase_labels=true leaves it out)";
            } else if (!(v.loss < v.order1)) {
                line +=
                    "\n  not below order 1: next to nothing is learnt so far; it may need more steps or more "
                    "data";
            }
        }
        put(line);
    }
    void saved(const std::string& path, int64_t) override { put("checkpoint " + path); }

  private:
    void put(const std::string& line) {
        if (open_) print_raw(line.empty() ? "\n" : "\r\033[K");
        open_ = false;
        if (!line.empty()) print(line);
    }
    const bool terminal_ = output_is_terminal();
    bool open_ = false;   // the cursor stands in a progress line
    bool begun_ = false;  // a line of progress was written
};

class TrainCommand : public Command {
  public:
    std::string name() const override { return "train"; }
    std::string help() const override { return "Train a model"; }
    void declare(Arguments& arguments) override { arguments_.declare(arguments); }
    int run(const std::vector<std::string>& command_line) override {
        TerminalSink sink;
        train::TrainOptions options{.loaded = config::load(arguments_.options()),
                                    .config_dirs = arguments_.config_dirs(),
                                    .command_line = command_line,
                                    .stop = &install_signals(),
                                    .sink = &sink};
        const train::TrainResult result = train::train(options);
        if (output_closed()) {
            throw Error(fmt::format("standard output cannot be written ({}): {}", output_failure(),
                                    result.already_complete
                                        ? "the run was complete before"
                                        : fmt::format("stopped after step {}, saved in {}", result.last_step,
                                                      result.checkpoint)));
        }
        if (result.already_complete) return 0;
        const int64_t steps = result.last_step - result.first_step;
        const std::string where =
            result.checkpoint.empty() ? "no checkpoint" : "checkpoint " + result.checkpoint;
        print(fmt::format("{} after {} step{} in {}; {}", result.stopped ? "stopped" : "done", steps,
                          steps == 1 ? "" : "s", duration(result.seconds), where));
        if (result.stopped) {
            print("the same command goes on from here");
        } else if (!result.checkpoint.empty()) {
            print(fmt::format("Hugging Face opens it: from_pretrained(\"{}/model\")", result.checkpoint));
        }
        return 0;
    }

  private:
    ConfigurationArguments arguments_;
};

}  // namespace

std::unique_ptr<Command> train_command() {
    return std::make_unique<TrainCommand>();
}

}  // namespace moebius::cli
