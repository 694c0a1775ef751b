#include "moebius/checkpoint/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "moebius/base/check.h"
#include "moebius/base/checksum.h"
#include "moebius/base/error.h"

namespace moebius::checkpoint {

namespace {

[[noreturn]] void fail(const char* what, const Path& path, int code) {
    throw Error(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(code)));
}

class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }

  private:
    int fd_;
};

int open_retrying(const Path& path, int flags) {
    int fd;
    do {
        fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

class RealOutputFile : public OutputFile {
  public:
    RealOutputFile(int fd, Path path) : fd_(fd), path_(std::move(path)) {}

    int64_t write_some(int64_t offset, const void* data, int64_t bytes) override {
        ssize_t done;
        do {
            done = ::pwrite(fd_.get(), data, static_cast<size_t>(bytes), offset);
        } while (done < 0 && errno == EINTR);
        if (done < 0) fail("write", path_, errno);
        if (done == 0) fail("write", path_, ENOSPC);
        return done;
    }
    void sync() override {
        if (::fsync(fd_.get()) != 0) fail("write to disk (fsync)", path_, errno);
    }
    void close() override {
        const int fd = fd_.release();
        // Linux has closed it even when it reports EINTR.
        if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail("close", path_, errno);
    }

  private:
    Descriptor fd_;
    Path path_;
};

class RealInputFile : public InputFile {
  public:
    RealInputFile(int fd, int64_t size, Path path) : fd_(fd), size_(size), path_(std::move(path)) {}
    int64_t size() const override { return size_; }
    const Path& path() const override { return path_; }
    int64_t read_some(int64_t offset, void* data, int64_t bytes) const override {
        ssize_t done;
        do {
            done = ::pread(fd_.get(), data, static_cast<size_t>(bytes), offset);
        } while (done < 0 && errno == EINTR);
        if (done < 0) fail("read", path_, errno);
        return done;
    }

  private:
    Descriptor fd_;
    int64_t size_;
    Path path_;
};

class RealFileSystem : public FileSystem {
  public:
    std::unique_ptr<OutputFile> open_for_writing(const Path& path, OpenMode mode) override {
        const int fd = open_retrying(path, mode == OpenMode::Create ? O_WRONLY | O_CREAT | O_EXCL : O_WRONLY);
        if (fd < 0) fail("create", path, errno);
        return std::make_unique<RealOutputFile>(fd, path);
    }
    std::unique_ptr<InputFile> open_for_reading(const Path& path) override {
        // O_NONBLOCK: a pipe is refused below instead of waited for.
        Descriptor fd(open_retrying(path, O_RDONLY | O_NONBLOCK));
        if (fd.get() < 0) fail("open", path, errno);
        struct stat status {};
        if (::fstat(fd.get(), &status) != 0) fail("open", path, errno);
        if (S_ISDIR(status.st_mode)) fail("read", path, EISDIR);
        if (!S_ISREG(status.st_mode)) throw Error("cannot read " + path.string() + ": not a regular file");
        return std::make_unique<RealInputFile>(fd.release(), status.st_size, path);
    }
    FileKind kind(const Path& path) override {
        struct stat status {};
        if (::stat(path.c_str(), &status) != 0) {
            if (errno == ENOENT || errno == ENOTDIR) return FileKind::Absent;
            fail("look at", path, errno);
        }
        if (S_ISREG(status.st_mode)) return FileKind::Regular;
        return S_ISDIR(status.st_mode) ? FileKind::Directory : FileKind::Other;
    }
    bool is_link(const Path& path) override {
        struct stat status {};
        return ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
    }
    std::vector<std::string> list(const Path& directory) override {
        const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(directory.c_str()), &::closedir);
        if (!stream) fail("list", directory, errno);
        std::vector<std::string> names;
        errno = 0;
        while (const dirent* entry = ::readdir(stream.get())) {
            const std::string name = entry->d_name;
            if (name != "." && name != "..") names.push_back(name);
            errno = 0;
        }
        if (errno != 0) fail("list", directory, errno);
        std::sort(names.begin(), names.end());
        return names;
    }
    void make_directory(const Path& path) override {
        if (::mkdir(path.c_str(), 0777) != 0) fail("create the folder", path, errno);
    }
    void rename(const Path& from, const Path& to) override {
        if (::rename(from.c_str(), to.c_str()) != 0)
            throw Error(
                fmt::format("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno)));
    }
    bool exchange(const Path& a, const Path& b) override {
        constexpr unsigned kRenameExchange = 2;  // linux/fs.h
        if (::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), kRenameExchange) == 0)
            return true;
        if (errno == EINVAL || errno == ENOSYS) return false;
        throw Error(
            fmt::format("cannot exchange {} and {}: {}", a.string(), b.string(), std::strerror(errno)));
    }
    void remove_file(const Path& path) override {
        if (::unlink(path.c_str()) != 0) fail("remove", path, errno);
    }
    void remove_directory(const Path& path) override {
        if (::rmdir(path.c_str()) != 0) fail("remove the folder", path, errno);
    }
    void sync_directory(const Path& path) override {
        const Descriptor fd(open_retrying(path, O_RDONLY | O_DIRECTORY));
        if (fd.get() < 0) fail("open the folder", path, errno);
        // Some network file systems have nothing to do for a folder and say so.
        if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
            fail("write to disk (fsync) the folder", path, errno);
    }
};

}  // namespace

