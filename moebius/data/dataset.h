// The sequences of all input files, as tokens in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/data/token_store.h"
#include "moebius/data/tokenizer.h"

namespace moebius::data {

struct DatasetOptions {
    std::vector<std::string> paths;  // dataset.path: files, directories, globs
    std::string format = "auto";     // dataset.format
    std::shared_ptr<const Tokenizer> tokenizer;
    double max_unknown_share =
        0.05;                  // a file with a larger share of residues outside the alphabet is an error
    int64_t memory_limit = 0;  // bytes for tokens; 0: nine tenths of what the machine or its cgroup has
};

struct FileStats {
    std::string path;
    int64_t records = 0, empty_records = 0, residues = 0;
    int64_t unknown = 0;     // residues outside the tokenizer's alphabet
    int64_t lower_case = 0;  // letters in lower case: soft masking
    int64_t uncertain = 0;   // those that stand for no one base, as N, or for one that is not of DNA: U
};

class Dataset {
  public:
    // Reads everything. Throws Error with file, line and reason for whatever can't be read as it should;
    // warns (log) of records without sequence, duplicate names, residues outside the alphabet.
    static std::shared_ptr<const Dataset> open(const DatasetOptions& options);

    // Records are numbered through all files, from 0.
    int64_t records() const { return static_cast<int64_t>(records_.size()); }
    int64_t length(int64_t record) const { return at(record).length; }  // in tokens
    int64_t first_token(int64_t record) const { return at(record).first; }
    int32_t file_of(int64_t record) const { return at(record).file; }
    int64_t index_in_file(int64_t record) const;
    std::string_view name(int64_t record) const;

    // Tokens [begin, begin + out.size()) of a record. Thread-safe.
    void read(int64_t record, int64_t begin, std::span<int32_t> out) const;

    int64_t tokens() const { return store_.size(); }
    int64_t memory_bytes() const { return store_.bytes(); }
    const std::vector<FileStats>& files() const { return files_; }
    // Of all residues, those in lower case; 0 to 1.
    double lower_case_share() const { return share_of(&FileStats::lower_case); }
    // And those that Tokenizer::is_certain denies.
    double uncertain_share() const { return share_of(&FileStats::uncertain); }
    // Whether that share is worth saying.
    bool soft_masked() const { return lower_case_share() >= 1e-3; }
    const Tokenizer& tokenizer() const { return *tokenizer_; }
    std::shared_ptr<const Tokenizer> shared_tokenizer() const { return tokenizer_; }

    // Checksum of the tokens and record borders: equal for equal content, wherever it was read from.
    const std::string& fingerprint() const { return fingerprint_; }

    // "genome.fna.gz, record 0 (NC_008253.1)"
    std::string describe(int64_t record) const;
    // "…, bases 101 to 200" of the 0-based range [begin, end)
    std::string describe(int64_t record, int64_t begin, int64_t end) const;

  private:
    double share_of(int64_t FileStats::*count) const;
    struct Record {
        int64_t first, length, name_begin;
        int32_t file, name_length;
    };

    explicit Dataset(std::shared_ptr<const Tokenizer> tokenizer);
    const Record& at(int64_t record) const;
    friend class DatasetReader;

    std::shared_ptr<const Tokenizer> tokenizer_;
    TokenStore store_;
    std::vector<Record> records_;
    std::vector<FileStats> files_;
    std::vector<int64_t> first_record_;  // of each file
    std::string names_;
    std::string fingerprint_;
};

}  // namespace moebius::data
