// Small text files, read whole. Inside config/ only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace moebius::config {

// The bytes of a file or pipe, `largest` at most. `what` is what it should be ("a configuration file"), for
// errors.
std::string read_text_file(const std::filesystem::path& file, size_t largest, std::string_view what);

}  // namespace moebius::config
