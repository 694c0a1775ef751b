// What a file of sequences is read through, and the table of formats.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moebius::data {

struct RecordHead {
    int64_t index = 0;  // in its file, from 0
    std::string name;   // first word of the header; may be empty
    int64_t line = 0;   // of the header, from 1
};

// One file's records, in order. A record's text comes in pieces, so that memory does not depend on its
// length.
class Source {
  public:
    virtual ~Source() = default;

    // Goes on to the next record (what is left of the current one is read and checked); false at the file's
    // end.
    virtual bool next(RecordHead& head) = 0;

    // More of the current record's text, without line ends; empty at its end. Valid until the next call.
    virtual std::string_view piece() = 0;

    // The next `next` gives record `index`. Reads the file from its start: compressed files have no other
    // way.
    virtual void seek(int64_t index) = 0;

    // The line that has been read last, from 1; for messages.
    virtual int64_t line() const = 0;
};

struct FormatRow {
    std::string_view name;                   // as in dataset.format
    std::vector<std::string_view> suffixes;  // without .gz, .bgz; how a directory's files are chosen
    bool (*sniff)(std::string_view start);   // whether a file that begins so (decompressed) has this format
    std::unique_ptr<Source> (*open)(const std::string& path);
};

// All formats: to add one, a file and a row.
const std::vector<FormatRow>& formats();

// `format` is a row's name or "auto" (by content). Throws Error if the file can't be read or the format isn't
// known.
std::unique_ptr<Source> open_source(const std::string& path, std::string_view format = "auto");

}  // namespace moebius::data
