#include "moebius/train/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "moebius/base/error.h"
#include "moebius/base/version.h"
#include "moebius/checkpoint/file_system.h"

namespace moebius::train {

using Json = nlohmann::ordered_json;

std::vector<std::string> library_versions() {
    return {fmt::format("fmt {}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100),
            fmt::format("nlohmann-json {}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                        NLOHMANN_JSON_VERSION_PATCH)};
}

std::string run_json(const RunRecord& record) {
    const BuildInfo& build = build_info();
    Json inputs = Json::array();
    for (const data::InputFile& file : record.inputs) {
        inputs.push_back({{"path", file.path}, {"bytes", file.bytes}, {"xxh3_128", file.checksum}});
    }
    return Json{{"moebius",
                 {{"version", build.version},
                  {"commit", build.commit},
                  {"dirty", build.dirty},
                  {"build_type", build.build_type},
                  {"compiler", build.compiler}}},
                {"libraries", library_versions()},
                {"config", record.config_name},
                {"command_line", record.command_line},
                {"device",
                 {{"kind", "cpu"},
                  {"name", record.device->description()},
                  {"instructions", name(record.device->isa())}}},
                {"threads", record.threads},
                {"seed", record.seed},
                {"num_train_steps", record.num_train_steps},
                {"resumed_from_step", record.resumed_from_step},
                {"inputs", inputs}}
               .dump(2) +
           "\n";
}

void make_run_folder(const std::filesystem::path& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error || access(folder.c_str(), W_OK) != 0) {
        throw Error(fmt::format("logger.run_dir = {}: cannot write there: {}", folder.string(),
                                error ? error.message() : std::strerror(errno)));
    }
}

std::filesystem::path set_aside(const std::filesystem::path& folder) {
    for (int n = 1;; ++n) {
        std::filesystem::path aside = folder;
        aside += fmt::format(".old-{}", n);
        if (std::filesystem::exists(aside)) continue;
        std::filesystem::rename(folder, aside);
        return aside;
    }
}

void write_file(const std::filesystem::path& path, const std::string& text) {
    checkpoint::FileSystem& files = checkpoint::real_file_system();
    std::filesystem::path temporary = path;
    temporary += ".tmp";
    std::filesystem::remove(temporary);
    checkpoint::write_text(files, temporary, text);
    files.rename(temporary, path);
}

}  // namespace moebius::train
