// Bytes of a plain, gzip or bgzip file, through htslib. The only file that knows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace moebius::data {

enum class Compression { None, Gzip, Bgzip };

class BgzfReader {
  public:
    // Throws Error naming the path: missing, a directory, unreadable, empty, a bgzip file cut at a block's
    // border.
    explicit BgzfReader(const std::string& path);
    ~BgzfReader();
    BgzfReader(BgzfReader&&) noexcept;
    BgzfReader& operator=(BgzfReader&&) noexcept;

    // Up to `bytes` bytes; 0 at the file's end and only there. Throws Error on truncation, a bad checksum,
    // bytes after the last member, a failed read, once the good bytes before it have been handed out. `line`
    // is where the caller has got to, for the message.
    size_t read(char* out, size_t bytes, int64_t line);

    Compression compression() const;
    const std::string& path() const { return path_; }

  private:
    struct Handle;
    std::string path_;
    std::unique_ptr<Handle> handle_;
    bool failed_ = false;
};

std::string compression_library();  // "htslib 1.16": name and version that this program runs with

}  // namespace moebius::data
