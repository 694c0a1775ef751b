#include "moebius/data/shuffle.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "tests/data/support.h"

namespace moebius::data::testing {
namespace {

std::vector<int64_t> epoch_of(Shuffle& shuffle, int64_t epoch) {
    std::vector<int64_t> order;
    for (int64_t draw = 0; draw < shuffle.windows(); ++draw) order.push_back(shuffle.window(epoch, draw));
    return order;
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
    std::sort(values.begin(), values.end());
    return values;
}

TEST(Shuffle, EveryWindowOnceInEveryEpoch) {
    for (const int64_t windows : {1, 2, 7, 100})
        for (const int64_t buffer : {1, 2, 50, 1000}) {
            Shuffle shuffle(windows, buffer, 42);
            std::vector<int64_t> all(static_cast<size_t>(windows));
            std::iota(all.begin(), all.end(), 0);
            for (int64_t epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(sorted(epoch_of(shuffle, epoch)), all);
            EXPECT_TRUE(buffer > 1 || epoch_of(shuffle, 1) == all);
        }
}

TEST(Shuffle, EpochsAndSeedsDiffer) {
    Shuffle a(1000, 100, 1), b(1000, 100, 2), again(1000, 100, 1);
    const auto first = epoch_of(a, 0);
    EXPECT_NE(first, epoch_of(a, 1));
    EXPECT_NE(first, epoch_of(b, 0));
    EXPECT_EQ(first, epoch_of(again, 0));
}

TEST(Shuffle, AnyDrawCanBeAskedFor) {
    Shuffle in_order(200, 20, 5), random(200, 20, 5);
    const auto e0 = epoch_of(in_order, 0), e3 = epoch_of(in_order, 3);
    EXPECT_EQ(random.window(3, 150), e3[150]);
    EXPECT_EQ(random.window(0, 199), e0[199]);
    EXPECT_EQ(random.window(0, 3), e0[3]);
    EXPECT_EQ(random.window(3, 0), e3[0]);
}

// A window comes no earlier than the buffer reaches it.
TEST(Shuffle, ReservoirBoundsHowFarAWindowMovesForward) {
    Shuffle shuffle(1000, 10, 3);
    const auto order = epoch_of(shuffle, 0);
    for (size_t draw = 0; draw < order.size(); ++draw)
        EXPECT_LT(order[draw], static_cast<int64_t>(draw) + 10);
}

// Files sorted by length: with a buffer for all windows, every tenth of the epoch sees the same mix of
// windows.
TEST(Shuffle, SortedFilesAreMixed) {
    constexpr int64_t kWindows = 20000;
    Shuffle shuffle(kWindows, kWindows, 11);
    const auto order = epoch_of(shuffle, 0);
    const double sigma = kWindows / std::sqrt(12.0 * kWindows / 10);
    for (int64_t part = 0; part < 10; ++part) {
        double mean = 0;
        for (int64_t i = 0; i < kWindows / 10; ++i)
            mean += static_cast<double>(order[static_cast<size_t>(part * kWindows / 10 + i)]);
        EXPECT_NEAR(mean / (kWindows / 10), kWindows / 2.0, 4 * sigma) << part;
    }
}

}  // namespace
}  // namespace moebius::data::testing
