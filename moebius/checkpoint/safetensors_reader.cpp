#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "moebius/base/error.h"
#include "moebius/checkpoint/convert.h"
#include "moebius/checkpoint/json_text.h"
#include "moebius/checkpoint/safetensors.h"

namespace moebius::checkpoint {

namespace {

using Json = nlohmann::json;

constexpr int64_t kPrefix = 8;                    // the header's length
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation
constexpr int64_t kStagingBytes = int64_t{1} << 20;

// What a header says about one tensor, checked; every complaint names file and tensor.
class TensorParser {
  public:
    TensorParser(const Path& path, const std::string& tensor, int64_t data_begin, int64_t data_bytes)
        : where_(fmt::format("{}: tensor {}", path.string(), tensor)),
          name_(tensor),
          data_begin_(data_begin),
          data_bytes_(data_bytes) {}

    TensorInfo parse(const Json& entry) const {
        if (!entry.is_object()) fail("its entry is not an object");
        for (const auto& [key, value] : entry.items())
            if (key != "dtype" && key != "shape" && key != "data_offsets")
                fail(fmt::format("unknown key \"{}\"", key));
        TensorInfo info;
        info.name = name_;
        info.type = parse_type(entry);
        info.shape = parse_shape(entry);
        const auto [begin, end] = parse_offsets(entry);
        info.offset = data_begin_ + begin;
        info.bytes = end - begin;
        const int64_t wanted = bytes_needed(info);
        if (info.bytes != wanted)
            fail(fmt::format("{} {} takes {} bytes, data_offsets [{}, {}] give {}", name(info.type),
                             info.shape.str(), wanted, begin, end, info.bytes));
        return info;
    }

  private:
    [[noreturn]] void fail(const std::string& what) const { throw Error(where_ + ": " + what); }

    const Json& member(const Json& entry, const char* key) const {
        const auto found = entry.find(key);
        if (found == entry.end()) fail(fmt::format("\"{}\" is missing", key));
        return *found;
    }

    FileType parse_type(const Json& entry) const {
        const Json& value = member(entry, "dtype");
        if (!value.is_string()) fail("dtype is not a string");
        const auto type = file_type(std::string_view(value.get_ref<const std::string&>()));
        if (!type) fail(fmt::format("unknown dtype {}", value.dump()));
        return *type;
    }

    int64_t parse_count(const Json& value, const char* what) const {
        if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX})
            fail(fmt::format("{} has {}, not a whole number from 0 up", what, value.dump()));
        return value.get<int64_t>();
    }

    Shape parse_shape(const Json& entry) const {
        const Json& value = member(entry, "shape");
        if (!value.is_array()) fail("shape is not an array");
        if (value.size() > kMaxRank)
            fail(fmt::format("{} dimensions, at most {} are read", value.size(), kMaxRank));
        Shape shape;
        for (const Json& extent : value) shape.push_back(parse_count(extent, "shape"));
        return shape;
    }

    std::pair<int64_t, int64_t> parse_offsets(const Json& entry) const {
        const Json& value = member(entry, "data_offsets");
        if (!value.is_array() || value.size() != 2) fail("data_offsets is not a pair");
        const int64_t begin = parse_count(value[0], "data_offsets"),
                      end = parse_count(value[1], "data_offsets");
        if (begin > end) fail(fmt::format("data_offsets [{}, {}] run backwards", begin, end));
        if (end > data_bytes_)
            fail(fmt::format(
                "data_offsets [{}, {}] reach past the end of the file, which holds {} bytes of data; is "
                "it cut short?",
                begin, end, data_bytes_));
        return {begin, end};
    }

    // Shape::numel aborts on overflow; a hostile header must not, be it of a tensor without elements.
    int64_t bytes_needed(const TensorInfo& info) const {
        int64_t bytes = bytes_per_element(info.type);
        bool empty = false;
        for (int axis = 0; axis < info.shape.rank(); ++axis) {
            empty = empty || info.shape[axis] == 0;
            if (__builtin_mul_overflow(bytes, std::max<int64_t>(1, info.shape[axis]), &bytes))
                fail(fmt::format("shape {} is larger than any file", info.shape.str()));
        }
        return empty ? 0 : bytes;
    }

    std::string where_;
    std::string name_;
    int64_t data_begin_, data_bytes_;
};

