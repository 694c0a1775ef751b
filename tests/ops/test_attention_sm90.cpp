// What attention on Hopper takes, backward's memory, and how forward cuts its work: rules on shapes, so they
// are tested without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "moebius/ops/attention/sm90.h"
#include "moebius/ops/attention/sm90_units.h"

namespace moebius::ops::sm90 {
namespace {

struct Shapes {
    int64_t sequences = 2, tokens = 512, heads = 8, kv_heads = 2, head_dim = 64, padding = 0;
    DType dtype = DType::BF16;
    bool rest = false;
    float scale = 1;
};

AttentionBackwardArgs args_of(const Shapes& s) {
    alignas(16) static char memory[16];
    const auto view = [&](int64_t heads) {
        View x(memory, s.dtype, {s.tokens, heads, s.head_dim});
        x.stride[0] += s.padding;
        return x;
    };
    const View q = view(s.heads), k = view(s.kv_heads);
    return {.shape = {View(memory, DType::I32, {s.sequences + 1}), s.tokens, 0, 1},
            .q = q,
            .k = k,
            .v = k,
            .out = q,
            .lse = View(memory, DType::F32, {s.heads, s.tokens}),
            .dout = q,
            .dq = q,
            .dk = k,
            .dv = k,
            .out_rest = s.rest ? q : View()};
}

std::string reason(const Shapes& s) {
    return refused(args_of(s));
}

AttentionArgs forward_args_of(const Shapes& s) {
    const AttentionBackwardArgs a = args_of(s);
    AttentionArgs f{
        .shape = a.shape, .q = a.q, .k = a.k, .v = a.v, .out = a.out, .lse = a.lse, .out_rest = a.out_rest};
    f.shape.scale = s.scale;
    return f;
}

std::string forward_reason(const Shapes& s) {
    return refused(forward_args_of(s));
}

TEST(AttentionSm90, ReasonsCarryValues) {
    EXPECT_EQ(reason({}), "");
    EXPECT_EQ(reason({.head_dim = 128}), "");
    EXPECT_EQ(reason({.padding = 8}), "");
    EXPECT_EQ(reason({.padding = 4}), "asks for heads and tokens that begin at multiples of 16 bytes");
    EXPECT_EQ(reason({.head_dim = 96}), "takes head_dim 64 or 128, not 96");
    EXPECT_EQ(reason({.dtype = DType::F32}), "takes bf16, not f32");
    EXPECT_EQ(reason({.rest = true}), "does not read what rounding took from out");
    EXPECT_EQ(
        reason({.tokens = (int64_t{1} << 30) + 1, .heads = 1, .kv_heads = 1}),
        "takes at most 1073741824 tokens, sequences and tiles times heads, not 1073741825, 2 and 8388609");
}

TEST(AttentionSm90, ReasonsOfForwardCarryValues) {
    EXPECT_EQ(forward_reason({}), "");
    EXPECT_EQ(forward_reason({.head_dim = 128}), "");
    EXPECT_EQ(forward_reason({.padding = 4}),
              "asks for heads and tokens that begin at multiples of 16 bytes");
    EXPECT_EQ(forward_reason({.head_dim = 96}), "takes head_dim 64 or 128, not 96");
    EXPECT_EQ(forward_reason({.dtype = DType::F32}), "takes bf16, not f32");
    EXPECT_EQ(forward_reason({.rest = true}), "has no output for what rounding takes from out");
    EXPECT_EQ(forward_reason({.scale = -0.5f}), "takes a scale above 0, not -0.5");
    EXPECT_EQ(
        forward_reason({.tokens = (int64_t{1} << 30) + 1, .heads = 1, .kv_heads = 1}),
        "takes at most 1073741824 tokens, sequences and tiles times heads, not 1073741825, 2 and 5592407");
}

// However the tokens are cut into sequences, forward's items suffice; its grid is no larger than they are.
TEST(AttentionSm90, ItemsAreEnoughForAnyCut) {
    for (const int64_t head_dim : {64, 128}) {
        for (const int64_t tokens : {1, 63, 64, 65, 300}) {
            for (const int64_t sequences : {1, 2, 5, 400}) {
                const int64_t items =
                    forward_sizes(
                        forward_args_of({.sequences = sequences, .tokens = tokens, .head_dim = head_dim}))
                        .items;
                const auto items_of = [&](int64_t length) {
                    const int64_t groups = forward_groups(head_dim);
                    return 2 * ((UnitPlan{static_cast<int>(length), 0, 4}.units() + groups - 1) / groups);
                };
                // Most items come of sequences of one token and one with the rest.
                const int64_t ones = std::min(sequences, tokens) - 1;
                EXPECT_GE(items, ones * items_of(1) + items_of(tokens - ones)) << tokens << ' ' << sequences;
                EXPECT_GE(items, items_of(tokens)) << tokens;
            }
        }
    }
}

// Units cover every query and head once, and their tiles every key that a query sees, with no tile too many.
TEST(AttentionSm90, UnitsCoverWhatQueriesSee) {
    for (const int length : {1, 64, 65, 128, 129, 500}) {
        for (const int window : {0, 1, 64, 70, 128, 200}) {
            const UnitPlan plan{length, window, 3};
            std::vector<int> seen(static_cast<size_t>(3 * length));
            for (int unit = 0; unit < plan.units(); ++unit) {
                const int first = plan.first_query(unit),
                          last = std::min(first + UnitPlan::kQueries, length) - 1;
                ASSERT_GE(first, 0);
                ASSERT_LT(first, length);
                for (int query = first; query <= last; ++query)
                    ++seen[static_cast<size_t>(plan.head(unit) * length + query)];
                const int first_key = window > 0 ? std::max(0, first - window + 1) : 0;
                EXPECT_EQ(plan.keys(unit).begin, first_key / UnitPlan::kKeys) << length << ' ' << window;
                EXPECT_EQ(plan.keys(unit).end, last / UnitPlan::kKeys + 1) << length << ' ' << window;
            }
            EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }))
                << length;
        }
    }
}

