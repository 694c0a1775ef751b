// Finding and opening what a store wrote, damaged or not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "moebius/base/log.h"
#include "moebius/checkpoint/manifest.h"
#include "tests/checkpoint/toy_state.h"

namespace moebius::checkpoint::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

FileSystem& real = real_file_system();

void flip_byte(const Path& path, int64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(offset);
    file.put(byte);
    ASSERT_TRUE(file.good());
}

TEST(Latest, NoneWhereThereIsNoFolderOrNothingInIt) {
    const ScratchFolder scratch;
    EXPECT_FALSE(latest(real, scratch.path() / "absent"));
    EXPECT_FALSE(latest(real, scratch.path()));
    write_text(real, scratch.path() / "file", "x");
    EXPECT_NE(error_of([&] { latest(real, scratch.path() / "file"); }), "");
}

// Every file, damaged in its first, a middle and its last byte, cut short, grown, or gone.
TEST(Latest, NamesAndPassesOverADamagedOne) {
    const ScratchFolder scratch;
    ToyState state({});
    Store store({.directory = scratch.path(), .max_shard_bytes = 200}, real);
    for (const int64_t step : {1, 2}) {
        state.fill(step);
        store.save(toy_request(state, step));
    }
    const Path newest = scratch.path() / step_name(2), kept = scratch.path() / "kept";
    std::filesystem::copy(newest, kept, std::filesystem::copy_options::recursive);
    const std::vector<Path> files = files_under(newest);
    ASSERT_GE(files.size(), 6u);
    int damages = 0;
    for (const Path& file : files) {
        const auto size = static_cast<int64_t>(std::filesystem::file_size(file));
        const std::vector<std::function<void()>> ways = {
            [&] { flip_byte(file, 0); },
            [&] { flip_byte(file, size / 2); },
            [&] { flip_byte(file, size - 1); },
            [&] { std::filesystem::resize_file(file, static_cast<size_t>(size - 1)); },
            [&] { std::filesystem::resize_file(file, static_cast<size_t>(size + 1)); },
            [&] { std::filesystem::resize_file(file, 0); },
            [&] { std::filesystem::remove(file); }};
        for (const auto& damage : ways) {
            damage();
            ++damages;
            std::vector<std::string> skipped;
            const auto found = latest(real, scratch.path(), &skipped);
            ASSERT_TRUE(found);
            EXPECT_EQ(found->step(), 1);
            ASSERT_EQ(skipped.size(), 1u);
            EXPECT_THAT(skipped[0], HasSubstr(newest.string()));
            EXPECT_THAT(skipped[0], HasSubstr(file.filename().string()));
            std::filesystem::remove_all(newest);
            std::filesystem::copy(kept, newest, std::filesystem::copy_options::recursive);
        }
    }
    EXPECT_GE(damages, 42);
    EXPECT_EQ(latest(real, scratch.path())->step(), 2);
}

TEST(Latest, WarnsThroughTheLog) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(1);
    Store({.directory = scratch.path()}, real).save(toy_request(state, 1));
    flip_byte(scratch.path() / "step_000001/model/config.json", 3);
    std::vector<std::string> lines;
    set_log_sink([&](LogLevel level, std::string_view line) {
        if (level == LogLevel::Warning) lines.emplace_back(line);
    });
    EXPECT_FALSE(latest(real, scratch.path()));
    set_log_sink({});
    EXPECT_THAT(lines, ElementsAre(HasSubstr("model/config.json is damaged")));
}

TEST(Latest, OrdersByNumberNotByName) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(1);
    Store store({.directory = scratch.path()}, real);
    for (const int64_t step : {999999, 1000000, 5}) store.save(toy_request(state, step));
    EXPECT_EQ(latest(real, scratch.path())->step(), 1000000);
}

