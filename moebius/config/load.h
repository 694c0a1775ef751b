// From YAML files and command-line overrides to a checked TrainConfig.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "moebius/config/schema.h"

namespace moebius::config {

// Dotted key → names that registries know ("dataset.tokenizer", "dataset.format"). "kernels" lists the
// operations, "kernels.<op>" the variants of one. A list given here replaces the schema's own.
using Choices = std::map<std::string, std::vector<std::string>>;

struct LoadOptions {
    std::string config_name{};                         // NAME: NAME.yaml in config_path, then in search_dirs
    std::filesystem::path config_file{};               // or one file of the user's
    std::filesystem::path config_path{};               // the user's own directory of configurations
    std::vector<std::filesystem::path> search_dirs{};  // the shipped configurations
    std::vector<std::string> overrides{};              // "a.b=c", "+a.b=c", "~a.b"
    Choices choices{};
    bool allow_missing = false;  // required keys may stay ??? (to print a configuration)
    bool allow_not_yet = false;  // accept what this build does not honour (to plan for another one)
};

struct Loaded {
    TrainConfig config;
    std::string name;  // of the configuration; "train" when overrides are all there is
    std::map<std::string, std::string> places;  // dotted key → "file.yaml:12", "command line" or "default"
    std::vector<std::filesystem::path> files;   // every file that was read, in the order of composition

    // "default" for a key that nothing set.
    std::string place_of(const std::string& key) const;
};

// Composes files (`defaults:` lists as in Hydra), applies overrides, types and checks every value. Throws
// Error with key, value and place on an unknown, mistyped, missing or contradictory key and on one that this
// build does not honour.
Loaded load(const LoadOptions& options);

// "key = value is not supported: reason" for each key that this build does not honour.
std::vector<std::string> not_honoured(const TrainConfig& config);

// Names that --config-name can take: the stems of the YAML files in these directories, sorted.
std::vector<std::string> config_names(const std::vector<std::filesystem::path>& dirs);

std::string yaml_library();  // "yaml-cpp 0.7.0": name and version that this program was built with

}  // namespace moebius::config