// The tiles of a block are those of all its units, of which the last block of a sequence may have fewer.
TEST(AttentionSm90, TilesOfABlockAreThoseOfItsUnits) {
    for (const int groups : {2, 3}) {
        for (const int length : {1, 65, 300, 1000}) {
            for (const int window : {0, 70, 300}) {
                const UnitPlan plan{length, window, 1};
                for (int first = 0; first < plan.units(); first += groups) {
                    const KeyRange all = plan.keys_of_all(first, groups);
                    int begin = all.end, end = 0;
                    for (int unit = first; unit < std::min(first + groups, plan.units()); ++unit) {
                        begin = std::min(begin, plan.keys(unit).begin);
                        end = std::max(end, plan.keys(unit).end);
                    }
                    EXPECT_EQ(all.begin, begin) << length << ' ' << window << ' ' << first;
                    EXPECT_EQ(all.end, end) << length << ' ' << window << ' ' << first;
                }
            }
        }
    }
}

// However the tokens are cut into sequences, empty ones among them.
TEST(AttentionSm90, TilesAreEnoughForAnyCut) {
    for (const int64_t tokens : {1, 127, 128, 129, 300}) {
        for (const int64_t sequences : {1, 2, 5, 400}) {
            const BackwardSizes sizes = backward_sizes(args_of({.sequences = sequences, .tokens = tokens}));
            // Most tiles come of sequences of one token and one with the rest.
            const int64_t ones = std::min(sequences, tokens) - 1, rest = tokens - ones;
            EXPECT_GE(sizes.key_tiles, ones + (rest + kTileKeys - 1) / kTileKeys)
                << tokens << ' ' << sequences;
            EXPECT_LE(sizes.key_tiles, tokens / kTileKeys + std::min(sequences, tokens)) << tokens;
            EXPECT_EQ(sizes.items, sizes.key_tiles * 8);
        }
    }
}

TEST(AttentionSm90, MemoryOfTwoRowsOf8192) {
    const Shapes rows{.tokens = 16384, .heads = 32, .kv_heads = 8};
    const BackwardSizes sizes = backward_sizes(args_of(rows));
    EXPECT_EQ(sizes.key_tiles, 129);  // one more than whole tiles: where both sequences end inside one
    EXPECT_EQ(sizes.query_tiles, 129);
    EXPECT_EQ(sizes.sums * 4, int64_t{192} << 20);
    Shapes wide = rows;
    wide.head_dim = 128;
    EXPECT_EQ(backward_sizes(args_of(wide)).sums * 4, int64_t{384} << 20);
    EXPECT_EQ(backward_sizes(args_of(wide)).query_tiles, 2 * 129);
}

}  // namespace
}  // namespace moebius::ops::sm90
