#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include "moebius/base/log.h"
#include "moebius/base/split_float.h"
#include "moebius/checkpoint/state_files.h"
#include "tests/checkpoint/fault_file_system.h"
#include "tests/checkpoint/toy_state.h"

namespace moebius::checkpoint::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

FileSystem& real = real_file_system();

void flip_byte(const Path& path, int64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(offset);
    file.put(byte);
    ASSERT_TRUE(file.good());
}

std::vector<Path> files_under(const Path& folder) {
    std::vector<Path> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) paths.push_back(entry.path());
    return paths;
}

// One thread a rank, meeting where ranks meet.
void save_as(int64_t world, const ToyOptions& base, const Path& folder, int64_t step, DType model_dtype,
             int64_t max_shard_bytes) {
    std::mutex mutex;
    std::condition_variable all_here;
    int64_t waiting = 0, generation = 0;
    const auto barrier = [&] {
        std::unique_lock lock(mutex);
        const int64_t mine = generation;
        if (++waiting == world) {
            waiting = 0;
            ++generation;
            all_here.notify_all();
        } else {
            all_here.wait(lock, [&] { return generation != mine; });
        }
    };
    std::vector<std::thread> ranks;
    for (int64_t rank = 0; rank < world; ++rank)
        ranks.emplace_back([&, rank] {
            ToyOptions options = base;
            options.rank = rank;
            options.world = world;
            ToyState state(options);
            state.fill(step);
            SaveRequest request = toy_request(state, step, model_dtype);
            request.rank_text = "{\"rank\":" + std::to_string(rank) + "}";
            Store({.directory = folder,
                   .max_shard_bytes = max_shard_bytes,
                   .rank = static_cast<int>(rank),
                   .world = static_cast<int>(world),
                   .barrier = barrier},
                  real)
                .save(request);
        });
    for (std::thread& rank : ranks) rank.join();
}

struct RoundTrip {
    const char* name;
    ToyOptions state;
    DType model_dtype;
};

class RoundTrips : public ::testing::TestWithParam<RoundTrip> {};

TEST_P(RoundTrips, GivesBackEveryBit) {
    const ScratchFolder scratch;
    ToyState state(GetParam().state);
    state.fill(7);
    Store store({.directory = scratch.path() / "a" / "b"}, real);
    store.save(toy_request(state, 7, GetParam().model_dtype));
    EXPECT_EQ(store.last_saved(), 7);
    state.poison();
    ASSERT_NE(state.difference(7), "");
    const auto found = latest(real, scratch.path() / "a" / "b");
    ASSERT_TRUE(found);
    EXPECT_EQ(found->step(), 7);
    EXPECT_EQ(found->path().filename(), "step_000007");
    EXPECT_EQ(found->trainer(), "{\"step\":7,\"lr\":0.1,\"seed\":18446744073709551615}");
    const LoadReport report = found->load(toy_layouts(), state.entries());
    EXPECT_EQ(state.difference(7), "");
    EXPECT_THAT(report.unused, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    All, RoundTrips,
    ::testing::Values(
        RoundTrip{"f32", {}, DType::F32},
        RoundTrip{"bf16_with_masters", {.weight_dtype = DType::BF16, .masters = true}, DType::BF16},
        RoundTrip{"bf16_exported_as_f32", {.weight_dtype = DType::BF16, .masters = true}, DType::F32},
        // Rounded in model/, so the exact ones are kept as state.
        RoundTrip{"f32_exported_as_bf16", {}, DType::BF16}),
    [](const auto& info) { return info.param.name; });

// Weights and masters of the toy's tensors in either form; some masters are ties.
class MasterState {
  public:
    explicit MasterState(bool remainders) {
        for (const ToyTensor& tensor : toy_tensors()) {
            const int64_t count = tensor.shape.numel();
            const GlobalSlice slice{tensor.name, tensor.shape, 0, count};
            const View weights(memory(count * 2), DType::BF16, {count});
            entries_.push_back({slice, weights, StateKind::Weight});
            if (remainders) {
                entries_.push_back(
                    {slice, weights, StateKind::Master, View(memory(count * 2), DType::I16, {count})});
            } else {
                entries_.push_back({slice, View(memory(count * 4), DType::F32, {count}), StateKind::Master});
            }
        }
    }
    static float master(const StateEntry& entry, int64_t i) {
        const float value = toy_value(entry.slice.name, StateKind::Weight, 3, i);
        if (i % 3 != 0) return value;
        return std::bit_cast<float>((std::bit_cast<uint32_t>(value) & ~0xFFFFu) | 0x8000u);
    }
    void fill() {
        for (const StateEntry& entry : entries_) {
            for (int64_t i = 0; i < entry.slice.count; ++i) {
                const float value = master(entry, i);
                const SplitFloat parts = split_float(value);
                if (entry.remainder) {
                    entry.view.as<BF16>()[i] = parts.rounded;
                    entry.remainder.as<int16_t>()[i] = parts.remainder;
                } else if (entry.kind == StateKind::Master) {
                    entry.view.as<float>()[i] = value;
                } else {
                    entry.view.as<BF16>()[i] = to_bf16(value);
                }
            }
        }
    }
    void poison() {
        for (const StateEntry& entry : entries_)
            std::memset(entry.view.data, 0xFF, static_cast<size_t>(entry.view.bytes()));
    }
    void expect_masters() const {
        for (const StateEntry& entry : entries_) {
            if (entry.kind != StateKind::Master) continue;
            for (int64_t i = 0; i < entry.slice.count; ++i) {
                const float got =
                    entry.remainder ? join_float({entry.view.as<BF16>()[i], entry.remainder.as<int16_t>()[i]})
                                    : entry.view.as<float>()[i];
                ASSERT_EQ(got, master(entry, i)) << entry.slice.name << " " << i;
            }
        }
    }
    SaveRequest request() const {
        SaveRequest request = toy_request(ToyState({}), 3, DType::BF16);
        request.entries = entries_;
        return request;
    }
    const std::vector<StateEntry>& entries() const { return entries_; }

  private:
    void* memory(int64_t bytes) {
        memory_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(bytes)));
        return memory_.back().get();
    }
    std::vector<std::unique_ptr<std::byte[]>> memory_;
    std::vector<StateEntry> entries_;
};

