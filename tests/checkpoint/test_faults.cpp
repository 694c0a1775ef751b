// What happens to checkpoints when the disk, the permissions or the process fail at any moment.
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include "tests/checkpoint/fault_file_system.h"
#include "tests/checkpoint/toy_state.h"

namespace moebius::checkpoint::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

FileSystem& real = real_file_system();

constexpr int kNotKilled = 5;

// Runs `body` in a child; its return value, or what it died of + 1000.
int in_child(const std::function<int()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
        int status = 99;
        try {
            status = body();
        } catch (const std::exception& error) {
            std::fprintf(stderr, "in the child: %s\n", error.what());
        }
        ::_exit(status);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// Steps 1 and 2 are there, whole; a third is being saved when it happens.
class Scene {
  public:
    Scene(int64_t step, int64_t max_checkpoints, bool async, bool can_exchange)
        : step_(step), max_checkpoints_(max_checkpoints), async_(async), can_exchange_(can_exchange) {
        // Saved once, then copied: there are hundreds of scenes.
        static ScratchFolder whole;
        if (!std::filesystem::exists(whole.path() / step_name(2)))
            for (const int64_t step : {1, 2}) save_to(whole.path(), real, step, step, false, 0);
        std::filesystem::copy(whole.path(), folder(), std::filesystem::copy_options::recursive);
    }

    // Saves `step_` with contents of 3.
    void save_third(FileSystem& files) { save(files, step_, 3, async_); }

    void save(FileSystem& files, int64_t step, int64_t contents, bool async) {
        save_to(folder(), files, step, contents, async, max_checkpoints_);
    }

    // The newest whole one loads, and is the one before or the new one (the new one if `saved`); the next
    // save works and leaves nothing behind.
    void check(bool saved, const std::string& what) {
        const auto found = latest(real, folder());
        ASSERT_TRUE(found) << what;
        ToyState state({.weight_dtype = DType::BF16, .masters = true});
        state.poison();
        found->load(toy_layouts(), state.entries());
        const bool is_new = state.difference(3) == "";
        EXPECT_TRUE(is_new ? found->step() == step_ : state.difference(found->step()) == "")
            << what << " " << found->step();
        if (saved) {
            EXPECT_TRUE(is_new) << what;
        }
        // Swapping two names by two renames may leave the one before the same step as the newest.
        EXPECT_GE(found->step(), can_exchange_ || step_ > 2 ? 2 : 1) << what;
        save(real, 9, 9, false);
        EXPECT_EQ(latest(real, folder())->step(), 9) << what;
        for (const std::string& name : real.list(folder()))
            EXPECT_TRUE(parse_step_name(name)) << what << " " << name;
    }

    Path folder() const { return scratch_.path() / "ckpt"; }
    bool can_exchange() const { return can_exchange_; }

  private:
    static void save_to(const Path& folder, FileSystem& files, int64_t step, int64_t contents, bool async,
                        int64_t max_checkpoints) {
        ToyState state({.weight_dtype = DType::BF16, .masters = true});
        state.fill(contents);
        Store store(
            {.directory = folder, .max_checkpoints = max_checkpoints, .async = async, .max_shard_bytes = 300},
            files);
        store.save(toy_request(state, step, DType::BF16));
        state.poison();
        store.wait();
    }

    ScratchFolder scratch_;
    int64_t step_, max_checkpoints_;
    bool async_, can_exchange_;
};

struct SceneOptions {
    const char* name;
    int64_t step;
    int64_t max_checkpoints;
    bool async = false;
    bool can_exchange = true;
};

class EveryOperation : public ::testing::TestWithParam<std::tuple<SceneOptions, Fault>> {
  protected:
    static Scene scene() {
        const SceneOptions& o = std::get<0>(GetParam());
        return Scene(o.step, o.max_checkpoints, o.async, o.can_exchange);
    }
};

TEST_P(EveryOperation, LeavesAWholeCheckpoint) {
    const auto& [options, fault] = GetParam();
    int64_t operations = 0;
    {
        Scene scene = this->scene();
        FaultFileSystem counting(Fault::None, 0, options.can_exchange);
        scene.save_third(counting);
        operations = counting.operations();
        scene.check(true, "no fault");
    }
    ASSERT_GT(operations, 60);
    int64_t thrown = 0, saved = 0;
    for (int64_t n = 1; n <= operations; ++n) {
        Scene scene = this->scene();
        const std::string what = "operation " + std::to_string(n);
        bool whole = false;
        if (fault == Fault::Kill || fault == Fault::TornKill) {
            const int status = in_child([&] {
                FaultFileSystem files(fault, n, options.can_exchange);
                scene.save_third(files);
                return kNotKilled;
            });
            EXPECT_EQ(status, kKilled) << what;
        } else {
            FaultFileSystem files(fault, n, options.can_exchange);
            const std::string error = error_of([&] { scene.save_third(files); });
            whole = error.empty();
            (whole ? saved : thrown) += 1;
            if (!whole) {
                EXPECT_THAT(error,
                            AllOf(HasSubstr("No space left on device"), HasSubstr(scene.folder().string())))
                    << what;
            }
            if (fault == Fault::Short) {
                EXPECT_EQ(error, "") << what;
            }
        }
        scene.check(whole, what);
    }
    if (fault == Fault::Fail || fault == Fault::FullDisk || fault == Fault::Torn) {
        EXPECT_GT(thrown, 40);
    }
    // The last operations only remove older ones: their failure is a warning.
    if (fault == Fault::Fail && options.max_checkpoints == 1) {
        EXPECT_GT(saved, 10);
    }
}

std::string scene_name(const ::testing::TestParamInfo<std::tuple<SceneOptions, Fault>>& info) {
    constexpr const char* kNames[] = {"none", "fail", "full_disk", "short", "torn", "kill", "torn_kill"};
    return std::string(std::get<0>(info.param).name) + "_" +
           kNames[static_cast<int>(std::get<1>(info.param))];
}

using ::testing::Combine;
using ::testing::Values;

INSTANTIATE_TEST_SUITE_P(Save, EveryOperation,
                         Combine(Values(SceneOptions{"plain", 3, 0}, SceneOptions{"pruning", 3, 1}),
                                 Values(Fault::Fail, Fault::FullDisk, Fault::Short, Fault::Torn, Fault::Kill,
                                        Fault::TornKill)),
                         scene_name);
INSTANTIATE_TEST_SUITE_P(Replace, EveryOperation,
                         Combine(Values(SceneOptions{"replacing", 2, 0},
                                        SceneOptions{"two_renames", 2, 0, false, false}),
                                 Values(Fault::Fail, Fault::Kill)),
                         scene_name);
INSTANTIATE_TEST_SUITE_P(Async, EveryOperation,
                         Combine(Values(SceneOptions{"pruning", 3, 1, true}),
                                 Values(Fault::Fail, Fault::Kill)),
                         scene_name);

TEST(Durability, AllIsSyncedBeforeTheRename) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(1);
    FaultFileSystem files(Fault::None, 0);
    Store store({.directory = scratch.path() / "new" / "ckpt", .max_shard_bytes = 300}, files);
    store.save(toy_request(state, 1));
    const Path partial = scratch.path() / "new" / "ckpt" / "step_000001.partial";
    std::set<Path> dirty_files, open_files, dirty_folders;
    int created = 0, renames = 0;
    for (const auto& [operation, path] : files.events()) {
        if (path.filename() == "step_probe.partial") continue;
        if (operation == "create") {
            ++created;
            open_files.insert(path);
        }
        if (operation == "create" || operation == "mkdir") dirty_folders.insert(path.parent_path());
        if (operation == "write") dirty_files.insert(path);
        if (operation == "sync") dirty_files.erase(path);
        if (operation == "close") open_files.erase(path);
        if (operation == "syncdir") dirty_folders.erase(path);
        if (operation == "rename" && path == partial) {
            ++renames;
            EXPECT_TRUE(dirty_files.empty()) << *dirty_files.begin();
            EXPECT_TRUE(open_files.empty()) << *open_files.begin();
            // Only the folder in which the renaming itself happens.
            dirty_folders.erase(partial.parent_path());
            EXPECT_TRUE(dirty_folders.empty()) << *dirty_folders.begin();
            dirty_folders.insert(partial.parent_path());
        }
    }
    EXPECT_GE(created, 7);
    EXPECT_EQ(renames, 1);
    EXPECT_TRUE(dirty_folders.empty()) << *dirty_folders.begin();
}

