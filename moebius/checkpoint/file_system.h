// Every file operation of checkpoints goes through this one small layer, so that a test can make the n-th one
// fail, stop half-way or kill the process. Errors are thrown as Error and name the path and the system's
// reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace moebius::checkpoint {

using Path = std::filesystem::path;

enum class FileKind : uint8_t { Absent, Regular, Directory, Other };

// A file open for writing. The destructor closes without a word: close() is where a failure shows.
class OutputFile {
  public:
    virtual ~OutputFile() = default;
    // All of the bytes at `offset`, in as many calls as it takes.
    void write_at(int64_t offset, const void* data, int64_t bytes);
    // As pwrite(2): may write fewer bytes than asked, at least one.
    virtual int64_t write_some(int64_t offset, const void* data, int64_t bytes) = 0;
    virtual void sync() = 0;
    virtual void close() = 0;
};

class InputFile {
  public:
    virtual ~InputFile() = default;
    virtual int64_t size() const = 0;
    virtual const Path& path() const = 0;
    // All of the bytes; a file that ends before is an Error.
    void read_at(int64_t offset, void* data, int64_t bytes) const;
    // As pread(2): may read fewer bytes than asked; 0 at the end of the file.
    virtual int64_t read_some(int64_t offset, void* data, int64_t bytes) const = 0;
};

enum class OpenMode : uint8_t {
    Create,  // must not exist
    Join,    // must exist: another rank has created it; its bytes stay
};

class FileSystem {
  public:
    virtual ~FileSystem() = default;
    virtual std::unique_ptr<OutputFile> open_for_writing(const Path& path, OpenMode mode) = 0;
    virtual std::unique_ptr<InputFile> open_for_reading(const Path& path) = 0;
    virtual FileKind kind(const Path& path) = 0;  // of what a link leads to
    virtual bool is_link(const Path& path) = 0;
    virtual std::vector<std::string> list(const Path& directory) = 0;  // names, sorted
    virtual void make_directory(const Path& path) = 0;                 // its parent exists, it does not
    virtual void rename(const Path& from, const Path& to) = 0;
    // Swaps two names in one step. False where the file system cannot.
    virtual bool exchange(const Path& a, const Path& b) = 0;
    virtual void remove_file(const Path& path) = 0;
    virtual void remove_directory(const Path& path) = 0;  // must be empty
    virtual void sync_directory(const Path& path) = 0;
};

// The operating system's. It has no state: one object serves all threads.
FileSystem& real_file_system();

// Made of the operations above.
void make_directories(FileSystem& files, const Path& path);
void remove_tree(FileSystem& files, const Path& path);
void write_text(FileSystem& files, const Path& path, const std::string& text);  // created, synced, closed
std::string read_text(FileSystem& files, const Path& path);
std::string checksum_of(FileSystem& files, const Path& path);

}  // namespace moebius::checkpoint
