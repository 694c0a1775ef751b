// A run's folder: the resolved configuration, run.json, metrics.jsonl, checkpoints.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "moebius/config/schema.h"
#include "moebius/data/inputs.h"
#include "moebius/runtime/device.h"
#include "moebius/runtime/exec.h"

namespace moebius::train {

struct RunRecord {
    std::vector<std::string> command_line;
    std::string config_name;
    const Device* device = nullptr;
    int threads = 0;
    uint64_t seed = 0;
    int64_t num_train_steps = 0;
    std::vector<data::InputFile> inputs;
    int64_t resumed_from_step = 0;
};

// Libraries that this program has or runs with, "name version".
std::vector<std::string> library_versions();

std::string run_json(const RunRecord& record);
// Each op's variant with its calls a step, and why not the variants before it in the op's table.
std::string kernels_json(const VariantLog& log);

// Makes the folder; throws Error naming path and key where it cannot be written.
void make_run_folder(const std::filesystem::path& folder);

// Holds a folder, made if absent, for one run at a time: a second one gets an Error naming `key`. A process
// that dies gives it back, however it dies; where the file system knows no locks, nothing is held.
class FolderLock {
  public:
    FolderLock(const std::filesystem::path& folder, const char* key);
    ~FolderLock();
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

  private:
    int file_ = -1;
};

// A run or its checkpoints were here: what set_aside may take. A folder with anything else is left alone.
bool holds_a_run(const std::filesystem::path& folder);
// Sets a former run's folder aside under the first free name `folder`.old-N and returns that.
std::filesystem::path set_aside(const std::filesystem::path& folder);
// Whole or not at all.
void write_file(const std::filesystem::path& path, const std::string& text);

}  // namespace moebius::train
