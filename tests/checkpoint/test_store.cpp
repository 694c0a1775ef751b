// What a store writes, replaces, prunes and cleans away, and what becomes of failures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "moebius/base/log.h"
#include "tests/checkpoint/fault_file_system.h"
#include "tests/checkpoint/toy_state.h"

namespace moebius::checkpoint::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

FileSystem& real = real_file_system();

TEST(Store, WritesTheLayoutThatItPromises) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(500);
    Store({.directory = scratch.path()}, real).save(toy_request(state, 500));
    std::vector<std::string> names;
    for (const Path& path : files_under(scratch.path()))
        names.push_back(path.lexically_relative(scratch.path()));
    EXPECT_THAT(
        names, UnorderedElementsAre("step_000500/trainer.json", "step_000500/model/config.json",
                                    "step_000500/model/tokenizer.json", "step_000500/model/model.safetensors",
                                    "step_000500/optimizer/optimizer-00000-of-00001.safetensors"));
    EXPECT_EQ(read_text(real, scratch.path() / "step_000500/model/config.json"),
              "{\"model_type\": \"toy\"}\n");
    // fp32 weights are their own masters and stand in model/ alone.
    const SafetensorsReader optimizer(
        real, scratch.path() / "step_000500/optimizer/optimizer-00000-of-00001.safetensors");
    EXPECT_EQ(optimizer.find("weight.embed"), nullptr);
    EXPECT_NE(optimizer.find("moment1.embed"), nullptr);
    // bf16 export of fp32 weights keeps them there.
    Store({.directory = scratch.path()}, real).save(toy_request(state, 501, DType::BF16));
    const SafetensorsReader second(
        real, scratch.path() / "step_000501/optimizer/optimizer-00000-of-00001.safetensors");
    EXPECT_EQ(second.at("weight.embed").type, FileType::F32);
    const SafetensorsReader model(real, scratch.path() / "step_000501/model/model.safetensors");
    EXPECT_EQ(model.at("model.embed_tokens.weight").type, FileType::BF16);
}

TEST(Store, KeepsWeightsThatTheModelFolderHasNoNameFor) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(1);
    SaveRequest request = toy_request(state, 1);
    std::erase_if(request.pieces, [](const ExportPiece& piece) { return piece.internal_name == "norm"; });
    Store({.directory = scratch.path()}, real).save(request);
    state.poison();
    NameLayout layout{.name = "without norm", .pieces = request.pieces, .ignored = {}};
    latest(real, scratch.path())->load({layout}, state.entries());
    EXPECT_EQ(state.difference(1), "");
}

TEST(Store, PrunesOldestOnlyAfterTheNewOneIsWhole) {
    const ScratchFolder scratch;
    ToyState state({});
    Store store({.directory = scratch.path(), .max_checkpoints = 2}, real);
    for (const int64_t step : {10, 20, 30}) {
        state.fill(step);
        store.save(toy_request(state, step));
    }
    EXPECT_THAT(real.list(scratch.path()), ElementsAre("step_000020", "step_000030"));
    // A run that went back to step 20 neither counts nor removes what lies ahead of it.
    Store again({.directory = scratch.path(), .max_checkpoints = 1}, real);
    again.save(toy_request(state, 25));
    EXPECT_THAT(real.list(scratch.path()), ElementsAre("step_000025", "step_000030"));
    Store all({.directory = scratch.path(), .max_checkpoints = 0}, real);
    all.save(toy_request(state, 31));
    all.save(toy_request(state, 32));
    EXPECT_EQ(real.list(scratch.path()).size(), 4u);
}

TEST(Store, PruningSparesWhatIsNotItsOwn) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(1);
    for (const char* name : {"step_one", "step_1", "step_0000001", "notes", "step_-00001"})
        real.make_directory(scratch.path() / name);
    Store store({.directory = scratch.path(), .max_checkpoints = 1}, real);
    store.save(toy_request(state, 1));
    store.save(toy_request(state, 1234567));
    EXPECT_THAT(real.list(scratch.path()), UnorderedElementsAre("step_one", "step_1", "step_0000001", "notes",
                                                                "step_-00001", "step_1234567"));
}

TEST(Store, ReplacesTheSameStep) {
    for (const bool can_exchange : {true, false}) {
        const ScratchFolder scratch;
        FaultFileSystem files(Fault::None, 0, can_exchange);
        ToyState state({});
        Store store({.directory = scratch.path()}, files);
        SaveRequest request = toy_request(state, 5);
        state.fill(5);
        store.save(request);
        state.fill(6);
        store.save(request);
        EXPECT_THAT(real.list(scratch.path()), ElementsAre("step_000005"));
        state.poison();
        latest(real, scratch.path())->load(toy_layouts(), state.entries());
        EXPECT_EQ(state.difference(6), "");
    }
}

TEST(Store, CleansLeftoversAndRestoresAReplacedOne) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(5);
    Store store({.directory = scratch.path()}, real);
    store.save(toy_request(state, 5));
    real.rename(scratch.path() / "step_000005", scratch.path() / "step_000005.replaced.partial");
    make_directories(real, scratch.path() / "step_000009.partial" / "model");
    write_text(real, scratch.path() / "step_000009.partial" / "trainer.json", "{}");
    EXPECT_FALSE(latest(real, scratch.path()));
    store.save(toy_request(state, 7));
    EXPECT_THAT(real.list(scratch.path()), ElementsAre("step_000005", "step_000007"));
}

