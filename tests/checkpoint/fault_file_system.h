// A file system whose n-th operation goes wrong, and which writes down all of them.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "moebius/base/error.h"
#include "moebius/checkpoint/file_system.h"

namespace moebius::checkpoint::testing {

enum class Fault {
    None,
    Fail,      // the operation is not done and reports a full disk
    FullDisk,  // it and every later operation that needs space; removing still works
    Short,     // a write or read moves half the bytes and says so, as the system may
    Torn,      // half the bytes are written, then a full disk is reported
    Kill,      // the process ends before the operation, as by kill -9
    TornKill,  // half the bytes are written, then the process ends
};

inline constexpr int kKilled = 77;  // exit status

class FaultFileSystem : public FileSystem {
  public:
    struct Event {
        std::string operation;
        Path path;
        bool operator==(const Event&) const = default;
    };

    FaultFileSystem(Fault fault, int64_t at, bool can_exchange = true)
        : fault_(fault), at_(at), can_exchange_(can_exchange) {}

    int64_t operations() const { return count_; }
    std::vector<Event> events() const {
        const std::lock_guard lock(mutex_);
        return events_;
    }

    std::unique_ptr<OutputFile> open_for_writing(const Path& path, OpenMode mode) override {
        step("create", path);
        return std::make_unique<Output>(*this, path, real().open_for_writing(path, mode));
    }
    std::unique_ptr<InputFile> open_for_reading(const Path& path) override {
        step("open", path, false);
        return std::make_unique<Input>(*this, real().open_for_reading(path));
    }
    FileKind kind(const Path& path) override { return step("kind", path, false), real().kind(path); }
    bool is_link(const Path& path) override { return step("is_link", path, false), real().is_link(path); }
    std::vector<std::string> list(const Path& path) override {
        return step("list", path, false), real().list(path);
    }
    void make_directory(const Path& path) override {
        step("mkdir", path);
        real().make_directory(path);
    }
    void rename(const Path& from, const Path& to) override {
        step("rename", from);
        real().rename(from, to);
    }
    bool exchange(const Path& a, const Path& b) override {
        step("exchange", a);
        return can_exchange_ && real().exchange(a, b);
    }
    void remove_file(const Path& path) override {
        step("remove", path, false);
        real().remove_file(path);
    }
    void remove_directory(const Path& path) override {
        step("rmdir", path, false);
        real().remove_directory(path);
    }
    void sync_directory(const Path& path) override {
        step("syncdir", path);
        real().sync_directory(path);
    }

  private:
    class Output : public OutputFile {
      public:
        Output(FaultFileSystem& owner, Path path, std::unique_ptr<OutputFile> file)
            : owner_(owner), path_(std::move(path)), file_(std::move(file)) {}
        int64_t write_some(int64_t offset, const void* data, int64_t bytes) override {
            const int64_t half = std::max<int64_t>(1, bytes / 2);
            const bool mine = owner_.step("write", path_);
            if (mine && owner_.fault_ == Fault::Short) return file_->write_some(offset, data, half);
            if (mine && (owner_.fault_ == Fault::Torn || owner_.fault_ == Fault::TornKill)) {
                if (bytes > 1) file_->write_some(offset, data, half);
                if (owner_.fault_ == Fault::TornKill) ::_exit(kKilled);
                throw Error("cannot write " + path_.string() + ": No space left on device");
            }
            return file_->write_some(offset, data, bytes);
        }
        void sync() override {
            owner_.step("sync", path_);
            file_->sync();
        }
        void close() override {
            owner_.step("close", path_);
            file_->close();
        }

      private:
        FaultFileSystem& owner_;
        Path path_;
        std::unique_ptr<OutputFile> file_;
    };

    class Input : public InputFile {
      public:
        Input(FaultFileSystem& owner, std::unique_ptr<InputFile> file)
            : owner_(owner), file_(std::move(file)) {}
        int64_t size() const override { return file_->size(); }
        const Path& path() const override { return file_->path(); }
        int64_t read_some(int64_t offset, void* data, int64_t bytes) const override {
            const bool mine = owner_.step("read", file_->path(), false);
            const int64_t now =
                mine && owner_.fault_ == Fault::Short ? std::max<int64_t>(1, bytes / 2) : bytes;
            return file_->read_some(offset, data, now);
        }

      private:
        FaultFileSystem& owner_;
        std::unique_ptr<InputFile> file_;
    };

    static FileSystem& real() { return real_file_system(); }

    // Counts, writes down, and fails or kills if it is this one's turn. True if it is.
    bool step(const char* operation, const Path& path, bool needs_space = true) {
        const int64_t n = ++count_;
        {
            const std::lock_guard lock(mutex_);
            events_.push_back({operation, path});
        }
        const bool mine = n == at_;
        const bool writes = std::string(operation) == "write";
        if (mine && (fault_ == Fault::Kill || (fault_ == Fault::TornKill && !writes))) ::_exit(kKilled);
        const bool fails = (mine && (fault_ == Fault::Fail || (fault_ == Fault::Torn && !writes))) ||
                           (n >= at_ && fault_ == Fault::FullDisk && needs_space);
        if (fails)
            throw Error(std::string("cannot ") + operation + " " + path.string() +
                        ": No space left on device");
        return mine;
    }

    const Fault fault_;
    const int64_t at_;
    const bool can_exchange_;
    std::atomic<int64_t> count_{0};
    mutable std::mutex mutex_;
    std::vector<Event> events_;
};

}  // namespace moebius::checkpoint::testing
