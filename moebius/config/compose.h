// Finding YAML files and joining them along their defaults lists. Inside config/ only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "moebius/config/load.h"
#include "moebius/config/tree.h"

namespace moebius::config {

// The tree of the configuration that `options` names, before overrides; an empty map if it names none.
// Appends the files read to `files`. Each defaults entry is `name`, `dir/name`, `{dir: name}`, or one of
// these with "optional " before it; a file in `dir` gives the keys below `dir.`, unless it begins with "#
// @package _global_". Later entries win; the file itself stands where `_self_` is, at the end without it.
Tree compose(const LoadOptions& options, std::vector<std::filesystem::path>& files);

}  // namespace moebius::config
