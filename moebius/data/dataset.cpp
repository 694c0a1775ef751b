#include "moebius/data/dataset.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "moebius/base/check.h"
#include "moebius/base/checked.h"
#include "moebius/base/checksum.h"
#include "moebius/base/error.h"
#include "moebius/base/log.h"
#include "moebius/data/inputs.h"
#include "moebius/data/source.h"

namespace moebius::data {
namespace {

int64_t machine_memory() {
    int64_t bytes = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
    int64_t limit = 0;
    if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit > 0) bytes = std::min(bytes, limit);
    return bytes;
}

std::string printable(std::string_view name) {
    std::string text(name);
    for (char& c : text)
        if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) c = '?';
    return text;
}

}  // namespace

// Fills a Dataset file by file.
class DatasetReader {
  public:
    DatasetReader(Dataset& data, const DatasetOptions& options)
        : data_(data), options_(options), limit_(options.memory_limit) {
        if (limit_ <= 0) limit_ = machine_memory() / 10 * 9;
        for (int byte = 0; byte < 256; ++byte) {
            const char letter = static_cast<char>(byte);
            ids_.clear();
            data.tokenizer().encode_residues({&letter, 1}, ids_);
            letters_[static_cast<size_t>(byte)] = {.unknown = !data.tokenizer().is_known(letter),
                                                   .uncertain = !data.tokenizer().is_certain(ids_.at(0))};
        }
    }

    void read_all() {
        const std::vector<std::string> paths = expand_paths(options_.paths);
        check_sizes(paths);
        for (const std::string& path : paths) read_file(path);
        if (data_.tokens() == 0)
            throw Error(fmt::format("no record of {} has any sequence (dataset.path)",
                                    paths.size() == 1 ? paths[0] : fmt::format("{} files", paths.size())));
        for (const Dataset::Record& record : data_.records_)
            sum_.update(&record.length, sizeof record.length);
        data_.fingerprint_ = sum_.hex();
    }

  private:
    // A file has at most a residue a byte when plain, and hardly ever less than one when compressed.
    void check_sizes(const std::vector<std::string>& paths) const {
        int64_t bytes = 0;
        for (const std::string& path : paths) {
            std::error_code error;
            const auto size = std::filesystem::file_size(path, error);
            // Sparse files may have any size: what does not fit 64 bits does not fit the memory either.
            if (!error && __builtin_add_overflow(bytes, static_cast<int64_t>(size), &bytes))
                bytes = INT64_MAX;
        }
        if (__builtin_mul_overflow(bytes, data_.store_.width(), &bytes)) bytes = INT64_MAX;
        check_memory(bytes);
    }

    void check_memory(int64_t bytes) const {
        if (bytes > limit_)
            throw Error(
                fmt::format("dataset.path: the sequences need at least {} bytes of memory, {} are there: "
                            "give fewer or smaller files",
                            bytes, limit_));
    }

    void read_file(const std::string& path) {
        const std::unique_ptr<Source> source = open_source(path, options_.format);
        FileStats& stats = data_.files_.emplace_back(FileStats{.path = path});
        data_.first_record_.push_back(data_.records());
        first_unknown_.clear();
        RecordHead head;
        while (source->next(head)) read_record(*source, head, stats);
        report(stats);
    }

    void read_record(Source& source, const RecordHead& head, FileStats& stats) {
        Dataset::Record record{.first = data_.store_.size(),
                               .length = 0,
                               .name_begin = static_cast<int64_t>(data_.names_.size()),
                               .file = narrow<int32_t>(data_.files_.size() - 1),
                               .name_length = narrow<int32_t>(head.name.size())};
        for (std::string_view piece = source.piece(); !piece.empty(); piece = source.piece()) {
            count_letters(piece, head, stats);
            ids_.clear();
            data_.tokenizer().encode_residues(piece, ids_);
            data_.store_.append(ids_);
            sum_.update(ids_.data(), ids_.size() * sizeof(int32_t));
            check_memory(data_.store_.bytes() - TokenStore::kBlockTokens * data_.store_.width());
            stats.residues += static_cast<int64_t>(piece.size());
        }
        record.length = data_.store_.size() - record.first;
        data_.names_ += head.name;
        data_.records_.push_back(record);
        ++stats.records;
        stats.empty_records += record.length == 0;
    }

