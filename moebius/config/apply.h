// Tree → TrainConfig: the parsing visitor. Inside config/ only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "moebius/config/load.h"
#include "moebius/config/tree.h"

namespace moebius::config {

struct Applied {
    std::map<std::string, std::string> places;
    std::vector<std::string> missing;  // one sentence for each required key without a value
};

// Fills `config` from `root`. Throws Error on unknown keys, wrong types, values out of range or not among the
// choices.
Applied apply_tree(const Tree& root, const Choices& choices, TrainConfig& config);

// Throws Error where keys contradict each other.
void check_contradictions(const Loaded& loaded);

}  // namespace moebius::config