std::string read_header(const InputFile& file) {
    const std::string where = file.path().string();
    if (file.size() < kPrefix)
        throw Error(fmt::format("{}: {} bytes are too few for a safetensors file", where, file.size()));
    unsigned char prefix[kPrefix];
    file.read_at(0, prefix, kPrefix);
    uint64_t bytes = 0;
    for (int i = 0; i < kPrefix; ++i) bytes |= uint64_t{prefix[i]} << (8 * i);
    if (bytes > kMaxHeaderBytes)
        throw Error(fmt::format("{}: a header of {} bytes (at most {} are allowed): not a safetensors file?",
                                where, bytes, kMaxHeaderBytes));
    if (static_cast<int64_t>(bytes) > file.size() - kPrefix)
        throw Error(fmt::format("{}: cut short: the header takes {} bytes, the file has {}", where,
                                bytes + kPrefix, file.size()));
    std::string header(bytes, '\0');
    file.read_at(kPrefix, header.data(), static_cast<int64_t>(bytes));
    if (header.empty() || header[0] != '{')
        throw Error(fmt::format("{}: the header does not begin with {{: not a safetensors file?", where));
    return header;
}

Metadata parse_metadata(const Json& value, const Path& path) {
    if (!value.is_object()) throw Error(path.string() + ": __metadata__ is not an object");
    Metadata metadata;
    for (const auto& [key, text] : value.items()) {
        if (!text.is_string())
            throw Error(fmt::format("{}: __metadata__.{} is not a string", path.string(), key));
        metadata[key] = text.get<std::string>();
    }
    return metadata;
}

// Tensors by offset must fill the data without overlap or gap.
void check_layout(const std::vector<TensorInfo>& tensors, const Path& path, int64_t data_begin,
                  int64_t file_bytes) {
    int64_t end = data_begin;
    const TensorInfo* before = nullptr;
    for (const TensorInfo& tensor : tensors) {
        if (tensor.offset < end)
            throw Error(
                fmt::format("{}: tensor {} overlaps tensor {}", path.string(), tensor.name, before->name));
        if (tensor.offset > end)
            throw Error(fmt::format("{}: {} bytes before tensor {} belong to no tensor", path.string(),
                                    tensor.offset - end, tensor.name));
        end = tensor.offset + tensor.bytes;
        before = &tensor;
    }
    if (end != file_bytes)
        throw Error(fmt::format("{}: {} bytes after the last tensor belong to no tensor", path.string(),
                                file_bytes - end));
}

}  // namespace

SafetensorsReader::SafetensorsReader(FileSystem& files, const Path& path)
    : path_(path), file_(files.open_for_reading(path)) {
    const std::string text = read_header(*file_);
    check_json_object(text, path.string());
    const Json header = Json::parse(text);
    const int64_t data_begin = kPrefix + static_cast<int64_t>(text.size());
    for (const auto& [key, entry] : header.items()) {
        if (key == "__metadata__")
            metadata_ = parse_metadata(entry, path);
        else
            tensors_.push_back(TensorParser(path, key, data_begin, file_->size() - data_begin).parse(entry));
    }
    std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
    });
    check_layout(tensors_, path, data_begin, file_->size());
    for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
}

const TensorInfo* SafetensorsReader::find(std::string_view name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
}

const TensorInfo& SafetensorsReader::at(std::string_view name) const {
    const TensorInfo* found = find(name);
    if (found == nullptr) throw Error(fmt::format("{} has no tensor {}", path_.string(), name));
    return *found;
}

void SafetensorsReader::read(const TensorInfo& tensor, int64_t begin, int64_t count,
                             const View& destination) const {
    MOEBIUS_CHECK(destination.contiguous() && destination.numel() == count && begin >= 0 && count >= 0 &&
                      begin + count <= tensor.shape.numel(),
                  tensor.name, ": ", count, " elements from ", begin);
    if (!readable_as(tensor.type, destination.dtype))
        throw Error(fmt::format("{}: tensor {} has dtype {}, which cannot be read as {}", path_.string(),
                                tensor.name, name(tensor.type), name(destination.dtype)));
    const int64_t width = bytes_per_element(tensor.type);
    const int64_t offset = tensor.offset + begin * width;
    if (tensor.type == file_type(destination.dtype)) {
        file_->read_at(offset, destination.data, count * width);
        return;
    }
    std::vector<char> staging(static_cast<size_t>(std::min(kStagingBytes, count * width)));
    const int64_t step = kStagingBytes / width;
    for (int64_t done = 0; done < count; done += step) {
        const int64_t now = std::min(step, count - done);
        file_->read_at(offset + done * width, staging.data(), now * width);
        auto* to = static_cast<char*>(destination.data) + bytes_of(destination.dtype, done);
        try {
            convert(tensor.type, staging.data(), destination.dtype, to, now);
        } catch (const Error& error) {
            throw Error(fmt::format("{}: tensor {} as {}: {}", path_.string(), tensor.name,
                                    name(destination.dtype), error.what()));
        }
    }
}

void SafetensorsReader::read(std::string_view name, const View& destination) const {
    const TensorInfo& tensor = at(name);
    if (tensor.shape.numel() != destination.numel())
        throw Error(fmt::format("{}: tensor {} has shape {}, expected {}", path_.string(), name,
                                tensor.shape.str(), destination.shape.str()));
    read(tensor, 0, destination.numel(), destination);
}

}  // namespace moebius::checkpoint
