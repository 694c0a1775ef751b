// A Hugging Face model folder: model.safetensors, or shards with an index; written from slices, read into
// slices.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "moebius/checkpoint/name_rules.h"
#include "moebius/checkpoint/safetensors.h"
#include "moebius/tensor/staging.h"
#include "moebius/tensor/state.h"

namespace moebius::checkpoint {

// The weight files of a folder (or one .safetensors file), opened and their headers checked.
class WeightFiles {
  public:
    WeightFiles(FileSystem& files, const Path& folder);

    struct Located {
        const SafetensorsReader* file = nullptr;
        const TensorInfo* tensor = nullptr;
    };
    // Null members if there is none of that name.
    Located find(const std::string& name) const;
    const std::map<std::string, Located>& tensors() const { return tensors_; }
    const Path& folder() const { return folder_; }
    // Of the first file: those of one folder say the same.
    const Metadata& metadata() const { return readers_.front()->metadata(); }

  private:
    void add(FileSystem& files, const Path& path);
    void add_indexed(FileSystem& files, const Path& index);

    Path folder_;
    std::vector<std::unique_ptr<SafetensorsReader>> readers_;
    std::map<std::string, Located> tensors_;
};

struct ImportReport {
    std::string layout;               // which of the alternatives the folder has
    std::vector<std::string> absent;  // optional external names that it lacks
    // Element types of the tensors that were read, each once: what to compare with the configured dtype.
    std::vector<FileType> types;
    Metadata metadata;  // of the weight files
};

enum class Conversion : uint8_t {
    Any,    // between floating-point types, rounded to nearest even
    Exact,  // the file's type or, from F32, a narrower one that it was widened from
};

// Fills the entries of kinds Weight, Master and Buffer from a folder in any of the layouts; moments are left
// alone. Each rank gives its own entries and reads only their ranges. Throws Error naming tensor and file for
// a tensor that is missing, unknown to the layout, of another shape, of a type that does not convert, or cut
// short. `staging` reaches the entries' memory.
ImportReport import_model(FileSystem& files, const Path& folder, const std::vector<NameLayout>& alternatives,
                          const std::vector<StateEntry>& entries, Conversion conversion = Conversion::Any,
                          const HostStaging& staging = HostStaging());

struct ExportOptions {
    DType dtype = DType::F32;  // of floating-point tensors
    int64_t max_shard_bytes = 5'000'000'000;
    // Several ranks write one folder: the first creates the files, the others join, each writes its own
    // entries.
    OpenMode mode = OpenMode::Create;
    // A process that is alone must have all of every tensor.
    bool whole = true;
    Metadata metadata;  // of every weight file, beside what Hugging Face asks for; every rank gives the same
};

struct ExportResult {
    std::vector<FileRecord> files;
    int64_t elements = 0;  // written by this rank, in tensors of the layout
};

// The tensors of `pieces` from the entries of kind Weight (or Master, or Buffer, where there is no Weight of
// that name), into an existing folder. Every file is synced; the folder is not.
ExportResult export_model(FileSystem& files, const Path& folder, const std::vector<ExportPiece>& pieces,
                          const std::vector<StateEntry>& entries, const ExportOptions& options,
                          const HostStaging& staging = HostStaging());

}  // namespace moebius::checkpoint