// Taken at its name's word, it would hide the newer ones of the run that goes on from it.
TEST(Latest, PassesOverOneThatHasTheNameOfAnotherStep) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(1);
    Store store({.directory = scratch.path()}, real);
    for (const int64_t step : {6, 7}) store.save(toy_request(state, step));
    std::filesystem::rename(scratch.path() / step_name(7), scratch.path() / step_name(9));
    std::vector<std::string> skipped;
    EXPECT_EQ(latest(real, scratch.path(), &skipped)->step(), 6);
    EXPECT_THAT(skipped, ElementsAre(::testing::AllOf(HasSubstr("step_000009 is passed over"),
                                                      HasSubstr("it holds step 7"),
                                                      HasSubstr("rename it to step_000007"))));
    store.save(toy_request(state, 8));
    EXPECT_EQ(latest(real, scratch.path())->step(), 8);
}

TEST(Checkpoint, OpeningADamagedOneNamesTheFile) {
    const ScratchFolder scratch;
    EXPECT_THAT(error_of([&] { Checkpoint(real, scratch.path() / "none"); }), HasSubstr("does not exist"));
    EXPECT_THAT(error_of([&] { Checkpoint(real, scratch.path()); }), HasSubstr("it has no trainer.json"));
}

TEST(Checkpoint, LoadNamesWhatDoesNotFit) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(1);
    Store({.directory = scratch.path()}, real).save(toy_request(state, 1));
    const auto found = latest(real, scratch.path());
    std::vector<float> memory(1000);
    const auto load = [&](StateKind kind, const char* name, Shape shape, int64_t begin, int64_t count,
                          DType dtype) {
        const StateEntry entry{{name, shape, begin, count}, View(memory.data(), dtype, {count}), kind};
        return error_of([&] { found->load(toy_layouts(), {entry}); });
    };
    using enum StateKind;
    EXPECT_EQ(load(Moment1, "embed", {10, 4}, 0, 40, DType::F32), "");
    EXPECT_EQ(load(Moment1, "embed", {10, 4}, 7, 5, DType::F32), "");
    EXPECT_THAT(load(Master, "embed", {10, 4}, 0, 40, DType::F32), HasSubstr("has no master of embed"));
    EXPECT_THAT(load(Moment1, "layers.1.mlp.down", {4}, 0, 4, DType::F32),
                HasSubstr("moment1 of layers.1.mlp.down"));
    EXPECT_THAT(load(Moment1, "embed", {10, 5}, 0, 50, DType::F32),
                HasSubstr("has shape (10, 4), expected (10, 5)"));
    EXPECT_THAT(load(Moment1, "embed", {10, 4}, 0, 40, DType::BF16),
                HasSubstr("has dtype F32, expected BF16"));
    const LoadReport report = found->load(toy_layouts(), {state.entries()[0]});
    EXPECT_THAT(report.unused, ::testing::Contains("moment1 of embed"));
    EXPECT_EQ(report.model.layout, "fused experts");
}

TEST(Checkpoint, BF16WeightsAreNotReadAsF32WithoutAWord) {
    const ScratchFolder scratch;
    ToyState state({.weight_dtype = DType::BF16});
    state.fill(1);
    Store({.directory = scratch.path()}, real).save(toy_request(state, 1, DType::BF16));
    ToyState wider({});
    EXPECT_THAT(error_of([&] { latest(real, scratch.path())->load(toy_layouts(), wider.entries()); }),
                HasSubstr("cannot be read exactly as f32"));
}

// Whole by its own checksum, and yet of a program that is not this one: no list of ranks is made of it.
TEST(Checkpoint, AManifestThatCannotBeIsNamed) {
    const auto error = [](int64_t step, int64_t world) {
        Manifest manifest{.step = step, .world_size = world, .trainer = "{}", .files = {}};
        return error_of([&] { parse_manifest(manifest_text(manifest), "here/trainer.json"); });
    };
    EXPECT_EQ(error(3, 1), "");
    EXPECT_THAT(error(3, 0), HasSubstr("here/trainer.json: step 3 of 0 ranks cannot be"));
    EXPECT_THAT(error(-1, 1), HasSubstr("here/trainer.json: step -1"));
    EXPECT_THAT(error(3, int64_t{1} << 40), HasSubstr("ranks cannot be"));
}

}  // namespace
}  // namespace moebius::checkpoint::testing
