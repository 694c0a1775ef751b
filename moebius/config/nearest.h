// The known name that a mistyped one most likely meant.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moebius::config {

// Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment), case ignored.
int64_t edit_distance(std::string_view a, std::string_view b);

// The candidate that other programs call `name` ("gpu": cuda, "bfloat16": bf16), else the one with the
// smallest distance (the first such one), if that is at most a third of the name's length or 2.
std::optional<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates);

// "; did you mean X?", or "" when none is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

// "; did you mean X?", or "; known: A, B, C" when none is near and there are at most twelve, or "".
std::string suggestion(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace moebius::config
