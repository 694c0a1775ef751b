// What the tests of the data room share: files to read, sequences to know.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "moebius/base/error.h"
#include "moebius/base/log.h"
#include "moebius/data/dataset.h"
#include "moebius/data/loader.h"
#include "moebius/data/source.h"
#include "moebius/data/windows.h"

namespace moebius::data::testing {

// A folder that goes with the object.
class TempDir {
  public:
    TempDir() {
        static std::atomic<int> count{0};
        path_ = std::filesystem::temp_directory_path() /
                ("moebius_data_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
        std::filesystem::create_directories(path_);
    }
    ~TempDir() {
        std::error_code error;
        std::filesystem::remove_all(path_, error);
    }
    std::string operator/(std::string_view name) const { return (path_ / name).string(); }
    std::string write(std::string_view name, std::string_view content) const {
        const std::string path = *this / name;
        std::ofstream(path, std::ios::binary) << content;
        return path;
    }

  private:
    std::filesystem::path path_;
};

// All lines logged while it lives.
class LogLines {
  public:
    LogLines() {
        set_log_sink([this](LogLevel level, std::string_view line) {
            if (level == LogLevel::Warning) warnings.emplace_back(line);
        });
    }
    ~LogLines() { set_log_sink({}); }
    std::vector<std::string> warnings;
};

// What `f` throws as an Error; empty if nothing.
template <class Function>
std::string error_of(const Function& f) {
    try {
        f();
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}

struct ReadRecord {
    std::string name, text;
    int64_t line = 0;
    bool operator==(const ReadRecord&) const = default;
};

inline std::vector<ReadRecord> read_all(const std::string& path, std::string_view format = "auto") {
    const auto source = open_source(path, format);
    std::vector<ReadRecord> records;
    RecordHead head;
    while (source->next(head)) {
        EXPECT_EQ(head.index, static_cast<int64_t>(records.size()));
        records.push_back({head.name, "", head.line});
        for (auto piece = source->piece(); !piece.empty(); piece = source->piece())
            records.back().text += piece;
    }
    return records;
}

// gzip and bgzip files without compression (deflate's stored blocks), made by hand: byte-exact on every
// machine.
inline void put(std::string& out, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

inline uint32_t crc32(std::string_view data) {
    uint32_t crc = ~0u;
    for (const char c : data) {
        crc ^= static_cast<uint8_t>(c);
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

inline std::string gzip_member(std::string_view data) {
    std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
    size_t at = 0;
    do {
        const size_t count = std::min<size_t>(65535, data.size() - at);
        out += static_cast<char>(at + count == data.size());
        put(out, static_cast<uint32_t>(count), 2);
        put(out, ~static_cast<uint32_t>(count), 2);
        out += data.substr(at, count);
        at += count;
    } while (at < data.size());
    put(out, crc32(data), 4);
    put(out, static_cast<uint32_t>(data.size()), 4);
    return out;
}

inline std::string bgzip_end() {
    return std::string("\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0\x1b\0\x03\0\0\0\0\0\0\0\0\0", 28);
}

inline std::string bgzip_blocks(std::string_view data, size_t block = 1000) {
    std::string out;
    for (size_t at = 0; at < data.size(); at += block) {
        const std::string_view part = data.substr(at, block);
        out += std::string("\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0", 16);
        put(out, static_cast<uint32_t>(18 + 5 + part.size() + 8 - 1), 2);
        out += '\x01';
        put(out, static_cast<uint32_t>(part.size()), 2);
        put(out, ~static_cast<uint32_t>(part.size()), 2);
        out += part;
        put(out, crc32(part), 4);
        put(out, static_cast<uint32_t>(part.size()), 4);
    }
    return out;
}

inline std::string random_bases(int64_t n, uint32_t seed, std::string_view letters = "ACGT") {
    std::string text;
    uint32_t state = seed * 2654435761u + 12345u;
    for (int64_t i = 0; i < n; ++i) {
        state = state * 1664525u + 1013904223u;
        text += letters[(state >> 16) % letters.size()];
    }
    return text;
}

inline std::shared_ptr<const Dataset> dataset_of(const std::vector<std::string>& sequences) {
    const TempDir dir;
    std::string text;
    for (size_t i = 0; i < sequences.size(); ++i)
        text += ">s" + std::to_string(i) + "\n" + sequences[i] + "\n";
    return Dataset::open({.paths = {dir.write("in.fa", text)}, .tokenizer = make_tokenizer("nucleotide")});
}

inline std::shared_ptr<const WindowSet> windows_of(const std::vector<std::string>& sequences, int64_t length,
                                                   std::optional<int64_t> stride = 0) {
    const auto data = dataset_of(sequences);
    return std::make_shared<WindowSet>(data, split_held_out(*data, 0).training,
                                       WindowOptions{.max_seq_length = length, .stride = stride});
}

}  // namespace moebius::data::testing
