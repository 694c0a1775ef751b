// Which files dataset.path means, and what run.json says of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moebius::data {

struct InputFile {
    std::string path;
    int64_t bytes = 0;
    std::string checksum;  // XXH3-128
};

// Each entry is a file, a directory (its files of a known format, by suffix, sorted), or a glob (* ? [..],
// sorted). Throws Error if an entry matches nothing or a file is named twice. What a directory holds besides
// is logged.
std::vector<std::string> expand_paths(const std::vector<std::string>& entries);

// Reads every file once.
std::vector<InputFile> describe_inputs(const std::vector<std::string>& paths);

}  // namespace moebius::data
