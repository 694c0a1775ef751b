#include "moebius/data/position.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "moebius/data/loader.h"
#include "tests/data/support.h"

namespace moebius::data::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> sequences() {
    std::vector<std::string> texts;
    for (int i = 0; i < 17; ++i) texts.push_back(random_bases(1 + (i * 41) % 70, static_cast<uint32_t>(i)));
    return texts;
}

struct Mode {
    bool packing, split;
    int64_t buffer;
};
constexpr Mode kModes[] = {{false, false, 1}, {false, false, 8}, {false, false, 1000},
                           {true, true, 8},   {true, false, 8},  {true, true, 1000}};

LoaderOptions options_of(const Mode& mode) {
    LoaderOptions options;
    options.micro_batch_size = 3;
    options.use_sequence_packing = mode.packing;
    options.split_samples = mode.split;
    if (mode.packing) options.token_micro_batch_size = 40;
    options.buffer_size = mode.buffer;
    options.num_workers = 2;
    options.prefetch_factor = 2;
    return options;
}

// A piece of text that was trained on: (record, first base, tokens).
using Used = std::tuple<int64_t, int64_t, int32_t>;

std::vector<Used> used_in(const StepBatch& step) {
    std::vector<Used> used;
    for (const MicroBatch& micro : step.micro)
        for (const SequenceOrigin& o : micro.origins) used.emplace_back(o.record, o.base, o.tokens);
    return used;
}

std::vector<int64_t> content(const StepBatch& step) {
    std::vector<int64_t> all = {step.epoch, step.labels, step.real_tokens};
    for (const MicroBatch& micro : step.micro)
        for (const auto part : {micro.tokens, micro.targets, micro.positions, micro.cu_seqlens})
            all.insert(all.end(), part.begin(), part.end());
    return all;
}

TEST(Position, GoingOnIsAsIfNothingHadBeen) {
    const auto set = windows_of(sequences(), 31, 9);
    for (const Mode& mode : kModes) {
        LoaderOptions options = options_of(mode);
        options.grad_acc_steps = 2;
        constexpr int kSteps = 50;
        std::vector<std::vector<int64_t>> whole;
        std::vector<std::string> positions;
        Loader loader(set, options);
        positions.push_back(loader.position());
        for (int i = 0; i < kSteps; ++i) {
            const StepBatch* step = loader.next_step();
            whole.push_back(content(*step));
            positions.push_back(loader.position());
            EXPECT_TRUE(i + 1 < kSteps || step->epoch >= 2);
        }
        for (int cut = 0; cut < kSteps; ++cut) {  // every step, so also those around an epoch's end
            LoaderOptions again = options;
            again.position = positions[static_cast<size_t>(cut)];
            again.num_workers = cut % 3;
            Loader resumed(set, again);
            EXPECT_EQ(resumed.position(), again.position);
            for (int i = cut; i < std::min(cut + 4, kSteps); ++i) {
                EXPECT_EQ(content(*resumed.next_step()), whole[static_cast<size_t>(i)]) << "from " << cut;
                EXPECT_EQ(resumed.position(), positions[static_cast<size_t>(i) + 1]);
            }
        }
    }
}

TEST(Position, IsBehindTheBatchReturnedNotTheOnesMadeAhead) {
    const auto set = windows_of(sequences(), 31, 9);
    LoaderOptions options = options_of(kModes[0]);
    options.num_workers = 4;
    Loader ahead(set, options);
    options.num_workers = 0;
    Loader behind(set, options);
    for (int i = 0; i < 10; ++i) {
        ahead.next_step();
        behind.next_step();
        EXPECT_EQ(ahead.position(), behind.position());
    }
}

