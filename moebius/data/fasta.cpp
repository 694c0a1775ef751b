#include "moebius/data/fasta.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/data/bgzf_reader.h"

namespace moebius::data {
namespace {

constexpr size_t kBufferBytes = 256 << 10;
constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kMaxHeaderBytes = 1 << 20;

constexpr bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

// 1 for a byte that no sequence may hold.
constexpr std::array<uint8_t, 256> kIllegal = [] {
    std::array<uint8_t, 256> table{};
    for (int c = 0; c < 256; ++c) {
        const bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        table[static_cast<size_t>(c)] = !letter && c != '*' && c != '-' && c != '.';
    }
    return table;
}();

std::string show_byte(char c) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\r') return "carriage return (0x0D)";
    if (c == ' ' || c == '\t') return c == ' ' ? "space" : "tab";
    if (byte > 0x20 && byte < 0x7F) return fmt::format("'{}'", c);
    return fmt::format("byte 0x{:02X}", byte);
}

class FastaSource final : public Source {
  public:
    explicit FastaSource(const std::string& path)
        : reader_(path), buffer_(kBufferBytes), text_(kPieceBytes), at_(buffer_.data()), end_(at_) {}

    bool next(RecordHead& head) override {
        while (in_record_) piece();
        if (!find_header()) return false;
        read_header(head);
        return true;
    }

    std::string_view piece() override;

    void seek(int64_t index) override {
        MOEBIUS_CHECK(index >= 0, "record ", index);
        *this = FastaSource(reader_.path());
        RecordHead head;
        for (int64_t skipped = 0; skipped < index; ++skipped)
            if (!next(head))
                throw Error(fmt::format("{} has {} records, record {} was asked for", reader_.path(), skipped,
                                        index));
    }

    int64_t line() const override { return line_; }

  private:
    [[noreturn]] void fail(int64_t column, const std::string& why) const {
        const std::string place = column > 0 ? fmt::format(", column {}", column) : "";
        throw Error(fmt::format("{}: line {}{}: {}", reader_.path(), line_, place, why));
    }

    // True if there is a byte at at_.
    bool more() {
        if (at_ < end_) return true;
        if (at_end_) return false;
        const size_t got = reader_.read(buffer_.data(), buffer_.size(), line_);
        at_end_ = got == 0;
        at_ = buffer_.data();
        end_ = at_ + got;
        return got > 0;
    }

    void end_line() {
        ++at_;
        ++line_;
        column_ = 1;
        blank_column_ = 0;
    }

    bool find_header();
    void read_header(RecordHead& head);
    size_t take(const char* run, size_t bytes, char* out);
    [[noreturn]] void fail_illegal(const char* run, size_t bytes) const;

