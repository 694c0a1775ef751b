#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "moebius/base/error.h"
#include "moebius/checkpoint/convert.h"
#include "moebius/checkpoint/safetensors.h"

namespace moebius::checkpoint {

namespace {

constexpr int64_t kChunkBytes = int64_t{4} << 20;  // hashed while in the cache, then written

std::string make_header(const std::vector<PlannedTensor>& plan, const Metadata& metadata) {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    if (!metadata.empty()) header["__metadata__"] = metadata;
    int64_t offset = 0;
    for (const PlannedTensor& tensor : plan) {
        std::vector<int64_t> shape;
        for (int axis = 0; axis < tensor.shape.rank(); ++axis) shape.push_back(tensor.shape[axis]);
        const int64_t end = checked_add(offset, bytes_of(tensor.dtype, tensor.shape.numel()));
        MOEBIUS_CHECK(tensor.name != "__metadata__" && !header.contains(tensor.name), tensor.name,
                      " planned twice");
        header[tensor.name] = {
            {"dtype", name(file_type(tensor.dtype))}, {"shape", shape}, {"data_offsets", {offset, end}}};
        offset = end;
    }
    std::string text = header.dump();
    text.append(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)) - text.size(), ' ');
    std::string prefixed(8, '\0');
    for (int i = 0; i < 8; ++i) prefixed[static_cast<size_t>(i)] = static_cast<char>(text.size() >> (8 * i));
    return prefixed + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(FileSystem& files, const Path& path, std::vector<PlannedTensor> plan,
                                     const Metadata& metadata, OpenMode mode)
    : path_(path), plan_(std::move(plan)) {
    const std::string header = make_header(plan_, metadata);
    int64_t offset = static_cast<int64_t>(header.size());
    for (const PlannedTensor& tensor : plan_) {
        offsets_.push_back(offset);
        offset += bytes_of(tensor.dtype, tensor.shape.numel());
    }
    file_bytes_ = offset;
    file_ = files.open_for_writing(path, mode);
    if (mode == OpenMode::Create)
        put(0, header.data(), static_cast<int64_t>(header.size()));
    else
        summed_ = -1;
}

void SafetensorsWriter::put(int64_t offset, const void* data, int64_t bytes) {
    if (offset != summed_) summed_ = -1;
    const auto* from = static_cast<const char*>(data);
    for (int64_t done = 0; done < bytes; done += kChunkBytes) {
        const int64_t now = std::min(kChunkBytes, bytes - done);
        if (summed_ >= 0) checksum_.update(from + done, static_cast<size_t>(now));
        file_->write_at(offset + done, from + done, now);
    }
    if (summed_ >= 0) summed_ += bytes;
}

void SafetensorsWriter::write(size_t index, int64_t begin, const View& values) {
    MOEBIUS_CHECK(index < plan_.size(), index, " of ", plan_.size());
    const PlannedTensor& tensor = plan_[index];
    const int64_t count = values.numel();
    MOEBIUS_CHECK(values.contiguous() && begin >= 0 && begin + count <= tensor.shape.numel(), tensor.name,
                  ": ", count, " elements at ", begin);
    const int64_t offset = offsets_[index] + bytes_of(tensor.dtype, begin);
    if (values.dtype == tensor.dtype) {
        put(offset, values.data, values.bytes());
        return;
    }
    const FileType source = file_type(values.dtype);
    MOEBIUS_CHECK(readable_as(source, tensor.dtype), tensor.name, ": ", name(source), " as ",
                  name(tensor.dtype));
    const int64_t width = bytes_of(tensor.dtype, 1), step = kChunkBytes / width;
    std::vector<char> staging(static_cast<size_t>(std::min(step, count) * width));
    for (int64_t done = 0; done < count; done += step) {
        const int64_t now = std::min(step, count - done);
        convert(source, static_cast<const char*>(values.data) + bytes_of(values.dtype, done), tensor.dtype,
                staging.data(), now);
        put(offset + done * width, staging.data(), now * width);
    }
}

FileRecord SafetensorsWriter::finish() {
    file_->sync();
    file_->close();
    return {.name = path_.filename().string(),
            .bytes = file_bytes_,
            .checksum = summed_ == file_bytes_ ? checksum_.hex() : ""};
}

void write_safetensors(FileSystem& files, const Path& path, const std::vector<NamedView>& tensors,
                       const Metadata& metadata) {
    std::vector<const NamedView*> order;
    for (const NamedView& tensor : tensors) order.push_back(&tensor);
    std::stable_sort(order.begin(), order.end(), [](const NamedView* a, const NamedView* b) {
        return bits(a->view.dtype) > bits(b->view.dtype);
    });
    std::vector<PlannedTensor> plan;
    for (const NamedView* tensor : order)
        plan.push_back({tensor->name, tensor->view.dtype, tensor->view.shape});
    // The rename would put a file in the place of a device such as /dev/null, too.
    const FileKind there = files.kind(path);
    if (there != FileKind::Absent && there != FileKind::Regular)
        throw Error(
            fmt::format("cannot write {}: there is {}", path.string(),
                        there == FileKind::Directory ? "a folder" : "something that is no regular file"));
    const Path partial = path.string() + ".partial";
    if (files.kind(partial) == FileKind::Regular) files.remove_file(partial);
    try {
        SafetensorsWriter writer(files, partial, plan, metadata);
        for (size_t i = 0; i < order.size(); ++i) writer.write(i, 0, order[i]->view);
        writer.finish();
        files.rename(partial, path);
    } catch (const Error&) {
        try {
            if (files.kind(partial) == FileKind::Regular) files.remove_file(partial);
        } catch (const Error&) {  // the first failure is the one to report
        }
        throw;
    }
}

}  // namespace moebius::checkpoint