// kill -9 at ten random moments of a process that saves as fast as it can.
TEST(Kill, TenTimesAtRandom) {
    std::random_device entropy;
    const unsigned seed = entropy();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const ScratchFolder scratch;
    int64_t reached = 0;
    for (int round = 0; round < 10; ++round) {
        const bool async = round % 2 == 1;
        int progress[2];
        ASSERT_EQ(::pipe(progress), 0);
        const pid_t child = ::fork();
        if (child == 0) {
            try {
                ToyState state({});
                Store store({.directory = scratch.path(), .max_checkpoints = 2, .async = async}, real);
                const auto found = latest(real, scratch.path());
                for (int64_t step = found ? found->step() + 1 : 1;; ++step) {
                    state.fill(step);
                    store.save(toy_request(state, step));
                    if (::write(progress[1], "x", 1) != 1) ::_exit(2);
                }
            } catch (const std::exception& error) {
                std::fprintf(stderr, "in the child: %s\n", error.what());
            }
            ::_exit(1);
        }
        // Some saves, however slow the machine is, then any moment of those after them.
        ::close(progress[1]);
        char seen;
        for (unsigned saves = 2 + random() % 3, i = 0; i < saves; ++i)
            ASSERT_EQ(::read(progress[0], &seen, 1), 1);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 10000));
        ::kill(child, SIGKILL);
        ::close(progress[0]);
        int status = 0;
        ::waitpid(child, &status, 0);
        ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
        std::vector<std::string> skipped;
        const auto found = latest(real, scratch.path(), &skipped);
        ASSERT_TRUE(found);
        EXPECT_TRUE(skipped.empty()) << skipped[0];
        EXPECT_GT(found->step(), reached);  // at least one was whole, also when the last was in flight
        reached = found->step();
        ToyState state({});
        state.poison();
        found->load(toy_layouts(), state.entries());
        EXPECT_EQ(state.difference(reached), "");
    }
    EXPECT_GE(reached, 10);
}

