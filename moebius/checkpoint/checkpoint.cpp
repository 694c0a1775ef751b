#include "moebius/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "moebius/base/error.h"
#include "moebius/base/log.h"
#include "moebius/checkpoint/state_files.h"

namespace moebius::checkpoint {

namespace {

constexpr std::string_view kStepPrefix = "step_";

void verify(FileSystem& files, const Path& folder, const FileRecord& record) {
    const Path path = folder / record.name;
    if (files.kind(path) != FileKind::Regular) throw Error(path.string() + " is missing");
    const int64_t bytes = files.open_for_reading(path)->size();
    if (bytes != record.bytes)
        throw Error(fmt::format("{} has {} bytes, {} were written", path.string(), bytes, record.bytes));
    if (checksum_of(files, path) != record.checksum)
        throw Error(path.string() + " is damaged: its checksum differs from that in trainer.json");
}

}  // namespace

std::string step_name(int64_t step) {
    return fmt::format("{}{:06}", kStepPrefix, step);
}

std::optional<int64_t> parse_step_name(const std::string& name) {
    if (!name.starts_with(kStepPrefix)) return std::nullopt;
    const char* begin = name.data() + kStepPrefix.size();
    const char* end = name.data() + name.size();
    int64_t step = 0;
    const auto [stop, error] = std::from_chars(begin, end, step);
    if (error != std::errc() || stop != end || step < 0 || name != step_name(step)) return std::nullopt;
    return step;
}

Checkpoint::Checkpoint(FileSystem& files, const Path& path) : files_(&files), path_(path) {
    const Path manifest = path / kManifestName;
    if (files.kind(path) == FileKind::Absent) throw Error(path.string() + " does not exist");
    if (files.kind(manifest) != FileKind::Regular)
        throw Error(fmt::format("{} is not a checkpoint: it has no {}", path.string(), kManifestName));
    manifest_ = parse_manifest(read_text(files, manifest), manifest.string());
    for (const FileRecord& record : manifest_.files) verify(files, path, record);
}

std::vector<std::string> Checkpoint::rank_texts() const {
    const StateFiles state(*files_, path_ / kOptimizerFolder, manifest_.world_size);
    std::vector<std::string> texts;
    for (int64_t rank = 0; rank < manifest_.world_size; ++rank) {
        const Metadata& metadata = state.metadata(static_cast<size_t>(rank));
        const auto text = metadata.find("rank_text");
        texts.push_back(text == metadata.end() ? "" : text->second);
    }
    return texts;
}

LoadReport Checkpoint::load(const std::vector<NameLayout>& alternatives,
                            const std::vector<StateEntry>& entries, const HostStaging& staging) const {
    const StateFiles state(*files_, path_ / kOptimizerFolder, manifest_.world_size);
    LoadReport report;
    std::vector<StateEntry> from_model, from_state;
    std::set<std::string> asked;
    for (const StateEntry& entry : entries) {
        asked.insert(describe(entry.kind, entry.slice.name));
        if (entry.slice.count == 0) continue;
        const bool stored = entry.kind != StateKind::Weight || state.has(entry.kind, entry.slice.name);
        (stored ? from_state : from_model).push_back(entry);
    }
    if (!from_model.empty())
        report.model =
            import_model(*files_, model_folder(), alternatives, from_model, Conversion::Exact, staging);
    // Weights first: masters that are held as remainders set them too.
    std::stable_partition(from_state.begin(), from_state.end(),
                          [](const StateEntry& entry) { return entry.kind == StateKind::Weight; });
    for (const StateEntry& entry : from_state) state.read(entry, staging);
    for (const std::string& stored : state.stored())
        if (!asked.contains(stored)) report.unused.push_back(stored);
    return report;
}

std::optional<Checkpoint> latest(FileSystem& files, const Path& directory,
                                 std::vector<std::string>* skipped) {
    if (files.kind(directory) == FileKind::Absent) return std::nullopt;
    std::vector<int64_t> steps;
    for (const std::string& name : files.list(directory))
        if (const auto step = parse_step_name(name)) steps.push_back(*step);
    std::sort(steps.rbegin(), steps.rend());
    for (const int64_t step : steps) {
        const Path path = directory / step_name(step);
        try {
            Checkpoint found(files, path);
            // Those of the steps between would be older by name and newer in truth.
            if (found.step() != step) {
                throw Error(fmt::format("it holds step {}, as its {} says (rename it to {})", found.step(),
                                        kManifestName, step_name(found.step())));
            }
            return found;
        } catch (const Error& error) {
            const std::string text =
                fmt::format("checkpoint {} is passed over: {}", path.string(), error.what());
            log_warning(text);
            if (skipped != nullptr) skipped->push_back(text);
        }
    }
    return std::nullopt;
}

}  // namespace moebius::checkpoint
