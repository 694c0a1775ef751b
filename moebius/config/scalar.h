// Text → typed values, by one set of rules for YAML and the command line. Inside config/ only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moebius::config {

// What a plain scalar looks like. `Octal` (010) and `Grouped` (1_000) are numbers to some readers and not to
// others: they are refused wherever a number can stand.
enum class Looks { Bool, Int, Float, Null, Octal, Grouped, Text };
Looks looks_like(const std::string& text);

std::optional<int64_t> to_int(const std::string& text);    // decimal; nothing if it isn't one or doesn't fit
std::optional<double> to_double(const std::string& text);  // finite decimal; integers too
bool is_utf8(std::string_view text);
std::string double_text(double value);  // shortest that reads back the same, always with . or e
// As a YAML scalar: plain where no reader could take it for anything but this text, otherwise in double
// quotes.
std::string yaml_text(const std::string& text);

// "a.b.c" into its three names.
std::vector<std::string> parts_of(std::string_view dotted_key);

}  // namespace moebius::config
