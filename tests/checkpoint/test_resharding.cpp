// Checkpoints of several ranks, read by any number of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/checkpoint/toy_state.h"

namespace moebius::checkpoint::testing {
namespace {

using ::testing::IsEmpty;

FileSystem& real = real_file_system();

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