TEST(Store, SaveFinalDoesNotWriteAStepTwice) {
    for (const bool async : {false, true}) {
        const ScratchFolder scratch;
        FaultFileSystem files(Fault::None, 0);
        ToyState state({});
        Store store({.directory = scratch.path(), .async = async}, files);
        state.fill(3);
        store.save(toy_request(state, 3));
        store.wait();
        const int64_t before = files.operations();
        store.save_final(toy_request(state, 3));
        EXPECT_EQ(files.operations(), before);
        state.fill(4);
        store.save_final(toy_request(state, 4));
        EXPECT_EQ(store.last_saved(), 4);
        EXPECT_EQ(latest(real, scratch.path())->step(), 4);
    }
}

TEST(Store, AsyncSeesTheStateOfTheCallNotOfLater) {
    const ScratchFolder scratch;
    ToyState state({});
    Store store({.directory = scratch.path(), .async = true}, real);
    for (int64_t step = 1; step <= 5; ++step) {
        state.fill(step);
        store.save(toy_request(state, step));
        state.poison();
    }
    store.wait();
    EXPECT_EQ(store.last_saved(), 5);
    for (int64_t step = 1; step <= 5; ++step) {
        Checkpoint(real, scratch.path() / step_name(step)).load(toy_layouts(), state.entries());
        EXPECT_EQ(state.difference(step), "");
    }
}

// As where the entries lie in the memory of a GPU: nothing but the staging's pieces touches them.
TEST(Store, EntriesAreReachedInPieces) {
    Device device = Device::cpu();
    HostArena pool;
    ThreadPool threads(1);
    const Exec exec{.device = &device, .pool = &pool, .threads = &threads};
    for (const bool async : {false, true}) {
        for (const DType dtype : {DType::F32, DType::BF16}) {
            const ScratchFolder plain, staged;
            ToyState state({.weight_dtype = dtype, .masters = dtype == DType::BF16});
            state.fill(1);
            const HostStaging staging(exec, 20);  // a few elements at a time
            for (const auto& [folder, pieces] : {std::pair(&plain, false), std::pair(&staged, true)}) {
                Store store({.directory = folder->path(), .async = async}, real);
                SaveRequest request = toy_request(state, 1);
                request.staging = pieces ? &staging : nullptr;
                store.save(request);
                store.wait();
            }
            for (const Path& path : files_under(plain.path())) {
                const Path other = staged.path() / path.lexically_relative(plain.path());
                EXPECT_EQ(read_text(real, path), read_text(real, other)) << path;
            }
            state.poison();
            Checkpoint(real, staged.path() / step_name(1)).load(toy_layouts(), state.entries(), staging);
            EXPECT_EQ(state.difference(1), "");
        }
    }
}

TEST(Store, AsyncFailureComesOutAtTheNextCall) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(1);
    FaultFileSystem files(Fault::FullDisk, 30);
    Store store({.directory = scratch.path(), .async = true}, files);
    store.save(toy_request(state, 1));
    const std::string error = error_of([&] { store.save(toy_request(state, 2)); });
    EXPECT_THAT(error, HasSubstr("step 1"));
    EXPECT_THAT(error, HasSubstr("No space left on device"));
    EXPECT_THAT(error, HasSubstr("checkpoint.ckpt_dir = " + scratch.path().string()));
    EXPECT_EQ(store.last_saved(), -1);
    EXPECT_EQ(error_of([&] { store.wait(); }), "");  // reported once
    store.save(toy_request(state, 3));
    std::string polled;
    for (int i = 0; i < 2000 && polled.empty(); ++i) {
        polled = error_of([&] { store.poll(); });
        ::usleep(1000);
    }
    EXPECT_THAT(polled, HasSubstr("step 3"));
}

TEST(Store, DestructorReportsAFailureThatNobodyAskedFor) {
    std::mutex mutex;
    std::vector<std::string> lines;
    set_log_sink([&](LogLevel level, std::string_view line) {
        const std::lock_guard lock(mutex);
        if (level == LogLevel::Error) lines.emplace_back(line);
    });
    {
        const ScratchFolder scratch;
        ToyState state({});
        state.fill(1);
        FaultFileSystem files(Fault::FullDisk, 30);
        Store store({.directory = scratch.path(), .async = true}, files);
        store.save(toy_request(state, 1));
    }
    set_log_sink({});
    EXPECT_THAT(lines, ElementsAre(HasSubstr("No space left on device")));
}

TEST(Store, ALaterStoreContinuesAfterAFullDisk) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(1);
    Store({.directory = scratch.path()}, real).save(toy_request(state, 1));
    FaultFileSystem files(Fault::FullDisk, 25);
    Store store({.directory = scratch.path()}, files);
    state.fill(2);
    EXPECT_THAT(error_of([&] { store.save(toy_request(state, 2)); }), HasSubstr("No space left"));
    // What was half written is removed at once: the space is given back.
    EXPECT_THAT(real.list(scratch.path()), ElementsAre("step_000001"));
}

TEST(Store, TrainerTextMustBeJson) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(1);
    SaveRequest request = toy_request(state, 1);
    Store store({.directory = scratch.path()}, real);
    for (const char* bad : {"", "[1]", "{\"a\":1,\"a\":2}", "{\"a\":", "{\"a\":nan}"}) {
        request.trainer = bad;
        EXPECT_NE(error_of([&] { store.save(request); }), "") << bad;
    }
    EXPECT_THAT(real.list(scratch.path()), IsEmpty());
}

}  // namespace
}  // namespace moebius::checkpoint::testing