    BgzfReader reader_;
    std::vector<char> buffer_, text_;
    const char* at_;
    const char* end_;
    bool at_end_ = false;     // the file holds nothing after end_
    bool in_record_ = false;  // the current record may have more text
    int64_t records_ = 0;
    int64_t line_ = 1;          // of at_
    int64_t column_ = 1;        // of at_
    int64_t blank_column_ = 0;  // where white space began in this line, 0 if it did not
};

// To the next '>' at a line's start. Between records only the file's start can hold anything else: blank
// lines.
bool FastaSource::find_header() {
    while (more()) {
        if (*at_ == '>' && column_ == 1) return true;
        if (*at_ == '\n') {
            end_line();
        } else if (is_blank(*at_)) {
            ++at_, ++column_;
        } else {
            fail(column_, why_not_fasta({at_, static_cast<size_t>(end_ - at_)}));
        }
    }
    if (records_ == 0) fail(0, "the file ends without a FASTA record ('>name')");
    return false;
}

void FastaSource::read_header(RecordHead& head) {
    std::string header;
    bool ended = false;
    while (!ended && more()) {
        const void* newline = std::memchr(at_, '\n', static_cast<size_t>(end_ - at_));
        const char* stop = newline != nullptr ? static_cast<const char*>(newline) : end_;
        header.append(at_, stop);
        at_ = stop;
        ended = newline != nullptr;
        if (header.size() > kMaxHeaderBytes)
            fail(1, fmt::format("a header of more than {} bytes", kMaxHeaderBytes));
    }
    while (!header.empty() && is_blank(header.back())) header.pop_back();
    if (const size_t cr = header.find('\r'); cr != std::string::npos)
        fail(static_cast<int64_t>(cr) + 1, "a carriage return within a header: lines must end in LF or CRLF");
    if (const size_t nul = header.find('\0'); nul != std::string::npos)
        fail(static_cast<int64_t>(nul) + 1, "byte 0x00 in a header: not a text file");

    const char* begin = header.data() + 1;
    const char* const stop = header.data() + header.size();
    if (header.size() > 1) begin = std::find_if_not(begin, stop, is_blank);
    head.name.assign(begin, header.size() > 1 ? std::find_if(begin, stop, is_blank) : begin);
    head.index = records_++;
    head.line = line_;
    if (ended) end_line();
    in_record_ = true;
}

std::string_view FastaSource::piece() {
    size_t filled = 0;
    while (in_record_ && filled < kPieceBytes) {
        if (!more() || (*at_ == '>' && column_ == 1)) {
            in_record_ = false;
            break;
        }
        const size_t limit = std::min(static_cast<size_t>(end_ - at_), kPieceBytes - filled);
        const auto* newline = static_cast<const char*>(std::memchr(at_, '\n', limit));
        const size_t run = newline != nullptr ? static_cast<size_t>(newline - at_) : limit;
        filled += take(at_, run, text_.data() + filled);
        at_ += run;
        column_ += static_cast<int64_t>(run);
        if (newline != nullptr) end_line();
    }
    return {text_.data(), filled};
}

// Copies a stretch of one line, less white space at its end. That may turn out to lie within the line, when
// the next stretch of the same line goes on with letters.
size_t FastaSource::take(const char* run, size_t bytes, char* out) {
    size_t kept = bytes;
    while (kept > 0 && is_blank(run[kept - 1])) --kept;
    if (kept > 0) {
        if (blank_column_ > 0) fail(blank_column_, "white space within a line of sequence");
        uint8_t illegal = 0;
        for (size_t i = 0; i < kept; ++i) illegal |= kIllegal[static_cast<uint8_t>(run[i])];
        if (illegal) fail_illegal(run, kept);
        std::memcpy(out, run, kept);
    }
    if (kept < bytes && blank_column_ == 0) blank_column_ = column_ + static_cast<int64_t>(kept);
    return kept;
}

void FastaSource::fail_illegal(const char* run, size_t bytes) const {
    const char* bad =
        std::find_if(run, run + bytes, [](char c) { return kIllegal[static_cast<uint8_t>(c)] != 0; });
    const char* hint = *bad == '\r'                   ? ": lines must end in LF or CRLF"
                       : *bad == '>'                  ? ": a header must begin its line"
                       : *bad == ';'                  ? ": comment lines are not supported"
                       : (*bad >= '0' && *bad <= '9') ? ": a sequence holds letters, no numbers or qualities"
                                                      : "";
    fail(column_ + (bad - run), fmt::format("{} is not allowed in a sequence{}", show_byte(*bad), hint));
}

}  // namespace

std::unique_ptr<Source> open_fasta(const std::string& path) {
    return std::make_unique<FastaSource>(path);
}

bool sniff_fasta(std::string_view start) {
    const size_t first = start.find_first_not_of(" \t\r\n\v\f");
    return first == std::string_view::npos ? !start.empty() : start[first] == '>';
}

std::string why_not_fasta(std::string_view start) {
    const size_t first = start.find_first_not_of(" \t\r\n\v\f");
    if (first == std::string_view::npos) return "the file ends without a FASTA record ('>name')";
    const std::string_view rest = start.substr(first);
    struct Magic {
        std::string_view bytes, what;
    };
    using namespace std::string_view_literals;
    static constexpr Magic kMagic[] = {
        {"\x1f\x8b"sv, "a gzip file, cut short or compressed twice"},
        {"BZh"sv, "a bzip2 file: decompress it first"},
        {"\xfd"
         "7zXZ"sv,
         "an xz file: decompress it first"},
        {"\x28\xb5\x2f\xfd"sv, "a zstd file: decompress it first"},
        {"PK\x03\x04"sv, "a zip archive: unpack it first"},
        {"PAR1"sv, "a Parquet file"},
        {"\xef\xbb\xbf"sv, "text with a byte order mark"},
        {"\xff\xfe"sv, "UTF-16 text"},
        {"\xfe\xff"sv, "UTF-16 text"},
        {"@"sv, "FASTQ or SAM"},
        {"{"sv, "JSON"},
        {"LOCUS"sv, "a GenBank file"},
        {"##gff"sv, "a GFF file"},
        {";"sv, "FASTA with comments, which is not supported"},
    };
    for (const Magic& magic : kMagic)
        if (rest.starts_with(magic.bytes))
            return fmt::format("not FASTA: it begins with {}, not '>' (looks like {})", show_byte(rest[0]),
                               magic.what);
    return fmt::format("not FASTA: it begins with {}, not '>'", show_byte(rest[0]));
}

}  // namespace moebius::data
