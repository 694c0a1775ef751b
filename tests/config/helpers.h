// A folder of YAML files for a test, and the text of the error that a call throws.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/config/load.h"

namespace moebius::config::test {

class TempDir {
  public:
    TempDir() {
        std::string name = (std::filesystem::temp_directory_path() / "moebius_config_XXXXXX").string();
        path_ = mkdtemp(name.data());
    }
    ~TempDir() { std::filesystem::remove_all(path_); }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path write(const std::string& name, const std::string& text) const {
        const std::filesystem::path file = path_ / name;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file, std::ios::binary) << text;
        return file;
    }

  private:
    std::filesystem::path path_;
};

// The message of the Error that `call` throws; a failure of the test if it throws none.
template <class Call>
std::string error_of(Call call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    }
    ADD_FAILURE() << "no Error was thrown";
    return "";
}

inline const std::vector<std::string>& required_keys() {
    static const std::vector<std::string> kKeys = {"config_name_or_path=l0_sanity", "num_train_steps=7",
                                                   "dataset.path=genome.fa", "checkpoint.ckpt_dir=ckpt"};
    return kKeys;
}

// Loads from overrides alone, the required keys given first.
inline Loaded load_with(const std::vector<std::string>& overrides) {
    LoadOptions options{.overrides = required_keys()};
    options.overrides.insert(options.overrides.end(), overrides.begin(), overrides.end());
    return load(options);
}

inline std::string error_with(const std::vector<std::string>& overrides) {
    return error_of([&] { load_with(overrides); });
}

inline Loaded load_file(const std::filesystem::path& file, std::vector<std::string> overrides = {}) {
    return load({.config_file = file, .overrides = std::move(overrides)});
}

// A YAML text with the required keys, on lines 1 to 5, before it.
inline std::string with_required(const std::string& text) {
    return "config_name_or_path: l0_sanity\nnum_train_steps: 7\ncheckpoint:\n  ckpt_dir: ckpt\n# line 5\n" +
           text;
}

}  // namespace moebius::config::test
