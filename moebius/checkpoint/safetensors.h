// Safetensors files (github.com/huggingface/safetensors): an 8-byte little-endian header length, a JSON
// header, then the tensors' bytes, row-major, little-endian, at any alignment.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/base/checksum.h"
#include "moebius/checkpoint/file_system.h"
#include "moebius/tensor/view.h"

namespace moebius::checkpoint {

// Element types of the format; more than DType has, so that any file can be listed.
enum class FileType : uint8_t {
    F64,
    F32,
    F16,
    BF16,
    F8E4M3,
    F8E5M2,
    F8E8M0,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool
};

std::string_view name(FileType type);  // "F32", as in the header
int64_t bytes_per_element(FileType type);
FileType file_type(DType dtype);  // throws Error for a type that the format lacks
std::optional<FileType> file_type(std::string_view name);

struct TensorInfo {
    std::string name;
    FileType type = FileType::F32;
    Shape shape;
    int64_t offset = 0;  // of its first byte in the file
    int64_t bytes = 0;
};

using Metadata = std::map<std::string, std::string>;

// Reads with pread, not through a mapping: a file that shrinks or a disk that fails is then an Error that
// names the file, not a signal.
class SafetensorsReader {
  public:
    // Throws Error naming the file, and the tensor where there is one, for every malformed header.
    SafetensorsReader(FileSystem& files, const Path& path);

    const Path& path() const { return path_; }
    const std::vector<TensorInfo>& tensors() const { return tensors_; }  // by offset
    const TensorInfo* find(std::string_view name) const;                 // null if absent
    const TensorInfo& at(std::string_view name) const;                   // Error naming tensor and file
    const Metadata& metadata() const { return metadata_; }

    // Elements [begin, begin + count) into `destination`, contiguous, converted to its dtype: floats among
    // F64, F32, F16, BF16 (rounded to nearest even), integers among each other (out of range is an Error).
    void read(const TensorInfo& tensor, int64_t begin, int64_t count, const View& destination) const;
    // The whole tensor into a view of the same number of elements.
    void read(std::string_view name, const View& destination) const;

  private:
    Path path_;
    std::shared_ptr<InputFile> file_;
    std::vector<TensorInfo> tensors_;
    std::map<std::string, size_t, std::less<>> index_;
    Metadata metadata_;
};

struct PlannedTensor {
    std::string name;
    DType dtype = DType::F32;
    Shape shape;
};

// Size and checksum of a file that was written; `name` relative to the checkpoint's folder where that
// matters.
struct FileRecord {
    std::string name;
    int64_t bytes = 0;
    std::string checksum;  // empty if it was not written from front to back by this process
};

// Writes one file, tensor by tensor or in any order and by several ranks: everybody gives the same plan, one
// creates, the others join.
class SafetensorsWriter {
  public:
    // Aligned readers want tensors of wider elements before those of narrower ones; the order is the
    // caller's.
    SafetensorsWriter(FileSystem& files, const Path& path, std::vector<PlannedTensor> plan,
                      const Metadata& metadata, OpenMode mode = OpenMode::Create);

    const std::vector<PlannedTensor>& plan() const { return plan_; }
    int64_t file_bytes() const { return file_bytes_; }
    // Elements [begin, begin + values.numel()) of tensor `index` of the plan; `values` is contiguous; F64,
    // F32 and BF16 are converted to the planned type, anything else must have it.
    void write(size_t index, int64_t begin, const View& values);
    // Syncs and closes.
    FileRecord finish();

  private:
    void put(int64_t offset, const void* data, int64_t bytes);

    Path path_;
    std::vector<PlannedTensor> plan_;
    std::vector<int64_t> offsets_;
    int64_t file_bytes_ = 0;
    std::unique_ptr<OutputFile> file_;
    Checksum checksum_;
    int64_t summed_ = 0;  // bytes from the front that checksum_ has seen; −1 once a write was out of order
};

struct NamedView {
    std::string name;
    View view;
};

// The whole of a small file at once: under a temporary name, renamed when it is whole, replacing an older
// one.
void write_safetensors(FileSystem& files, const Path& path, const std::vector<NamedView>& tensors,
                       const Metadata& metadata = {});

}  // namespace moebius::checkpoint
