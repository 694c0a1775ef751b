// The schema in words: the resolved configuration as YAML, the keys as --help text, the keys as a
// documentation page.
#pragma once

#include <map>
#include <string>

#include "moebius/config/load.h"
#include "moebius/config/schema.h"

namespace moebius::config {

// Every key, so that loading the text gives the same configuration. With `places`, each line says where its
// value came from (Loaded::places) in a comment.
std::string to_yaml(const TrainConfig& config, const std::map<std::string, std::string>& places = {});

// One entry a key: name, type, default, meaning, whether this build honours it.
std::string help_text(const Choices& choices = {});

// docs/configuration.md.
std::string docs_page(const Choices& choices = {});

}  // namespace moebius::config
