#include "moebius/cli/command.h"

namespace moebius::cli {

std::vector<std::unique_ptr<Command>> all_commands() {
    std::vector<std::unique_ptr<Command>> commands;
    commands.push_back(train_command());
    commands.push_back(config_command());
    commands.push_back(forward_command());
    commands.push_back(info_command());
    return commands;
}

}  // namespace moebius::cli
