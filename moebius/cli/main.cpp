// The program: parses, catches, exits. Commands are in files of their own.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <new>
#include <system_error>

#include "moebius/base/error.h"
#include "moebius/base/version.h"
#include "moebius/cli/command.h"
#include "moebius/cli/terminal.h"

namespace moebius::cli {
namespace {

constexpr int kUserError = 1, kUsageError = 2, kInternalError = 3, kReaderLeft = 128 + SIGPIPE;

class CliArguments : public Arguments {
  public:
    explicit CliArguments(CLI::App& app) : app_(app) {}
    void option(const std::string& name, std::string& value, const std::string& help,
                bool required) override {
        auto* added = app_.add_option(name, value, help);
        if (required) added->required();
    }
    void number(const std::string& name, int& value, const std::string& help) override {
        // The parser's own words name neither what is wrong nor what would do.
        app_.add_option(name, value, help)->check([](const std::string& text) -> std::string {
            int number = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
            if (error == std::errc() && end == text.data() + text.size()) return {};
            return text + " is not a whole number, or too large a one";
        });
    }
    void flag(const std::string& name, bool& value, const std::string& help) override {
        app_.add_flag(name, value, help);
    }
    void rest(const std::string& name, std::vector<std::string>& values, const std::string& help) override {
        app_.add_option(name, values, help);
    }
    void footer(std::function<std::string()> text) override { app_.footer(std::move(text)); }

  private:
    CLI::App& app_;
};

int run(int argc, char** argv) {
    CLI::App app{"Moebius trains mixture-of-experts language models on genomes.", "moebius"};
    app.set_version_flag("--version", "moebius " + std::string(build_info().text));
    app.require_subcommand(1);
    app.failure_message([](const CLI::App* parser, const CLI::Error& error) {
        return "error: " + CLI::FailureMessage::simple(parser, error);
    });
    const auto commands = all_commands();
    std::vector<CLI::App*> parsers;
    for (const auto& command : commands) {
        parsers.push_back(app.add_subcommand(command->name(), command->help()));
        CliArguments arguments(*parsers.back());
        command->declare(arguments);
    }
    // CLI11 would only say that a command is required.
    if (argc > 1 && argv[1][0] != '-') {
        std::vector<std::string> names;
        for (const auto& command : commands) names.push_back(command->name());
        if (std::find(names.begin(), names.end(), argv[1]) == names.end()) {
            print_error(fmt::format("error: there is no command '{}'; there are: {}", argv[1],
                                    fmt::join(names, ", ")));
            return kUsageError;
        }
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (app.exit(error) != 0) return kUsageError;
        if (!std::cout.flush()) throw Error("standard output cannot be written");
        return 0;
    }
    const std::vector<std::string> command_line(argv, argv + argc);
    for (size_t i = 0; i < commands.size(); ++i) {
        if (!parsers[i]->parsed()) continue;
        const int code = commands[i]->run(command_line);
        if (code != 0 || !output_closed()) return code;
        // As other programs do: quiet where the reader had enough, an error where the disk is full.
        if (output_reader_left()) return kReaderLeft;
        throw Error(fmt::format("standard output cannot be written: {}", output_failure()));
    }
    return kUsageError;
}

}  // namespace
}  // namespace moebius::cli

int main(int argc, char** argv) {
    using namespace moebius;
    cli::keep_standard_streams();
    try {
        return cli::run(argc, argv);
    } catch (const Error& error) {
        cli::print_error(std::string("error: ") + error.what());
        return cli::kUserError;
    } catch (const std::bad_alloc&) {
        cli::print_error(
            "error: out of memory: make dataset.micro_batch_size, dataset.max_seq_length, "
            "dataset.prefetch_factor or the model (config_kwargs) smaller");
        return cli::kUserError;
    } catch (const std::system_error& error) {
        // Also std::filesystem::filesystem_error: what the system refused, in the system's words.
        cli::print_error(std::string("error: ") + error.what());
        return cli::kUserError;
    } catch (const std::exception& error) {
        cli::print_error(std::string("internal error: ") + error.what());
        return cli::kInternalError;
    }
}
