#include "moebius/cli/configuration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "moebius/base/error.h"
#include "moebius/cli/terminal.h"
#include "moebius/config/print.h"
#include "moebius/train/resolve.h"

namespace moebius::cli {

void ConfigurationArguments::declare(Arguments& arguments) {
    arguments.option("--config-name", config_name,
                     "Configuration NAME: NAME.yaml in --config-path or shipped", false);
    arguments.option("--config-path", config_path, "Your own directory of configurations", false);
    arguments.option("--config", config_file, "One configuration file of your own", false);
    arguments.rest("overrides", overrides, "key.sub=value, +key=value, ~key");
    arguments.footer([] {
        return fmt::format("Configurations shipped: {}\n\nKeys:\n{}",
                           fmt::join(config::config_names(shipped_config_dirs()), ", "),
                           config::help_text(train::registry_choices()));
    });
}

config::LoadOptions ConfigurationArguments::options() const {
    if (!config_name.empty() && !config_file.empty()) {
        throw Error(
            fmt::format("--config-name {} and --config {} exclude each other", config_name, config_file));
    }
    return {.config_name = config_name,
            .config_file = config_file,
            .config_path = config_path,
            .search_dirs = shipped_config_dirs(),
            .overrides = overrides,
            .choices = train::registry_choices()};
}

std::vector<std::filesystem::path> ConfigurationArguments::config_dirs() const {
    std::vector<std::filesystem::path> dirs = shipped_config_dirs();
    if (!config_path.empty()) dirs.insert(dirs.begin(), config_path);
    return dirs;
}

}  // namespace moebius::cli