TEST(Position, ChangedDataOrOptionsAreNamed) {
    const auto set = windows_of(sequences(), 31, 9);
    LoaderOptions options = options_of(kModes[1]);
    Loader loader(set, options);
    loader.next_step();
    options.position = loader.position();
    const auto error = [&](std::shared_ptr<const WindowSet> windows, auto change) {
        LoaderOptions other = options;
        change(other);
        return error_of([&] { Loader(windows, other); });
    };
    const auto same = [](LoaderOptions&) {};
    EXPECT_EQ(error(set, same), "");
    EXPECT_THAT(error(set, [](auto& o) { o.seed = 7; }),
                HasSubstr("seed was 42 when the data position was saved and is 7"));
    EXPECT_THAT(error(set, [](auto& o) { o.buffer_size = 9; }), HasSubstr("dataset.buffer_size was 8"));
    EXPECT_THAT(error(set, [](auto& o) { o.data_world = 2; }), HasSubstr("number of data ranks was 1"));
    EXPECT_THAT(error(windows_of(sequences(), 32, 9), same), HasSubstr("dataset.max_seq_length was 31"));
    EXPECT_THAT(error(windows_of(sequences(), 31, 8), same), HasSubstr("dataset.stride was 9"));
    auto changed = sequences();
    changed[3][0] = changed[3][0] == 'A' ? 'C' : 'A';
    EXPECT_THAT(error(windows_of(changed, 31, 9), same), HasSubstr("checksum"));
    EXPECT_THAT(error(set, [](auto& o) { o.position = "{}"; }), HasSubstr("cannot be read"));
    EXPECT_THAT(error(set, [](auto& o) { o.position = "junk"; }), HasSubstr("cannot be read"));
    auto json = nlohmann::json::parse(options.position);
    json["items"] = -1;
    EXPECT_THAT(error(set, [&](auto& o) { o.position = json.dump(); }), HasSubstr("impossible values"));
}

// ---- data ranks

TEST(DataRanks, SameGlobalBatchesWhateverTheWorldWithoutPacking) {
    const auto set = windows_of(sequences(), 31, 9);
    std::vector<std::multiset<Used>> expected;
    for (const int world : {1, 2, 4}) {
        std::vector<std::multiset<Used>> global(20);
        for (int rank = 0; rank < world; ++rank) {
            LoaderOptions options = options_of(kModes[1]);
            options.micro_batch_size = 4 / world;
            options.data_rank = rank;
            options.data_world = world;
            Loader loader(set, options);
            for (auto& step : global)
                for (const Used& used : used_in(*loader.next_step())) step.insert(used);
        }
        if (world == 1) expected = global;
        EXPECT_EQ(global, expected) << world;
    }
}

TEST(DataRanks, OneEpochIsSharedOutAndEndsTogether) {
    const auto set = windows_of(sequences(), 31, 9);
    for (const Mode& mode : kModes)
        for (const int world : {1, 2, 3, 7, 100}) {
            std::multiset<Used> seen;
            int64_t tokens = 0, steps = -1;
            for (int rank = 0; rank < world; ++rank) {
                LoaderOptions options = options_of(mode);
                options.num_workers = 0;
                options.one_epoch = true;
                options.data_rank = rank;
                options.data_world = world;
                Loader loader(set, options);
                int64_t count = 0;
                while (const StepBatch* step = loader.next_step()) {
                    ++count;
                    tokens += step->real_tokens;
                    for (const Used& used : used_in(*step)) seen.insert(used);
                }
                EXPECT_TRUE(steps == -1 || steps == count) << "rank " << rank << " of " << world;
                steps = count;
            }
            EXPECT_EQ(tokens, set->tokens_with_overlap());
            EXPECT_TRUE(mode.packing || static_cast<int64_t>(seen.size()) == set->size());
            EXPECT_EQ(std::set<Used>(seen.begin(), seen.end()).size(), seen.size());
        }
}

// ---- another number of ranks

// Runs `world` ranks from the positions (empty: from the start) for `steps` steps; adds what they used,
// returns where they are. Uneven: rank r makes r more steps, as ranks of other speed could have.
std::vector<std::string> run(const std::shared_ptr<const WindowSet>& set, const Mode& mode, int world,
                             const std::vector<std::string>& positions, int steps,
                             std::map<std::pair<int64_t, int64_t>, int64_t>& used) {
    std::vector<std::string> result;
    for (int rank = 0; rank < world; ++rank) {
        LoaderOptions options = options_of(mode);
        options.num_workers = 0;
        options.data_rank = rank;
        options.data_world = world;
        if (!positions.empty()) options.position = positions[static_cast<size_t>(rank)];
        Loader loader(set, options);
        for (int step = 0; step < steps; ++step) {
            const StepBatch* batch = loader.next_step();
            for (const MicroBatch& micro : batch->micro)
                for (const SequenceOrigin& o : micro.origins)
                    for (int64_t base = o.base; base < o.base + o.bases; ++base) ++used[{o.record, base}];
        }
        result.push_back(loader.position());
    }
    return result;
}

