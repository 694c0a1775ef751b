#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "moebius/base/error.h"
#include "moebius/checkpoint/model_folder.h"
#include "moebius/checkpoint/ranges.h"

namespace moebius::checkpoint {

namespace {

int rank_of(StateKind kind) {
    switch (kind) {
        case StateKind::Weight:
            return 0;
        case StateKind::Master:
            return 1;
        case StateKind::Buffer:
            return 2;
        default:
            return 3;
    }
}

// The entries that stand for each internal tensor in the model folder: those of the best kind.
class Sources {
  public:
    explicit Sources(const std::vector<StateEntry>& entries) {
        for (const StateEntry& entry : entries) {
            if (rank_of(entry.kind) > 2) continue;
            auto& list = by_name_[entry.slice.name];
            if (!list.empty() && rank_of(entry.kind) < rank_of(list[0]->kind)) list.clear();
            if (list.empty() || list[0]->kind == entry.kind) list.push_back(&entry);
        }
        // In the order of the file, so that it is written, and summed, from front to back.
        for (auto& [name, list] : by_name_)
            std::stable_sort(list.begin(), list.end(),
                             [](const auto* a, const auto* b) { return a->slice.begin < b->slice.begin; });
    }
    const std::vector<const StateEntry*>& of(const std::string& name) const {
        static const std::vector<const StateEntry*> kNone;
        const auto found = by_name_.find(name);
        return found == by_name_.end() ? kNone : found->second;
    }

  private:
    std::map<std::string, std::vector<const StateEntry*>> by_name_;
};

// One external tensor: pieces [first, last) of the list.
struct External {
    PlannedTensor tensor;
    size_t first = 0, last = 0;
};

struct Shard {
    std::vector<External> tensors;
    int64_t bytes = 0;
};

// In the order of the pieces, a new shard when the next tensor would make it too large.
std::vector<Shard> plan_shards(const std::vector<ExportPiece>& pieces, const ExportOptions& options) {
    std::vector<Shard> shards(1);
    for (size_t i = 0; i < pieces.size();) {
        External external{{pieces[i].external_name, options.dtype, pieces[i].external_shape}, i, i};
        while (i < pieces.size() && pieces[i].external_name == external.tensor.name) ++i;
        external.last = i;
        const int64_t bytes = bytes_of(external.tensor.dtype, external.tensor.shape.numel());
        if (!shards.back().tensors.empty() && shards.back().bytes + bytes > options.max_shard_bytes)
            shards.emplace_back();
        shards.back().bytes += bytes;
        shards.back().tensors.push_back(std::move(external));
    }
    return shards;
}

// What this rank has of a piece, into tensor `index` of the file. Returns the number of elements.
int64_t write_piece(SafetensorsWriter& writer, size_t index, const ExportPiece& piece, const Sources& sources,
                    const HostStaging& staging) {
    int64_t written = 0;
    for (const StateEntry* entry : sources.of(piece.internal_name)) {
        const Range common =
            intersect({piece.internal_begin, piece.count}, {entry->slice.begin, entry->slice.count});
        if (common.count == 0) continue;
        const int64_t begin = piece.external_begin + common.begin - piece.internal_begin;
        staging.read(elements(entry->view, common.begin - entry->slice.begin, common.count),
                     [&](const View& values, int64_t at) { writer.write(index, begin + at, values); });
        written += common.count;
    }
    return written;
}

std::string shard_name(size_t shard, size_t shards) {
    return shards == 1 ? "model.safetensors"
                       : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

FileRecord write_index(FileSystem& files, const Path& folder, const std::vector<Shard>& shards) {
    nlohmann::ordered_json index;
    int64_t total = 0;
    for (const Shard& shard : shards) total += shard.bytes;
    index["metadata"]["total_size"] = total;
    index["weight_map"] = nlohmann::ordered_json::object();
    std::map<std::string, std::string> map;
    for (size_t s = 0; s < shards.size(); ++s)
        for (const External& external : shards[s].tensors)
            map[external.tensor.name] = shard_name(s, shards.size());
    index["weight_map"] = map;
    const std::string text = index.dump(2) + "\n";
    const char* name = "model.safetensors.index.json";
    write_text(files, folder / name, text);
    return {name, static_cast<int64_t>(text.size()), moebius::checksum_of(text.data(), text.size())};
}

}  // namespace

ExportResult export_model(FileSystem& files, const Path& folder, const std::vector<ExportPiece>& pieces,
                          const std::vector<StateEntry>& entries, const ExportOptions& options,
                          const HostStaging& staging) {
    check_pieces(pieces);
    const Sources sources(entries);
    const std::vector<Shard> shards = plan_shards(pieces, options);
    Metadata metadata = options.metadata;
    metadata["format"] = "pt";  // from_pretrained reads only files that say so
    ExportResult result;
    for (size_t s = 0; s < shards.size(); ++s) {
        std::vector<PlannedTensor> plan;
        for (const External& external : shards[s].tensors) plan.push_back(external.tensor);
        SafetensorsWriter writer(files, folder / shard_name(s, shards.size()), plan, metadata, options.mode);
        for (size_t t = 0; t < plan.size(); ++t)
            for (size_t p = shards[s].tensors[t].first; p < shards[s].tensors[t].last; ++p) {
                const int64_t written = write_piece(writer, t, pieces[p], sources, staging);
                MOEBIUS_CHECK(!options.whole || written == pieces[p].count, pieces[p].external_name, ": ",
                              written, " of ", pieces[p].count, " elements given");
                result.elements += written;
            }
        result.files.push_back(writer.finish());
    }
    if (shards.size() > 1 && options.mode == OpenMode::Create)
        result.files.push_back(write_index(files, folder, shards));
    return result;
}

}  // namespace moebius::checkpoint
