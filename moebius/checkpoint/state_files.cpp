#include "moebius/checkpoint/state_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "moebius/base/error.h"
#include "moebius/checkpoint/json_text.h"
#include "moebius/checkpoint/ranges.h"

namespace moebius::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSlices = "slices";  // the metadata key
constexpr StateKind kKinds[] = {StateKind::Weight, StateKind::Master, StateKind::Moment1, StateKind::Moment2,
                                StateKind::Buffer};

bool is_whole(const GlobalSlice& slice) {
    return slice.begin == 0 && slice.count == slice.shape.numel();
}

std::string key_of(const StateEntry& entry) {
    std::string key = fmt::format("{}.{}", name(entry.kind), entry.slice.name);
    if (!is_whole(entry.slice)) key += fmt::format("[{}:{}]", entry.slice.begin, entry.slice.end());
    return key;
}

Json to_json(const StateEntry& entry) {
    std::vector<int64_t> shape;
    for (int axis = 0; axis < entry.slice.shape.rank(); ++axis) shape.push_back(entry.slice.shape[axis]);
    return {{"kind", name(entry.kind)},
            {"name", entry.slice.name},
            {"shape", shape},
            {"begin", entry.slice.begin}};
}

StateKind parse_kind(const std::string& text) {
    for (const StateKind kind : kKinds)
        if (name(kind) == text) return kind;
    throw Error("unknown kind " + text);
}

std::pair<StateKind, GlobalSlice> from_json(const Json& value, int64_t count) {
    GlobalSlice slice{.name = value.at("name").get<std::string>(),
                      .shape = {},
                      .begin = value.at("begin").get<int64_t>(),
                      .count = count};
    const Json& shape = value.at("shape");
    if (shape.size() > kMaxRank) throw Error("too many dimensions");
    int64_t room = 1;
    for (const Json& extent : shape) {
        slice.shape.push_back(extent.get<int64_t>());
        if (extent.get<int64_t>() < 0 || __builtin_mul_overflow(room, extent.get<int64_t>(), &room))
            throw Error("impossible shape");
    }
    if (slice.begin < 0 || slice.begin > room || count > room - slice.begin)
        throw Error("a range outside its tensor");
    return {parse_kind(value.at("kind").get<std::string>()), slice};
}

// The element type itself; for moments also one that holds all its values.
bool exact(FileType stored, const StateEntry& entry) {
    const DType wanted = entry.stored_dtype();
    const bool moment = entry.kind == StateKind::Moment1 || entry.kind == StateKind::Moment2;
    return stored == file_type(wanted) || (moment && stored == FileType::BF16 && wanted == DType::F32);
}

}  // namespace

std::string_view name(StateKind kind) {
    switch (kind) {
        case StateKind::Weight:
            return "weight";
        case StateKind::Master:
            return "master";
        case StateKind::Moment1:
            return "moment1";
        case StateKind::Moment2:
            return "moment2";
        case StateKind::Buffer:
            return "buffer";
    }
    return "unknown";
}

std::string describe(StateKind kind, const std::string& tensor) {
    return fmt::format("{} of {}", name(kind), tensor);
}

std::string state_file_name(int64_t rank, int64_t world) {
    return fmt::format("optimizer-{:05}-of-{:05}.safetensors", rank, world);
}

FileRecord write_state_file(FileSystem& files, const Path& path, const std::vector<StateEntry>& entries,
                            Metadata extra, const HostStaging& staging) {
    std::vector<const StateEntry*> order;
    for (const StateEntry& entry : entries) {
        MOEBIUS_CHECK(entry.view.contiguous() && entry.view.numel() == entry.slice.count, entry.slice.name);
        if (entry.slice.count > 0) order.push_back(&entry);
    }
    // Wide elements first: everything is aligned.
    std::stable_sort(order.begin(), order.end(), [](const StateEntry* a, const StateEntry* b) {
        return bits(a->stored_dtype()) > bits(b->stored_dtype());
    });
    Json slices = Json::object();
    std::vector<PlannedTensor> plan;
    for (const StateEntry* entry : order) {
        const std::string key = key_of(*entry);
        slices[key] = to_json(*entry);
        plan.push_back({key, entry->stored_dtype(),
                        is_whole(entry->slice) ? entry->slice.shape : Shape{entry->slice.count}});
    }
    extra[kSlices] = slices.dump();
    SafetensorsWriter writer(files, path, plan, extra);
    for (size_t i = 0; i < order.size(); ++i) {
        const auto write = [&](const View& values, int64_t at) { writer.write(i, at, values); };
        if (order[i]->remainder) {
            staging.read_joined(order[i]->view, order[i]->remainder, write);
        } else {
            staging.read(order[i]->view, write);
        }
    }
    return writer.finish();
}