// After any number of changes of the world, on one rank to the end of the epoch that the fastest rank had got
// to: every base has been used as often as every other.
TEST(Resplit, NothingIsLostOrDoubled) {
    const auto set = windows_of(sequences(), 31, 0);
    const int64_t total = set->tokens();
    const std::vector<std::vector<int>> world_lists = {
        {1}, {2}, {3}, {1, 4}, {4, 3}, {5, 2, 7}, {2, 9, 3, 1, 2}};
    for (const Mode& mode : kModes)
        for (const auto& worlds : world_lists)
            for (const int steps : {1, 3}) {
                std::map<std::pair<int64_t, int64_t>, int64_t> used;
                std::vector<std::string> positions;
                for (const int world : worlds) {
                    if (!positions.empty()) {
                        std::reverse(positions.begin(), positions.end());  // any order
                        positions = resplit(positions, world);
                        ASSERT_EQ(positions.size(), static_cast<size_t>(world));
                    }
                    positions = run(set, mode, world, positions, steps, used);
                }
                int64_t count = 0, most = 0;
                for (const auto& [base, n] : used) count += n, most = std::max(most, n);
                LoaderOptions options = options_of(mode);
                options.num_workers = 0;
                options.position = resplit(positions, 1)[0];
                Loader loader(set, options);
                while (count < most * total)
                    for (const MicroBatch& micro : loader.next_step()->micro)
                        for (const SequenceOrigin& o : micro.origins)
                            for (int64_t base = o.base; base < o.base + o.bases && count < most * total;
                                 ++base, ++count)
                                ++used[{o.record, base}];
                EXPECT_EQ(static_cast<int64_t>(used.size()), total);
                int64_t wrong = 0;
                for (const auto& [base, n] : used) wrong += n != most;
                EXPECT_EQ(wrong, 0) << worlds[0] << " ranks first, packing " << mode.packing << mode.split
                                    << mode.buffer;
            }
}

TEST(Resplit, EvenRanksGoOnInTheGlobalOrder) {
    const auto set = windows_of(sequences(), 31, 9);
    LoaderOptions options = options_of(kModes[1]);
    options.num_workers = 0;
    options.micro_batch_size = 4;
    Loader whole(set, options);
    for (int i = 0; i < 5; ++i) whole.next_step();
    std::vector<std::string> positions;
    options.micro_batch_size = 1;
    for (int rank = 0; rank < 4; ++rank) {
        options.data_world = 4;
        options.data_rank = rank;
        Loader loader(set, options);
        for (int i = 0; i < 5; ++i) loader.next_step();
        positions.push_back(loader.position());
    }
    options.micro_batch_size = 4;
    options.data_world = 1;
    options.data_rank = 0;
    options.position = resplit(positions, 1)[0];
    Loader resumed(set, options);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(content(*resumed.next_step()), content(*whole.next_step()));
}

TEST(Resplit, PositionsThatDoNotBelongTogether) {
    const auto set = windows_of(sequences(), 31, 9);
    std::map<std::pair<int64_t, int64_t>, int64_t> used;
    const auto a = run(set, kModes[1], 2, {}, 2, used), b = run(set, kModes[2], 2, {}, 2, used);
    EXPECT_THAT(error_of([&] { resplit({a[0]}, 1); }), HasSubstr("number of data ranks"));
    EXPECT_THAT(error_of([&] { resplit({a[0], a[0]}, 1); }), HasSubstr("data rank"));
    EXPECT_THAT(error_of([&] { resplit({a[0], b[1]}, 1); }), HasSubstr("do not belong together"));
    EXPECT_EQ(resplit(a, 2).size(), 2u);
}

}  // namespace
}  // namespace moebius::data::testing