    void count_letters(std::string_view piece, const RecordHead& head, FileStats& stats) {
        for (const char c : piece) stats.lower_case += c >= 'a' && c <= 'z';
        int64_t unknown = 0, uncertain = 0;
        for (const char c : piece) {
            const Letter& letter = letters_[static_cast<uint8_t>(c)];
            unknown += letter.unknown;
            uncertain += letter.uncertain;
        }
        if (unknown > 0 && first_unknown_.empty()) {
            const char c = *std::find_if(piece.begin(), piece.end(),
                                         [&](char r) { return letters_[static_cast<uint8_t>(r)].unknown; });
            first_unknown_ = fmt::format("'{}' in record {} ({}), which begins in line {}", c, head.index,
                                         printable(head.name), head.line);
        }
        stats.unknown += unknown;
        stats.uncertain += uncertain;
    }

    void report(const FileStats& stats) const {
        const double share =
            stats.residues > 0 ? static_cast<double>(stats.unknown) / static_cast<double>(stats.residues) : 0;
        if (stats.unknown > 0) {
            const std::string what = fmt::format(
                "{}: {} of {} residues ({:.2f} %) are not {}; the first is {}", stats.path, stats.unknown,
                stats.residues, 100 * share, data_.tokenizer().alphabet(), first_unknown_);
            if (share > options_.max_unknown_share)
                throw Error(fmt::format(
                    "{}; more than {:g} % is an error: are these proteins? dataset.tokenizer = {}", what,
                    100 * options_.max_unknown_share, data_.tokenizer().name()));
            log_warning(what);
        }
        if (stats.empty_records > 0)
            log_warning(fmt::format("{}: {} of {} records have no sequence and give no training data",
                                    stats.path, stats.empty_records, stats.records));
        report_duplicates(stats);
    }

    void report_duplicates(const FileStats& stats) const {
        std::vector<int64_t> order(static_cast<size_t>(stats.records));
        std::iota(order.begin(), order.end(), data_.first_record_.back());
        std::sort(order.begin(), order.end(),
                  [&](int64_t a, int64_t b) { return data_.name(a) < data_.name(b); });
        int64_t duplicates = 0;
        std::string_view first;
        for (size_t i = 1; i < order.size(); ++i)
            if (data_.name(order[i]) == data_.name(order[i - 1]) && ++duplicates == 1)
                first = data_.name(order[i]);
        if (duplicates > 0)
            log_warning(fmt::format(
                "{}: {} records have a name that an earlier one has, the first of them '{}'; all are "
                "used",
                stats.path, duplicates, printable(first)));
    }

    // What FileStats counts of a byte.
    struct Letter {
        bool unknown = false, uncertain = false;
    };

    Dataset& data_;
    const DatasetOptions& options_;
    int64_t limit_;
    std::array<Letter, 256> letters_{};
    std::vector<int32_t> ids_;
    std::string first_unknown_;
    Checksum sum_;
};

Dataset::Dataset(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)), store_(tokenizer_->vocab_size()) {}

std::shared_ptr<const Dataset> Dataset::open(const DatasetOptions& options) {
    MOEBIUS_CHECK(options.tokenizer != nullptr);
    const std::shared_ptr<Dataset> data(new Dataset(options.tokenizer));
    DatasetReader(*data, options).read_all();
    return data;
}

const Dataset::Record& Dataset::at(int64_t record) const {
    MOEBIUS_CHECK(record >= 0 && record < records(), "record ", record, " of ", records());
    return records_[static_cast<size_t>(record)];
}

double Dataset::share_of(int64_t FileStats::*count) const {
    double counted = 0, all = 0;
    for (const FileStats& file : files_) {
        counted += static_cast<double>(file.*count);
        all += static_cast<double>(file.residues);
    }
    return all > 0 ? counted / all : 0;
}

int64_t Dataset::index_in_file(int64_t record) const {
    return record - first_record_[static_cast<size_t>(at(record).file)];
}

std::string_view Dataset::name(int64_t record) const {
    const Record& r = at(record);
    return std::string_view(names_).substr(static_cast<size_t>(r.name_begin),
                                           static_cast<size_t>(r.name_length));
}

void Dataset::read(int64_t record, int64_t begin, std::span<int32_t> out) const {
    const Record& r = at(record);
    MOEBIUS_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= r.length, "tokens ", begin, " + ",
                  out.size(), " of ", r.length);
    store_.read(r.first + begin, out);
}

std::string Dataset::describe(int64_t record) const {
    return fmt::format("{}, record {} ({})", files_[static_cast<size_t>(file_of(record))].path,
                       index_in_file(record), printable(name(record)));
}

std::string Dataset::describe(int64_t record, int64_t begin, int64_t end) const {
    return fmt::format("{}, bases {} to {}", describe(record), begin + 1, end);
}

}  // namespace moebius::data
