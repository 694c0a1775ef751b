#include "moebius/data/inputs.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "moebius/base/checksum.h"
#include "moebius/base/error.h"
#include "moebius/base/log.h"
#include "moebius/data/source.h"

namespace moebius::data {
namespace {

namespace fs = std::filesystem;

std::string in_lower_case(std::string text) {
    for (char& letter : text)
        if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
    return text;
}

// Without .gz and the like.
std::string unpacked_name(const std::string& path) {
    const std::string lower = in_lower_case(path);
    for (const std::string_view packed : {".gz", ".bgz", ".bgzf"})
        if (lower.ends_with(packed)) return path.substr(0, path.size() - packed.size());
    return path;
}

bool has_known_suffix(const std::string& path) {
    const std::string name = in_lower_case(unpacked_name(path));
    for (const FormatRow& row : formats())
        for (const std::string_view suffix : row.suffixes)
            if (name.ends_with(suffix)) return true;
    return false;
}

void expand_directory(const std::string& directory, std::vector<std::string>& out) {
    std::vector<std::string> taken, passed_over, folders;
    std::error_code error;
    for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
         entry.increment(error)) {
        const std::string path = entry->path().string();
        std::error_code unknown;
        const bool folder = entry->is_directory(unknown);
        (folder ? folders : has_known_suffix(path) ? taken : passed_over).push_back(path);
    }
    if (error) throw Error(fmt::format("cannot read {}: {} (dataset.path)", directory, error.message()));
    const std::string inner =
        folders.empty() ? ""
                        : fmt::format(
                              "; {} folders in it, which are not searched: dataset.path={} names files "
                              "in them",
                              folders.size(), (fs::path(directory) / "*" / "*.fna").string());
    if (taken.empty())
        throw Error(fmt::format(
            "dataset.path = {}: the directory holds no file of a known format (.fa, .fasta, .fna, "
            "…, also with .gz); {} other files{}",
            directory, passed_over.size(), inner));
    // Packed and unpacked, the same bases would be trained on and held out.
    std::map<std::string, std::string> names;
    for (const std::string& path : taken) {
        const auto [at, added] = names.emplace(unpacked_name(path), path);
        if (!added)
            throw Error(fmt::format("dataset.path = {}: {} and {} look like one file twice; name one of them",
                                    directory, at->second, path));
    }
    if (!folders.empty()) log_info(directory + inner);
    if (!passed_over.empty())
        log_info(fmt::format("{}: {} files taken, {} passed over for their suffix, among them {}", directory,
                             taken.size(), passed_over.size(),
                             *std::min_element(passed_over.begin(), passed_over.end())));
    std::sort(taken.begin(), taken.end());
    out.insert(out.end(), taken.begin(), taken.end());
}

void expand_glob(const std::string& pattern, std::vector<std::string>& out) {
    glob_t found{};
    const int rc = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &found);  // sorted
    std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    if (rc == GLOB_ABORTED || rc == GLOB_NOSPACE)
        throw Error(fmt::format("dataset.path = {}: {}", pattern,
                                rc == GLOB_NOSPACE ? "no memory for the names that match"
                                                   : "a folder on the way cannot be read"));
    if (rc != 0 || paths.empty()) throw Error(fmt::format("dataset.path = {} matches no file", pattern));
    out.insert(out.end(), paths.begin(), paths.end());
}

}  // namespace

std::vector<std::string> expand_paths(const std::vector<std::string>& entries) {
    std::vector<std::string> paths;
    for (const std::string& entry : entries) {
        if (entry.empty()) throw Error("dataset.path has an empty entry");
        std::error_code error;
        if (fs::is_directory(entry, error)) {
            expand_directory(entry, paths);
        } else if (fs::exists(entry, error) || entry.find_first_of("*?[") == std::string::npos) {
            paths.push_back(entry);  // what is wrong with it is said when it is opened
        } else {
            expand_glob(entry, paths);
        }
    }
    if (paths.empty()) throw Error("dataset.path names no file");
    std::set<std::string> seen;
    for (const std::string& path : paths) {
        std::error_code error;
        if (!seen.insert(fs::weakly_canonical(path, error).string()).second)
            throw Error(fmt::format("dataset.path names {} twice", path));
    }
    return paths;
}

std::vector<InputFile> describe_inputs(const std::vector<std::string>& paths) {
    std::vector<InputFile> files;
    for (const std::string& path : paths) {
        std::error_code error;
        const fs::file_status status = fs::status(path, error);
        if (fs::exists(status) && !fs::is_regular_file(status))
            throw Error(fmt::format("{} is not a regular file (dataset.path)", path));
        const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
        if (error) throw Error(fmt::format("cannot read {}: {} (dataset.path)", path, error.message()));
        files.push_back({.path = path, .bytes = bytes, .checksum = checksum_of_file(path)});
    }
    return files;
}

}  // namespace moebius::data
