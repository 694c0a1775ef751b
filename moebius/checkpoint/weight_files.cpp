#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "moebius/base/error.h"
#include "moebius/checkpoint/json_text.h"
#include "moebius/checkpoint/model_folder.h"

namespace moebius::checkpoint {

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

}  // namespace

WeightFiles::WeightFiles(FileSystem& files, const Path& folder) : folder_(folder) {
    switch (files.kind(folder)) {
        case FileKind::Absent:
            throw Error(folder.string() + " does not exist");
        case FileKind::Directory:
            break;
        default:
            add(files, folder);
            return;
    }
    if (files.kind(folder / kSingle) != FileKind::Absent) {
        add(files, folder / kSingle);
    } else if (files.kind(folder / kIndex) != FileKind::Absent) {
        add_indexed(files, folder / kIndex);
    } else {
        std::string hint;
        for (const std::string& name : files.list(folder)) {
            if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth"))
                hint = "; " + name + " is of a format that is not read: save the model as safetensors first";
            if (name.starts_with("step_"))
                hint = "; for a checkpoint give its model folder: " + (folder / name / "model").string();
        }
        if (files.kind(folder / "model" / kSingle) == FileKind::Regular ||
            files.kind(folder / "model" / kIndex) == FileKind::Regular)
            hint = "; did you mean " + (folder / "model").string() + "?";
        throw Error(fmt::format("{} has neither {} nor {}{}", folder.string(), kSingle, kIndex, hint));
    }
}

void WeightFiles::add(FileSystem& files, const Path& path) {
    readers_.push_back(std::make_unique<SafetensorsReader>(files, path));
    for (const TensorInfo& tensor : readers_.back()->tensors()) {
        const auto [place, added] =
            tensors_.try_emplace(tensor.name, Located{readers_.back().get(), &tensor});
        if (!added)
            throw Error(fmt::format("tensor {} stands in both {} and {}", tensor.name,
                                    place->second.file->path().string(), path.string()));
    }
}

void WeightFiles::add_indexed(FileSystem& files, const Path& index) {
    const std::string text = read_text(files, index);
    check_json_object(text, index.string());
    const auto document = nlohmann::json::parse(text);
    const auto map = document.find("weight_map");
    if (map == document.end() || !map->is_object())
        throw Error(index.string() + ": \"weight_map\" is missing");
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : map->items()) {
        // A shard lies beside its index: a name that leads elsewhere is not followed.
        if (!shard.is_string() || Path(shard.get<std::string>()).filename() != shard.get<std::string>())
            throw Error(fmt::format("{}: tensor {} is said to be in {}, not a file name", index.string(),
                                    tensor, shard.dump()));
        shards.insert(shard.get<std::string>());
    }
    for (const std::string& shard : shards) {
        if (files.kind(index.parent_path() / shard) == FileKind::Absent)
            throw Error(fmt::format("{} names {}, which does not exist", index.string(), shard));
        add(files, index.parent_path() / shard);
    }
    for (const auto& [tensor, shard] : map->items()) {
        const Located found = find(tensor);
        if (found.file == nullptr || found.file->path().filename() != shard.get<std::string>())
            throw Error(fmt::format("{} has no tensor {}, although {} says so",
                                    (index.parent_path() / shard.get<std::string>()).string(), tensor,
                                    kIndex));
    }
}

WeightFiles::Located WeightFiles::find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? Located{} : found->second;
}

}  // namespace moebius::checkpoint
