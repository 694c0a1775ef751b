// A command of the program: one file and one row in commands.cpp.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace moebius::cli {

// What a command declares of its command line; the parser stands behind it.
class Arguments {
  public:
    virtual ~Arguments() = default;
    virtual void option(const std::string& name, std::string& value, const std::string& help,
                        bool required) = 0;
    virtual void number(const std::string& name, int& value, const std::string& help) = 0;
    virtual void flag(const std::string& name, bool& value, const std::string& help) = 0;
    // Everything that is no option, in order.
    virtual void rest(const std::string& name, std::vector<std::string>& values, const std::string& help) = 0;
    // Shown below the options by --help.
    virtual void footer(std::function<std::string()> text) = 0;
};

class Command {
  public:
    virtual ~Command() = default;
    virtual std::string name() const = 0;
    virtual std::string help() const = 0;
    virtual void declare(Arguments& arguments) = 0;
    // Exit code. Throws Error for the user's mistakes.
    virtual int run(const std::vector<std::string>& command_line) = 0;
};

std::unique_ptr<Command> train_command();
std::unique_ptr<Command> config_command();
std::unique_ptr<Command> forward_command();
std::unique_ptr<Command> info_command();

std::vector<std::unique_ptr<Command>> all_commands();

}  // namespace moebius::cli
