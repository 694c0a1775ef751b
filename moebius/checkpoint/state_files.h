// optimizer/: slices of global tensors, one safetensors file a rank, each slice with its global name and
// offset.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moebius/checkpoint/safetensors.h"
#include "moebius/tensor/staging.h"
#include "moebius/tensor/state.h"

namespace moebius::checkpoint {

std::string_view name(StateKind kind);  // "weight", "master", "moment1", "moment2", "buffer"

std::string state_file_name(int64_t rank, int64_t world);  // "optimizer-00000-of-00001.safetensors"

// `extra` goes into the file's metadata; `staging` reaches the entries' memory.
FileRecord write_state_file(FileSystem& files, const Path& path, const std::vector<StateEntry>& entries,
                            Metadata extra, const HostStaging& staging = HostStaging());

// The slices of all ranks of one checkpoint.
class StateFiles {
  public:
    StateFiles(FileSystem& files, const Path& folder, int64_t world);

    bool has(StateKind kind, const std::string& name) const;
    // Fills the entry from whatever slices cover it. Throws Error for one that is missing in part, or of
    // another shape or element type (bf16 moments are read as f32, which holds them exactly).
    void read(const StateEntry& entry, const HostStaging& staging) const;
    const Metadata& metadata(size_t file) const { return readers_[file]->metadata(); }
    // Kind and name of everything that is stored: "moment1 of layers.0.attention.qkv".
    std::vector<std::string> stored() const;

  private:
    struct Stored {
        GlobalSlice slice;
        const SafetensorsReader* file = nullptr;
        const TensorInfo* tensor = nullptr;
    };
    void add(const SafetensorsReader& reader);

    Path folder_;
    std::vector<std::unique_ptr<SafetensorsReader>> readers_;
    std::map<std::pair<StateKind, std::string>, std::vector<Stored>> slices_;  // each by begin, disjoint
};

std::string describe(StateKind kind, const std::string& name);

}  // namespace moebius::checkpoint
