#include "moebius/train/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "moebius/base/checksum.h"
#include "moebius/base/error.h"
#include "moebius/base/version.h"
#include "moebius/checkpoint/checkpoint.h"
#include "moebius/checkpoint/file_system.h"
#include "moebius/config/load.h"
#include "moebius/data/bgzf_reader.h"
#include "moebius/train/machine.h"

namespace moebius::train {

using Json = nlohmann::ordered_json;

static std::string libc_version() {
    char text[64] = "libc";
    confstr(_CS_GNU_LIBC_VERSION, text, sizeof text);  // "glibc 2.36"
    return text;
}

std::vector<std::string> library_versions() {
    return {config::yaml_library(),
            data::compression_library(),
            checksum_library(),
            fmt::format("fmt {}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100),
            fmt::format("nlohmann-json {}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                        NLOHMANN_JSON_VERSION_PATCH),
            libc_version()};
}

namespace {

Json device_json(const Device& device) {
    if (device.kind() == DeviceKind::Cpu) {
        return {{"kind", "cpu"}, {"name", device.description()}, {"instructions", name(device.isa())}};
    }
    const CudaDevices devices = visible_cuda_devices();
    return {{"kind", "cuda"},
            {"name", device.description()},
            {"index", device.index()},
            {"compute_capability", fmt::format("{}.{}", device.cc() / 10, device.cc() % 10)},
            {"memory_bytes", device.memory_bytes()},
            {"driver", driver_version()},
            {"driver_cuda", cuda_version_text(devices.driver_version)},
            {"runtime_cuda", cuda_version_text(devices.runtime_version)}};
}

}  // namespace

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
                {"device", device_json(*record.device)},
                {"threads", record.threads},
                {"seed", record.seed},
                {"num_train_steps", record.num_train_steps},
                {"resumed_from_step", record.resumed_from_step},
                {"inputs", inputs}}
               .dump(2, ' ', false, Json::error_handler_t::replace) +  // names of files are bytes
           "\n";
}

std::string kernels_json(const VariantLog& log) {
    Json rows = Json::array();
    for (const VariantLog::Entry& entry : log.entries()) {
        Json row{{"op", entry.op}, {"variant", entry.chosen}, {"calls", entry.calls}};
        if (!entry.passed_over.empty()) row["passed_over"] = entry.passed_over;
        rows.push_back(std::move(row));
    }
    return rows.dump(2) + "\n";
}

void make_run_folder(const std::filesystem::path& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error || access(folder.c_str(), W_OK) != 0) {
        throw Error(fmt::format("logger.run_dir = {}: cannot write there: {}", folder.string(),
                                error ? error.message() : std::strerror(errno)));
    }
}

FolderLock::FolderLock(const std::filesystem::path& folder, const char* key) {
    const std::filesystem::path path = folder / ".lock";
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
        throw Error(fmt::format("{} = {}: cannot write there: {}", key, folder.string(), error.message()));
    }
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0) {
        throw Error(
            fmt::format("{} = {}: cannot write there: {}", key, folder.string(), std::strerror(errno)));
    }
    if (flock(file_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
    close(file_);
    throw Error(
        fmt::format("{} = {} is in use by another run that has not ended; wait for it, stop it, or give this "
                    "run another folder",
                    key, folder.string()));
}

// The file stays: one that is removed could be held by a run that opened it just before.
FolderLock::~FolderLock() {
    close(file_);
}

bool holds_a_run(const std::filesystem::path& folder) {
    std::error_code error;
    if (std::filesystem::exists(folder / "run.json", error)) return true;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        if (checkpoint::parse_step_name(entry->path().filename().string())) return true;
    }
    return false;
}

std::filesystem::path set_aside(const std::filesystem::path& folder) {
    // A name of its own, also where it is written as "." or ends in a slash.
    const std::filesystem::path plain = std::filesystem::weakly_canonical(folder);
    if ((std::filesystem::current_path() / "").string().starts_with((plain / "").string())) {
        throw Error(fmt::format(
            "{}: holds a run, and checkpoint.resume_from_checkpoint = false would set it aside, but "
            "it is or holds the current directory: start from elsewhere",
            folder.string()));
    }
    for (int n = 1;; ++n) {
        std::filesystem::path aside = plain;
        aside += fmt::format(".old-{}", n);
        std::error_code error;
        if (std::filesystem::exists(std::filesystem::symlink_status(aside, error))) continue;
        std::filesystem::rename(plain, aside, error);
        if (error) {
            throw Error(
                fmt::format("{}: cannot be set aside as {}: {} (checkpoint.resume_from_checkpoint = "
                            "false; another logger.run_dir needs none of this)",
                            folder.string(), aside.string(), error.message()));
        }
        // Where a link led there, it leads somewhere again.
        std::filesystem::create_directory(plain, error);
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