// As a user who may not write everywhere; root is nobody for the time of the test.
int as_plain_user(const std::function<int()>& body) {
    return in_child([&] {
        if (::geteuid() == 0 &&
            (::setgroups(0, nullptr) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0))
            return 98;
        return body();
    });
}

bool plain_write_fails(const Path& folder) {
    return !std::ofstream(folder / "plain").good();
}

// Returns 0 if the error says what it should; else prints it.
int expect_text(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
        if (text.find(part) == std::string::npos) {
            std::fprintf(stderr, "\"%s\" is not in: %s\n", part.c_str(), text.c_str());
            return 1;
        }
    return 0;
}

TEST(Permissions, AFolderThatCannotBeWrittenToIsAnErrorAtTheStart) {
    const ScratchFolder scratch;
    ::chmod(scratch.path().c_str(), 0555);
    const int status = as_plain_user([&] {
        if (!plain_write_fails(scratch.path())) return 2;
        for (const Path& folder : {scratch.path(), scratch.path() / "below"})
            if (const int wrong =
                    expect_text(error_of([&] { Store({.directory = folder}, real); }),
                                {"Permission denied", "checkpoint.ckpt_dir = " + folder.string()}))
                return wrong;
        return 0;
    });
    ::chmod(scratch.path().c_str(), 0755);
    EXPECT_EQ(status, 0);
}

TEST(Permissions, AFolderThatBecomesReadOnlyKeepsWhatItHas) {
    const ScratchFolder scratch;
    ::chmod(scratch.path().c_str(), 0777);
    const int status = as_plain_user([&] {
        const Path folder = scratch.path() / "ckpt";
        ToyState state({});
        state.fill(1);
        Store store({.directory = folder}, real);
        store.save(toy_request(state, 1));
        ::chmod(folder.c_str(), 0555);
        if (!plain_write_fails(folder)) return 2;
        if (const int wrong = expect_text(error_of([&] { store.save(toy_request(state, 2)); }),
                                          {"step 2", "Permission denied", folder.string()}))
            return wrong;
        state.poison();
        latest(real, folder)->load(toy_layouts(), state.entries());
        ::chmod(folder.c_str(), 0755);
        return state.difference(1).empty() ? 0 : 3;
    });
    EXPECT_EQ(status, 0);
}

