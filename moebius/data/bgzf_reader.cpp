#include "moebius/data/bgzf_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <htslib/bgzf.h>
#include <htslib/hts.h>
#include <htslib/hts_log.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "moebius/base/error.h"

namespace moebius::data {
namespace {

// A clear reason before htslib sees the path: it would take "http:…" for an address and a directory for a
// file.
void check_readable(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) throw Error(fmt::format("cannot read {}: {} (dataset.path)", path, std::strerror(errno)));
    struct stat info {};
    const int rc = ::fstat(fd, &info);
    ::close(fd);
    if (rc != 0) throw Error(fmt::format("cannot read {}: {} (dataset.path)", path, std::strerror(errno)));
    if (S_ISDIR(info.st_mode)) throw Error(fmt::format("{} is a directory, not a file (dataset.path)", path));
    if (!S_ISREG(info.st_mode)) throw Error(fmt::format("{} is not a regular file (dataset.path)", path));
    if (info.st_size == 0) throw Error(fmt::format("{} is empty (dataset.path)", path));
}

const char* reason(unsigned errcode, Compression compression) {
    if (compression == Compression::None) return "reading failed";
    if (errcode & BGZF_ERR_CRC) return "the compressed data are damaged (wrong checksum)";
    if (errcode & BGZF_ERR_HEADER)
        return "the compressed data are damaged (bad member header, or bytes after the last member)";
    if (errcode & BGZF_ERR_IO) return "the compressed file is truncated or could not be read";
    return "the compressed data are damaged, truncated, or followed by something else";
}

}  // namespace

struct BgzfReader::Handle {
    BGZF* file = nullptr;
    ~Handle() {
        if (file != nullptr) bgzf_close(file);
    }
};

BgzfReader::BgzfReader(const std::string& path) : path_(path), handle_(std::make_unique<Handle>()) {
    hts_set_log_level(HTS_LOG_OFF);
    check_readable(path);
    handle_->file = bgzf_open(std::filesystem::absolute(path).c_str(), "r");
    if (handle_->file == nullptr)
        throw Error(fmt::format("cannot read {}: {} (dataset.path)", path, std::strerror(errno)));
    // A bgzip file that lost whole blocks reads as a shorter, perfect one: only its end marker tells.
    if (compression() == Compression::Bgzip && bgzf_check_EOF(handle_->file) == 0)
        throw Error(fmt::format(
            "{}: the bgzip end marker is missing: the file is truncated, or something follows the marker",
            path));
}

BgzfReader::~BgzfReader() = default;
BgzfReader::BgzfReader(BgzfReader&&) noexcept = default;
BgzfReader& BgzfReader::operator=(BgzfReader&&) noexcept = default;

Compression BgzfReader::compression() const {
    const int kind = bgzf_compression(handle_->file);
    return kind == 2 ? Compression::Bgzip : kind == 1 ? Compression::Gzip : Compression::None;
}

size_t BgzfReader::read(char* out, size_t bytes, int64_t line) {
    BGZF* const file = handle_->file;
    size_t filled = 0;
    while (filled < bytes && !failed_) {
        // Never beyond the decompressed block: a failing call would take the good bytes before the damage
        // with it.
        const auto in_block = static_cast<size_t>(std::max(file->block_length - file->block_offset, 1));
        const ssize_t got = bgzf_read(file, out + filled, std::min(bytes - filled, in_block));
        if (got == 0) return filled;
        failed_ = got < 0;
        if (!failed_) filled += static_cast<size_t>(got);
    }
    if (filled == 0 && bytes > 0)
        throw Error(
            fmt::format("{}: line {} or later: {}", path_, line, reason(file->errcode, compression())));
    return filled;
}

std::string compression_library() {
    return fmt::format("htslib {}", hts_version());
}

}  // namespace moebius::data
