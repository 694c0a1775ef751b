// The Hopper kernels' walk over tiles, and how a product is cut: the code that runs on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "moebius/ops/case.h"
#include "moebius/ops/grouped_gemm/sm90_config.h"
#include "moebius/ops/grouped_gemm/sm90_tiles.h"

namespace moebius::ops::sm90 {
namespace {

std::vector<std::vector<int64_t>> splits() {
    std::vector<std::vector<int64_t>> all = {{},      {0}, {0, 0, 0}, {4096}, {129, 0, 128, 127, 1, 0, 1000},
                                             {0, 513}};
    for (const NamedSplits& named : edge_splits()) all.push_back(named.sizes);
    all.emplace_back(128, 512);
    return all;
}

std::vector<int> row_ends(const std::vector<int64_t>& sizes) {
    std::vector<int> ends;
    for (const int64_t size : sizes)
        ends.push_back((ends.empty() ? 0 : ends.back()) + static_cast<int>(size));
    return ends;
}

int units_of(const std::vector<int>& ends, const TilePlan& plan) {
    int units = 0;
    for (size_t e = 0; e < ends.size(); ++e) units += plan.units(e > 0 ? ends[e - 1] : 0, ends[e]);
    return units;
}

// (expert, row unit, column unit, half) → visits, by all blocks.
using Visits = std::map<std::tuple<int, int, int, int>, int>;
Visits walk_all(const std::vector<int>& ends, const TilePlan& plan, int blocks) {
    Visits visits;
    for (int block = 0; block < blocks; ++block) {
        TileWalk walk(ends.data(), plan, block, blocks, units_of(ends, plan));
        for (TileUnit unit; walk.next(unit);) {
            for (int half = 0; half < 2; ++half) {
                if (unit.has(half)) ++visits[{unit.expert, unit.row_unit, unit.column_unit, half}];
            }
            EXPECT_EQ(unit.row_begin, unit.expert == 0 ? 0 : ends[static_cast<size_t>(unit.expert) - 1]);
            EXPECT_EQ(unit.row_end, ends[static_cast<size_t>(unit.expert)]);
        }
        TileUnit unit;
        EXPECT_FALSE(walk.next(unit));
    }
    return visits;
}

void expect_each_once(const std::vector<int64_t>& sizes, const TilePlan& plan, int blocks) {
    const auto visits = walk_all(row_ends(sizes), plan, blocks);
    size_t expected = 0;
    for (size_t e = 0; e < sizes.size(); ++e) {
        const int64_t rows =
            plan.unit_rows > 0 ? (sizes[e] + plan.unit_rows - 1) / plan.unit_rows : plan.row_units;
        expected += static_cast<size_t>(rows * plan.column_units);
        for (int row = 0; row < rows; ++row) {
            for (int column = 0; column < plan.column_units; ++column) {
                for (int half = 0; half < 2; ++half) {
                    const auto found = visits.find({static_cast<int>(e), row, column, half});
                    ASSERT_NE(found, visits.end()) << "expert " << e << ", unit " << row << ", " << column;
                    EXPECT_EQ(found->second, 1);
                }
            }
        }
    }
    EXPECT_EQ(visits.size(), 2 * expected);
}

TEST(GroupedTiles, EveryUnitOnce) {
    for (const auto& sizes : splits()) {
        for (const int unit_rows : {0, 128, 256}) {
            for (const auto& [columns, band] : {std::pair{1, 1}, {7, 3}, {16, 8}, {112, 10}, {5, 5}}) {
                TilePlan plan;
                plan.experts = static_cast<int>(sizes.size());
                plan.unit_rows = unit_rows;
                plan.row_units = 3;
                plan.column_units = columns;
                plan.band = band;
                for (const int blocks : {1, 66, 132}) expect_each_once(sizes, plan, blocks);
            }
        }
    }
}

// A segment's units are a band's, and a block never comes to an earlier segment: who waits for one waits for
// tiles that nobody puts off.
TEST(GroupedTiles, BandsOfRowsGoSegmentBySegment) {
    for (const auto& sizes : splits()) {
        const std::vector<int> ends = row_ends(sizes);
        for (const int unit_rows : {0, 128}) {
            for (const auto& [columns, band] : {std::pair{1, 1}, {7, 3}, {16, 2}, {5, 16}}) {
                TilePlan plan;
                plan.experts = static_cast<int>(sizes.size());
                plan.unit_rows = unit_rows;
                plan.row_units = 7;
                plan.column_units = columns;
                plan.band = band;
                const int units = units_of(ends, plan);
                for (const int blocks : {1, 66, 132}) {
                    std::map<std::tuple<int, int, int>, int> halves;
                    std::map<int, int> of_segment;
                    std::map<int, std::tuple<int, int, int>>
                        places;  // segment → expert, turn, first row unit
                    for (int block = 0; block < blocks; ++block) {
                        RowBandWalk walk(ends.data(), plan, block, blocks, units);
                        int segment = 0;
                        for (BandUnit unit; walk.next(unit);) {
                            EXPECT_GE(unit.segment, segment);
                            segment = unit.segment;
                            const int count = unit.half < 0 ? 2 : 1;
                            halves[{unit.expert, unit.row_unit, unit.column_unit}] += count;
                            of_segment[segment] += count;
                            EXPECT_GE(unit.row_unit, unit.first_row_unit);
                            EXPECT_LT(unit.row_unit, unit.first_row_unit + band);
                            const std::tuple place{unit.expert, unit.turn, unit.first_row_unit};
                            EXPECT_EQ(places.try_emplace(segment, place).first->second, place);
                        }
                    }
                    EXPECT_EQ(halves.size(), static_cast<size_t>(units));
                    for (const auto& [unit, count] : halves) EXPECT_EQ(count, 2);
                    // Who widens counts a segment's tiles from the expert's rows.
                    int segment = 0, turn = 0;
                    for (int e = 0; e < plan.experts; ++e) {
                        const auto index = static_cast<size_t>(e);
                        const int rows = plan.row_units_of(e > 0 ? ends[index - 1] : 0, ends[index]);
                        const RowBands bands(rows, band);
                        for (int i = 0; i < bands.count; ++i, ++segment) {
                            EXPECT_EQ(of_segment[segment], 2 * bands.width_of(i, rows) * columns);
                            EXPECT_EQ(places[segment], std::tuple(e, turn, i * bands.width));
                        }
                        turn += rows > 0;
                    }
                    EXPECT_EQ(of_segment.size(), static_cast<size_t>(segment));
                }
            }
        }
    }
}

// What runs at a time shares operands: a band's row units before the next band.
TEST(GroupedTiles, RowsRunThroughABandTogether) {
    const std::vector<int> ends = {4 * 128};
    TilePlan plan;
    plan.experts = 1;
    plan.unit_rows = 128;
    plan.column_units = 5;
    plan.band = 2;
    TileWalk walk(ends.data(), plan, 0, 1);
    std::vector<std::pair<int, int>> order;
    for (TileUnit unit; walk.next(unit);) order.emplace_back(unit.row_unit, unit.column_unit);
    ASSERT_EQ(order.size(), 20u);
    EXPECT_EQ(order[0], std::pair(0, 0));
    EXPECT_EQ(order[1], std::pair(0, 1));
    EXPECT_EQ(order[2], std::pair(1, 0));
    EXPECT_EQ(order[8], std::pair(0, 2));
    EXPECT_EQ(order[16], std::pair(0, 4));
    EXPECT_EQ(order[19], std::pair(3, 4));
}

// The longest block's work, in halves of units.
TEST(GroupedTiles, TwoBlocksShareTheLastUnitsWhereThereAreEnough) {
    TilePlan plan;
    plan.experts = 1;
    plan.unit_rows = 128;
    plan.column_units = plan.band = 1;
    const auto longest = [&](int units, int blocks) {
        const std::vector<int> ends = {units * 128};
        int most = 0;
        for (int block = 0; block < blocks; ++block) {
            int halves = 0;
            TileWalk walk(ends.data(), plan, block, blocks, units);
            for (TileUnit unit; walk.next(unit);) halves += unit.half < 0 ? 2 : 1;
            most = std::max(most, halves);
        }
        return most;
    };
    EXPECT_EQ(longest(264, 132), 4);
    EXPECT_EQ(longest(268, 132), 5);
    EXPECT_EQ(longest(330, 132), 5);
    EXPECT_EQ(longest(331, 132), 6);
    EXPECT_EQ(longest(66, 132), 1);
    EXPECT_EQ(longest(67, 132), 2);
}

TEST(GroupedTiles, BandsKeepTheirOperandInHalfOfL2) {
    EXPECT_EQ(choose_band(112, 256 * 4096 * 2), 10);  // 12 bands of at most 20 MiB
    EXPECT_EQ(choose_band(6, 256 * 2048 * 2), 6);
    EXPECT_EQ(choose_band(1, 0), 1);
    EXPECT_EQ(choose_band(2, 1 << 30), 1);
}

TEST(GroupedTiles, ReasonsCarryValues) {
    alignas(16) static char memory[1024];
    const View rows(memory, DType::BF16, {4, 24}), weights(memory, DType::BF16, {2, 16, 24}),
        out(memory, DType::BF16, {4, 16});
    const View sizes(memory, DType::I64, {2});
    GroupedGemmArgs args{
        .kind = GemmKind::Forward, .a = rows, .b = weights, .out = out, .split_sizes = sizes};
    EXPECT_EQ(why_not(args, {}), "");
    args.a.stride[0] = 28;
    EXPECT_EQ(why_not(args, {}), "a's axis 0 has a stride of 56 bytes, not a multiple of 16");
    args.a = View(memory + 2, DType::BF16, {4, 24});
    EXPECT_EQ(why_not(args, {}), "a does not begin at a multiple of 16 bytes");
    args.a = View(memory, DType::BF16, {4, 12});
    EXPECT_EQ(why_not(args, {}), "a has 12 columns, not a multiple of 8");
    args.a = View(memory, DType::F32, {4, 24});
    EXPECT_EQ(why_not(args, {}), "takes bf16, not f32 and bf16");
}

}  // namespace
}  // namespace moebius::ops::sm90