TEST(Permissions, AFileThatCannotBeReadIsNamed) {
    const ScratchFolder scratch;
    ::chmod(scratch.path().c_str(), 0755);
    ToyState state({});
    Store store({.directory = scratch.path()}, real);
    for (const int64_t step : {1, 2}) {
        state.fill(step);
        store.save(toy_request(state, step));
    }
    const Path secret = scratch.path() / "step_000002/model/model.safetensors";
    ::chmod(secret.c_str(), 0000);
    const int status = as_plain_user([&] {
        if (std::ifstream(secret).good()) return 2;
        std::vector<std::string> skipped;
        const auto found = latest(real, scratch.path(), &skipped);
        if (!found || found->step() != 1 || skipped.size() != 1) return 3;
        if (const int wrong = expect_text(skipped[0], {secret.string(), "Permission denied"})) return wrong;
        return expect_text(error_of([&] { WeightFiles(real, secret.parent_path()); }),
                           {secret.string(), "Permission denied"});
    });
    EXPECT_EQ(status, 0);
}

// A limit of the system's own, met by the real layer.
TEST(Permissions, AFileLimitIsAnError) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(1);
    Store({.directory = scratch.path()}, real).save(toy_request(state, 1));
    const int status = in_child([&] {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{600, 600};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        Store store({.directory = scratch.path()}, real);
        return expect_text(error_of([&] { store.save(toy_request(state, 2)); }),
                           {"model.safetensors", "File too large"});
    });
    EXPECT_EQ(status, 0);
    EXPECT_EQ(real.list(scratch.path()), std::vector<std::string>{"step_000001"});
    EXPECT_EQ(latest(real, scratch.path())->step(), 1);
}

TEST(FileSystem, SaysWhatAndWhere) {
    const ScratchFolder scratch;
    const Path file = scratch.path() / "file";
    write_text(real, file, "text");
    EXPECT_THAT(error_of([&] { write_text(real, file, "again"); }),
                AllOf(HasSubstr("create"), HasSubstr(file.string()), HasSubstr("File exists")));
    EXPECT_THAT(error_of([&] { real.open_for_writing(file.string() + "2", OpenMode::Join); }),
                HasSubstr("No such file"));
    EXPECT_THAT(error_of([&] { make_directories(real, file); }),
                HasSubstr("is a file; a folder is needed there"));
    EXPECT_THAT(error_of([&] { make_directories(real, file / "below"); }), HasSubstr(file.string()));
    EXPECT_THAT(error_of([&] { real.rename(scratch.path() / "no", file); }), HasSubstr("cannot rename"));
    EXPECT_THAT(error_of([&] { real.list(file); }), HasSubstr("Not a directory"));
    EXPECT_THAT(error_of([&] { real.remove_file(scratch.path() / "no"); }), HasSubstr("cannot remove"));
    ASSERT_EQ(::mkfifo((scratch.path() / "pipe").c_str(), 0600), 0);
    EXPECT_THAT(error_of([&] { read_text(real, scratch.path() / "pipe"); }), HasSubstr("not a regular file"));
    EXPECT_EQ(real.kind(scratch.path() / "pipe"), FileKind::Other);
    EXPECT_EQ(real.kind(file / "below"), FileKind::Absent);
}

TEST(FileSystem, RemovingATreeDoesNotFollowLinks) {
    const ScratchFolder scratch;
    make_directories(real, scratch.path() / "kept");
    write_text(real, scratch.path() / "kept" / "file", "x");
    make_directories(real, scratch.path() / "tree" / "deep");
    std::filesystem::create_directory_symlink(scratch.path() / "kept",
                                              scratch.path() / "tree" / "deep" / "link");
    std::filesystem::create_symlink(scratch.path() / "nowhere", scratch.path() / "tree" / "dangling");
    remove_tree(real, scratch.path() / "tree");
    EXPECT_EQ(real.list(scratch.path()), std::vector<std::string>{"kept"});
    EXPECT_EQ(read_text(real, scratch.path() / "kept" / "file"), "x");
}

TEST(FileSystem, CheckpointsThroughALinkedFolder) {
    const ScratchFolder scratch;
    make_directories(real, scratch.path() / "big_disk");
    std::filesystem::create_directory_symlink(scratch.path() / "big_disk", scratch.path() / "ckpt");
    ToyState state({});
    state.fill(1);
    Store({.directory = scratch.path() / "ckpt"}, real).save(toy_request(state, 1));
    EXPECT_EQ(latest(real, scratch.path() / "ckpt")->step(), 1);
    EXPECT_EQ(real.kind(scratch.path() / "big_disk" / "step_000001"), FileKind::Directory);
}

}  // namespace
}  // namespace moebius::checkpoint::testing
