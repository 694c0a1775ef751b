#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "moebius/base/error.h"
#include "moebius/checkpoint/convert.h"
#include "moebius/checkpoint/model_folder.h"
#include "moebius/checkpoint/ranges.h"

namespace moebius::checkpoint {

namespace {

constexpr size_t kNamed = 3;  // of a list of wrong tensors; the rest is counted

std::string some_of(const std::vector<std::string>& names) {
    std::string text;
    for (size_t i = 0; i < names.size() && i < kNamed; ++i) text += (i > 0 ? ", " : "") + names[i];
    if (names.size() > kNamed) text += fmt::format(" and {} more", names.size() - kNamed);
    return text;
}

struct Mismatch {
    std::vector<std::string> missing, extra, absent;
    size_t count() const { return missing.size() + extra.size(); }
};

Mismatch compare_names(const WeightFiles& weights, const NameLayout& layout) {
    Mismatch mismatch;
    std::map<std::string, bool> known;  // external name → optional
    for (const ExportPiece& piece : layout.pieces) known.emplace(piece.external_name, piece.optional);
    for (const auto& [name, optional] : known)
        if (weights.find(name).file == nullptr)
            (optional ? mismatch.absent : mismatch.missing).push_back(name);
    for (const auto& [name, place] : weights.tensors())
        if (!known.contains(name) && !is_ignored(layout, name)) mismatch.extra.push_back(name);
    return mismatch;
}

struct Choice {
    const NameLayout* layout;
    Mismatch mismatch;
};

// The layout with the fewest differences; if there are any, they are the error.
Choice choose_layout(const WeightFiles& weights, const std::vector<NameLayout>& alternatives) {
    MOEBIUS_CHECK(!alternatives.empty());
    Choice best{nullptr, {}};
    for (const NameLayout& layout : alternatives) {
        Mismatch mismatch = compare_names(weights, layout);
        if (best.layout == nullptr || mismatch.count() < best.mismatch.count())
            best = {&layout, std::move(mismatch)};
    }
    if (best.mismatch.count() == 0) return best;
    std::string text = weights.folder().string();
    const std::string layout =
        alternatives.size() > 1 ? " (names compared with the layout \"" + best.layout->name + "\")" : "";
    if (!best.mismatch.missing.empty()) text += " lacks the tensor " + some_of(best.mismatch.missing);
    if (!best.mismatch.extra.empty()) {
        text += best.mismatch.missing.empty() ? " has" : "; it has";
        text += " the tensor " + some_of(best.mismatch.extra);
        text += fmt::format(" (in {}), which the model has not",
                            weights.find(best.mismatch.extra[0]).file->path().filename().string());
    }
    throw Error(text + layout);
}

void check_tensor(const WeightFiles::Located& place, const ExportPiece& piece) {
    if (!(place.tensor->shape == piece.external_shape))
        throw Error(fmt::format("{}: tensor {} has shape {}, expected {}", place.file->path().string(),
                                place.tensor->name, place.tensor->shape.str(), piece.external_shape.str()));
}

void check_conversion(const WeightFiles::Located& place, const StateEntry& entry, Conversion conversion) {
    const FileType type = place.tensor->type;
    const bool allowed = conversion == Conversion::Any
                             ? readable_as(type, entry.view.dtype)
                             : type == file_type(entry.view.dtype) ||
                                   (type == FileType::F32 && entry.view.dtype == DType::BF16);
    if (!allowed)
        throw Error(fmt::format("{}: tensor {} has dtype {}, which cannot be read {}as {}",
                                place.file->path().string(), place.tensor->name, name(type),
                                conversion == Conversion::Exact ? "exactly " : "", name(entry.view.dtype)));
}

bool is_imported(StateKind kind) {
    return kind == StateKind::Weight || kind == StateKind::Master || kind == StateKind::Buffer;
}

// One range to be read.
struct Transfer {
    WeightFiles::Located place;
    int64_t begin = 0;  // in the external tensor
    View destination;
};

class Planner {
  public:
    Planner(const WeightFiles& weights, const NameLayout& layout, const std::vector<StateEntry>& entries,
            Conversion conversion)
        : weights_(weights), layout_(layout), conversion_(conversion) {
        check_pieces(layout.pieces);
        for (const StateEntry& entry : entries)
            if (is_imported(entry.kind)) by_name_.emplace(entry.slice.name, &entry);
    }

    std::vector<Transfer> plan() {
        for (const ExportPiece& piece : layout_.pieces) {
            const auto place = weights_.find(piece.external_name);
            if (place.file != nullptr) check_tensor(place, piece);
            const auto [first, last] = by_name_.equal_range(piece.internal_name);
            for (auto it = first; it != last; ++it) add(place, piece, *it->second);
        }
        for (const auto& [name, entry] : by_name_)
            MOEBIUS_CHECK(entry->kind == StateKind::Buffer || filled_[entry] == entry->slice.count, "layout ",
                          layout_.name, " fills ", filled_[entry], " of ", entry->slice.count,
                          " elements of ", name);
        return std::move(transfers_);
    }

  private:
    void add(const WeightFiles::Located& place, const ExportPiece& piece, const StateEntry& entry) {
        const Range common =
            intersect({piece.internal_begin, piece.count}, {entry.slice.begin, entry.slice.count});
        if (common.count == 0) return;
        filled_[&entry] += common.count;
        if (place.file == nullptr) return;
        check_conversion(place, entry, conversion_);
        transfers_.push_back({place, piece.external_begin + common.begin - piece.internal_begin,
                              elements(entry.view, common.begin - entry.slice.begin, common.count)});
    }

    const WeightFiles& weights_;
    const NameLayout& layout_;
    Conversion conversion_;
    std::multimap<std::string, const StateEntry*> by_name_;
    std::map<const StateEntry*, int64_t> filled_;
    std::vector<Transfer> transfers_;
};

}  // namespace

ImportReport import_model(FileSystem& files, const Path& folder, const std::vector<NameLayout>& alternatives,
                          const std::vector<StateEntry>& entries, Conversion conversion,
                          const HostStaging& staging) {
    const WeightFiles weights(files, folder);
    const auto [layout, mismatch] = choose_layout(weights, alternatives);
    // All is compared before the first byte is read: a folder that does not fit leaves the entries as they
    // were.
    const std::vector<Transfer> transfers = Planner(weights, *layout, entries, conversion).plan();
    ImportReport report{
        .layout = layout->name, .absent = mismatch.absent, .types = {}, .metadata = weights.metadata()};
    for (const Transfer& transfer : transfers) {
        const FileType type = transfer.place.tensor->type;
        if (std::find(report.types.begin(), report.types.end(), type) == report.types.end())
            report.types.push_back(type);
        staging.write(transfer.destination, [&](const View& piece, int64_t at) {
            transfer.place.file->read(*transfer.place.tensor, transfer.begin + at, piece.numel(), piece);
        });
    }
    return report;
}

}  // namespace moebius::checkpoint
