// A checkpoint on disk, whole and verified, and how the newest one is found.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moebius/checkpoint/manifest.h"
#include "moebius/checkpoint/model_folder.h"

namespace moebius::checkpoint {

inline constexpr const char* kModelFolder = "model";
inline constexpr const char* kOptimizerFolder = "optimizer";
// Ends the name of everything that is not whole yet.
inline constexpr const char* kPartialSuffix = ".partial";

std::string step_name(int64_t step);                              // "step_000500"
std::optional<int64_t> parse_step_name(const std::string& name);  // empty for any other name

struct LoadReport {
    ImportReport model;               // of the weights that were read from model/; empty if none were
    std::vector<std::string> unused;  // stored, but asked for by no entry: "moment1 of layers.7.mlp.down"
};

class Checkpoint {
  public:
    // Reads every file once to compare sizes and checksums. Throws Error naming the first damaged one.
    Checkpoint(FileSystem& files, const Path& path);

    const Path& path() const { return path_; }
    int64_t step() const { return manifest_.step; }
    int64_t world_size() const { return manifest_.world_size; }  // ranks that wrote it
    const std::string& trainer() const { return manifest_.trainer; }
    std::vector<std::string> rank_texts() const;  // one a rank that wrote it
    Path model_folder() const { return path_ / kModelFolder; }

    // Fills the entries, bit for bit what was saved, whatever ranks saved it: masters, moments and buffers
    // from optimizer/, weights from model/ (from optimizer/ where model/ was written in a narrower type).
    // Throws Error naming what is missing, of another shape or another element type. `staging` reaches the
    // entries' memory.
    LoadReport load(const std::vector<NameLayout>& alternatives, const std::vector<StateEntry>& entries,
                    const HostStaging& staging = HostStaging()) const;

  private:
    FileSystem* files_;
    Path path_;
    Manifest manifest_;
};

// The newest whole checkpoint under `directory`; empty if there is none. A damaged one is named in a warning,
// and in `skipped` if given, and passed over; so is one whose name is of another step. Half-written ones
// (.partial) are not looked at.
std::optional<Checkpoint> latest(FileSystem& files, const Path& directory,
                                 std::vector<std::string>* skipped = nullptr);

}  // namespace moebius::checkpoint
