// The options that name a configuration, shared by `train` and `config`.
#pragma once

#include "moebius/cli/command.h"
#include "moebius/config/load.h"

namespace moebius::cli {

struct ConfigurationArguments {
    std::string config_name, config_path, config_file;
    std::vector<std::string> overrides;

    void declare(Arguments& arguments);
    config::LoadOptions options() const;
    // Where models/NAME/config.json is looked for: --config-path, then what is shipped.
    std::vector<std::filesystem::path> config_dirs() const;
};

}  // namespace moebius::cli