// A checkpoint does not say in which form its masters were held: each opens in the other, bit for bit.
TEST(Store, MastersHeldAsRemaindersAreStoredAsTheMastersTheyAre) {
    const Path file = Path("step_000003") / kOptimizerFolder / state_file_name(0, 1);
    std::string written[3];
    for (const int way : {0, 1, 2}) {  // fp32; remainders; remainders, asynchronous
        const ScratchFolder scratch;
        MasterState state(way > 0);
        state.fill();
        {
            Store store({.directory = scratch.path(), .async = way == 2}, real);
            store.save(state.request());
            if (way == 2) state.poison();
            store.wait();
        }
        written[way] = read_text(real, scratch.path() / file);
        for (const bool remainders : {false, true}) {
            MasterState again(remainders);
            again.poison();
            const auto found = latest(real, scratch.path());
            ASSERT_TRUE(found);
            // Masters first: what is read into the weights after them must not spoil them.
            std::vector<StateEntry> entries = again.entries();
            std::reverse(entries.begin(), entries.end());
            found->load(toy_layouts(), entries);
            again.expect_masters();
        }
    }
    EXPECT_EQ(written[0], written[1]);
    EXPECT_EQ(written[0], written[2]);
}

TEST(Checkpoint, MomentsInBf16AreReadAsF32) {
    const ScratchFolder scratch;
    ToyState state({});
    state.fill(4);
    std::vector<BF16> narrow(4);
    SaveRequest request = toy_request(state, 4);
    for (StateEntry& entry : request.entries) {
        if (entry.slice.name != "norm" || entry.kind != StateKind::Moment1) continue;
        for (int64_t i = 0; i < 4; ++i) narrow[static_cast<size_t>(i)] = to_bf16(entry.view.as<float>()[i]);
        entry.view = View(narrow.data(), DType::BF16, {4});
    }
    Store({.directory = scratch.path()}, real).save(request);
    state.poison();
    latest(real, scratch.path())->load(toy_layouts(), state.entries());
    for (const StateEntry& entry : state.entries()) {
        if (entry.slice.name != "norm" || entry.kind != StateKind::Moment1) continue;
        for (size_t i = 0; i < 4; ++i) EXPECT_EQ(entry.view.as<float>()[i], to_float(narrow[i]));
    }
    // Not the other way round.
    ToyState wide({});
    wide.fill(5);
    Store({.directory = scratch.path()}, real).save(toy_request(wide, 5));
    EXPECT_THAT(error_of([&] { latest(real, scratch.path())->load(toy_layouts(), request.entries); }),
                HasSubstr("moment1 of norm has dtype F32, expected BF16"));
}

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

// Writers, readers, bf16, shard size.
class Resharding : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, bool, int64_t>> {};

TEST_P(Resharding, AnyNumberOfRanksReadsWhatAnyOtherWrote) {
    const auto [writers, readers, bf16, max_shard_bytes] = GetParam();
    const ScratchFolder scratch;
    const ToyOptions options{.weight_dtype = bf16 ? DType::BF16 : DType::F32, .masters = bf16};
    save_as(writers, options, scratch.path(), 9, options.weight_dtype, max_shard_bytes);
    const auto found = latest(real, scratch.path());
    ASSERT_TRUE(found);
    EXPECT_EQ(found->world_size(), writers);
    const std::vector<std::string> texts = found->rank_texts();
    ASSERT_EQ(static_cast<int64_t>(texts.size()), writers);
    EXPECT_EQ(texts.back(), "{\"rank\":" + std::to_string(writers - 1) + "}");
    for (int64_t rank = 0; rank < readers; ++rank) {
        ToyOptions mine = options;
        mine.rank = rank;
        mine.world = readers;
        ToyState state(mine);
        state.poison();
        const LoadReport report = found->load(toy_layouts(), state.entries());
        EXPECT_EQ(state.difference(9), "") << rank << " of " << readers;
        EXPECT_THAT(report.unused, IsEmpty());
    }
}

INSTANTIATE_TEST_SUITE_P(All, Resharding,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5), ::testing::Values(1, 2, 3, 7),
                                            ::testing::Bool(), ::testing::Values(150, 5'000'000'000)));

TEST(Store, TheModelFolderDoesNotDependOnTheNumberOfRanks) {
    const ScratchFolder scratch;
    for (const int64_t world : {1, 4})
        save_as(world, {}, scratch.path() / std::to_string(world), 3, DType::F32, 150);
    const Path one = scratch.path() / "1/step_000003/model", four = scratch.path() / "4/step_000003/model";
    ASSERT_EQ(real.list(one), real.list(four));
    ASSERT_GT(real.list(one).size(), 4u);
    for (const std::string& name : real.list(one))
        EXPECT_EQ(read_text(real, one / name), read_text(real, four / name));
}

TEST(StoreDeathTest, AMissingExpertIsNotSaved) {
    const ScratchFolder scratch;
    ToyState half({.rank = 0, .world = 2});
    half.fill(1);
    SaveRequest request = toy_request(half, 1);
    Store store({.directory = scratch.path()}, real);
    EXPECT_DEATH(store.save(request), "elements given");
}

}  // namespace
}  // namespace moebius::checkpoint::testing