StateFiles::StateFiles(FileSystem& files, const Path& folder, int64_t world) : folder_(folder) {
    for (int64_t rank = 0; rank < world; ++rank) {
        readers_.push_back(std::make_unique<SafetensorsReader>(files, folder / state_file_name(rank, world)));
        add(*readers_.back());
    }
    for (auto& [key, list] : slices_) {
        std::sort(list.begin(), list.end(),
                  [](const Stored& a, const Stored& b) { return a.slice.begin < b.slice.begin; });
        for (size_t i = 1; i < list.size(); ++i)
            if (list[i].slice.begin < list[i - 1].slice.end() ||
                !(list[i].slice.shape == list[0].slice.shape))
                throw Error(fmt::format("{} and {} contradict each other about the {}",
                                        list[i - 1].file->path().string(), list[i].file->path().string(),
                                        describe(key.first, key.second)));
    }
}

void StateFiles::add(const SafetensorsReader& reader) {
    const std::string where = reader.path().string();
    const auto text = reader.metadata().find(kSlices);
    if (text == reader.metadata().end())
        throw Error(where + ": not an optimizer file: its metadata has no \"slices\"");
    check_json_object(text->second, where + ": slices");
    const Json slices = Json::parse(text->second);
    for (const TensorInfo& tensor : reader.tensors()) {
        if (!slices.contains(tensor.name))
            throw Error(fmt::format("{}: nothing says what {} is a slice of", where, tensor.name));
        try {
            const auto [kind, slice] = from_json(slices.at(tensor.name), tensor.shape.numel());
            slices_[{kind, slice.name}].push_back({slice, &reader, &tensor});
        } catch (const std::exception& error) {
            throw Error(fmt::format("{}: slice {}: {}", where, tensor.name, error.what()));
        }
    }
}

bool StateFiles::has(StateKind kind, const std::string& name) const {
    return slices_.contains({kind, name});
}

void StateFiles::read(const StateEntry& entry, const HostStaging& staging) const {
    const std::string what = describe(entry.kind, entry.slice.name);
    const auto found = slices_.find({entry.kind, entry.slice.name});
    if (found == slices_.end()) throw Error(fmt::format("{} has no {}", folder_.string(), what));
    const GlobalSlice& first = found->second[0].slice;
    if (!(first.shape == entry.slice.shape))
        throw Error(fmt::format("{}: the {} has shape {}, expected {}", folder_.string(), what,
                                first.shape.str(), entry.slice.shape.str()));
    int64_t position = entry.slice.begin;
    for (const Stored& stored : found->second) {
        const Range common =
            intersect({stored.slice.begin, stored.slice.count}, {position, entry.slice.end() - position});
        if (common.count == 0) continue;
        if (!exact(stored.tensor->type, entry))
            throw Error(fmt::format("{}: the {} has dtype {}, expected {}", stored.file->path().string(),
                                    what, name(stored.tensor->type), name(file_type(entry.stored_dtype()))));
        if (common.begin != position) break;
        const auto part = [&](const View& view) {
            return elements(view, common.begin - entry.slice.begin, common.count);
        };
        const auto read = [&](const View& piece, int64_t at) {
            stored.file->read(*stored.tensor, common.begin - stored.slice.begin + at, piece.numel(), piece);
        };
        if (entry.remainder) {
            staging.write_split(part(entry.view), part(entry.remainder), read);
        } else {
            staging.write(part(entry.view), read);
        }
        position += common.count;
    }
    if (position != entry.slice.end())
        throw Error(fmt::format("{}: elements {} to {} of the {} are missing", folder_.string(), position,
                                entry.slice.end(), what));
}

std::vector<std::string> StateFiles::stored() const {
    std::vector<std::string> names;
    for (const auto& [key, list] : slices_) names.push_back(describe(key.first, key.second));
    return names;
}

}  // namespace moebius::checkpoint