void OutputFile::write_at(int64_t offset, const void* data, int64_t bytes) {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
        const int64_t done = write_some(offset, from, bytes);
        MOEBIUS_CHECK(done > 0 && done <= bytes, done, " of ", bytes, " bytes written");
        offset += done;
        from += done;
        bytes -= done;
    }
}

void InputFile::read_at(int64_t offset, void* data, int64_t bytes) const {
    auto* to = static_cast<char*>(data);
    while (bytes > 0) {
        const int64_t done = read_some(offset, to, bytes);
        if (done == 0)
            throw Error(fmt::format("{} ends at byte {}, {} more expected", path().string(), offset, bytes));
        offset += done;
        to += done;
        bytes -= done;
    }
}

FileSystem& real_file_system() {
    static RealFileSystem files;
    return files;
}

void make_directories(FileSystem& files, const Path& path) {
    switch (files.kind(path)) {
        case FileKind::Directory:
            return;
        case FileKind::Absent:
            break;
        default:
            throw Error(path.string() + " is a file; a folder is needed there");
    }
    const Path parent = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
    if (!parent.empty() && parent != path) make_directories(files, parent);
    if (files.kind(path) == FileKind::Absent) files.make_directory(path);
    files.sync_directory(parent.empty() ? Path(".") : parent);
}

void remove_tree(FileSystem& files, const Path& path) {
    if (files.kind(path) != FileKind::Directory || files.is_link(path)) {
        files.remove_file(path);
        return;
    }
    for (const std::string& name : files.list(path)) remove_tree(files, path / name);
    files.remove_directory(path);
}

void write_text(FileSystem& files, const Path& path, const std::string& text) {
    const auto file = files.open_for_writing(path, OpenMode::Create);
    file->write_at(0, text.data(), static_cast<int64_t>(text.size()));
    file->sync();
    file->close();
}

std::string read_text(FileSystem& files, const Path& path) {
    const auto file = files.open_for_reading(path);
    std::string text(static_cast<size_t>(file->size()), '\0');
    file->read_at(0, text.data(), file->size());
    return text;
}

std::string checksum_of(FileSystem& files, const Path& path) {
    const auto file = files.open_for_reading(path);
    Checksum sum;
    std::vector<char> buffer(1 << 20);
    for (int64_t offset = 0; offset < file->size();) {
        const int64_t bytes = std::min<int64_t>(static_cast<int64_t>(buffer.size()), file->size() - offset);
        file->read_at(offset, buffer.data(), bytes);
        sum.update(buffer.data(), static_cast<size_t>(bytes));
        offset += bytes;
    }
    return sum.hex();
}

}  // namespace moebius::checkpoint
