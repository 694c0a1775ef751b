#include "moebius/checkpoint/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "moebius/base/checksum.h"
#include "moebius/base/error.h"
#include "moebius/base/log.h"
#include "moebius/checkpoint/state_files.h"

namespace moebius::checkpoint {

namespace {

constexpr const char* kModelElements = "model_elements";
constexpr const char* kReplaced = ".replaced.partial";

}  // namespace

const HostStaging& staging_of(const SaveRequest& request) {
    static const HostStaging kInPlace;
    return request.staging == nullptr ? kInPlace : *request.staging;
}

CheckpointWriter::CheckpointWriter(FileSystem& files, const StoreOptions& options, const SaveRequest& request)
    : files_(files),
      options_(options),
      request_(request),
      final_(options.directory / step_name(request.step)),
      partial_(final_.string() + kPartialSuffix) {
    MOEBIUS_CHECK(request.step >= 0 && options.rank >= 0 && options.rank < options.world);
}

void CheckpointWriter::begin() {
    if (!leads()) return;
    make_directories(files_, options_.directory);
    remove_leftovers(files_, options_.directory);
    files_.make_directory(partial_);
    files_.make_directory(partial_ / kModelFolder);
    files_.make_directory(partial_ / kOptimizerFolder);
    for (const auto& [name, text] : request_.model_files) {
        MOEBIUS_CHECK(Path(name).filename() == name, name, " must be a plain file name");
        write_text(files_, partial_ / kModelFolder / name, text);
        records_.push_back({fmt::format("{}/{}", kModelFolder, name), static_cast<int64_t>(text.size()),
                            moebius::checksum_of(text.data(), text.size())});
    }
    if (options_.world > 1)
        export_model(files_, partial_ / kModelFolder, request_.pieces, {},
                     {.dtype = request_.model_dtype,
                      .max_shard_bytes = options_.max_shard_bytes,
                      .whole = false,
                      .metadata = request_.model_metadata});
}

std::vector<StateEntry> CheckpointWriter::state_entries() const {
    std::set<std::string_view> exported;
    for (const ExportPiece& piece : request_.pieces) exported.insert(piece.internal_name);
    std::vector<StateEntry> entries;
    for (const StateEntry& entry : request_.entries) {
        const bool kept_by_model = entry.kind == StateKind::Weight && exported.contains(entry.slice.name) &&
                                   bits(entry.view.dtype) <= bits(request_.model_dtype);
        if (!kept_by_model) entries.push_back(entry);
    }
    return entries;
}

void CheckpointWriter::write() {
    const bool alone = options_.world == 1;
    ExportResult model = export_model(files_, partial_ / kModelFolder, request_.pieces, request_.entries,
                                      {.dtype = request_.model_dtype,
                                       .max_shard_bytes = options_.max_shard_bytes,
                                       .mode = alone ? OpenMode::Create : OpenMode::Join,
                                       .whole = alone,
                                       .metadata = request_.model_metadata},
                                      staging_of(request_));
    const std::string name = state_file_name(options_.rank, options_.world);
    FileRecord state = write_state_file(
        files_, partial_ / kOptimizerFolder / name, state_entries(),
        {{"rank_text", request_.rank_text}, {kModelElements, std::to_string(model.elements)}},
        staging_of(request_));
    if (!leads()) return;
    for (FileRecord& record : model.files) {
        record.name = fmt::format("{}/{}", kModelFolder, record.name);
        records_.push_back(std::move(record));
    }
    state.name = fmt::format("{}/{}", kOptimizerFolder, state.name);
    records_.push_back(std::move(state));
}

// What other ranks wrote is read back; a file that this one wrote from front to back has its checksum
// already.
std::vector<FileRecord> CheckpointWriter::collect_records() {
    std::vector<FileRecord> records = records_;
    for (int rank = 1; rank < options_.world; ++rank) {
        const std::string name =
            fmt::format("{}/{}", kOptimizerFolder, state_file_name(rank, options_.world));
        records.push_back({name, files_.open_for_reading(partial_ / name)->size(), ""});
    }
    const std::string index = fmt::format("{}/model.safetensors.index.json", kModelFolder);
    if (options_.world > 1 && files_.kind(partial_ / index) == FileKind::Regular)
        records.push_back({index, files_.open_for_reading(partial_ / index)->size(), ""});
    for (FileRecord& record : records) {
        const int64_t bytes = files_.open_for_reading(partial_ / record.name)->size();
        if (bytes != record.bytes)
            throw Error(fmt::format("{} has {} bytes, {} were written", (partial_ / record.name).string(),
                                    bytes, record.bytes));
        if (record.checksum.empty()) record.checksum = checksum_of(files_, partial_ / record.name);
    }
    return records;
}

// A range that no rank wrote would be a hole of zeros in a file of the right size.
void CheckpointWriter::check_model_elements() {
    if (options_.world == 1) return;
    const StateFiles state(files_, partial_ / kOptimizerFolder, options_.world);
    int64_t written = 0, wanted = 0;
    for (int rank = 0; rank < options_.world; ++rank)
        written += std::stoll(state.metadata(static_cast<size_t>(rank)).at(kModelElements));
    for (const ExportPiece& piece : request_.pieces) wanted += piece.count;
    MOEBIUS_CHECK(written == wanted, "ranks wrote ", written, " of ", wanted, " elements of the model");
}

void CheckpointWriter::publish() {
    if (!leads()) return;
    check_model_elements();
    const Manifest manifest{.step = request_.step,
                            .world_size = options_.world,
                            .trainer = request_.trainer,
                            .files = collect_records()};
    write_text(files_, partial_ / kManifestName, manifest_text(manifest));
    files_.sync_directory(partial_ / kModelFolder);
    files_.sync_directory(partial_ / kOptimizerFolder);
    files_.sync_directory(partial_);
    put_in_place();
    try {
        remove_leftovers(files_, options_.directory);
        prune();
    } catch (const Error& error) {
        log_warning(fmt::format("checkpoint {} is written, but older ones could not be removed: {}",
                                final_.string(), error.what()));
    }
}

void CheckpointWriter::put_in_place() {
    if (files_.kind(final_) == FileKind::Absent) {
        files_.rename(partial_, final_);
    } else if (!files_.exchange(partial_, final_)) {
        // One of the same step (damaged, or of another run) is there, and the file system can't swap two
        // names.
        const Path replaced = final_.string() + kReplaced;
        files_.rename(final_, replaced);
        try {
            files_.rename(partial_, final_);
        } catch (const Error&) {
            files_.rename(replaced, final_);
            throw;
        }
    }
    files_.sync_directory(options_.directory);
}

void CheckpointWriter::prune() {
    if (options_.max_checkpoints <= 0) return;
    // Newer ones are those of a run that this one does not continue: not ours to count or remove.
    std::vector<int64_t> steps;
    for (const std::string& name : files_.list(options_.directory))
        if (const auto step = parse_step_name(name); step && *step <= request_.step) steps.push_back(*step);
    std::sort(steps.rbegin(), steps.rend());
    for (size_t i = static_cast<size_t>(options_.max_checkpoints); i < steps.size(); ++i) {
        // Renamed first: cut off here, it is a leftover, not a damaged checkpoint.
        const Path path = options_.directory / step_name(steps[i]);
        const Path doomed = path.string() + kPartialSuffix;
        files_.rename(path, doomed);
        remove_tree(files_, doomed);
    }
}

void CheckpointWriter::abandon() noexcept {
    if (!leads()) return;
    try {
        if (files_.kind(partial_) != FileKind::Absent) remove_tree(files_, partial_);
    } catch (const std::exception&) {  // the next save tries again
    }
}

void remove_leftovers(FileSystem& files, const Path& directory) {
    for (const std::string& name : files.list(directory)) {
        if (!name.starts_with("step_") || !name.ends_with(kPartialSuffix)) continue;
        if (name.ends_with(kReplaced)) {
            // Cut off between the two renames of put_in_place: the old one is all there is of this step.
            const Path original =
                directory / name.substr(0, name.size() - std::string_view(kReplaced).size());
            if (files.kind(original) == FileKind::Absent) {
                files.rename(directory / name, original);
                continue;
            }
        }
        remove_tree(files, directory / name);
    }
}

}  // namespace moebius::checkpoint
