// What attention's backward on Hopper takes, and its memory: rules on shapes, so they are tested without a
// GPU.
#include <gtest/gtest.h>

#include <algorithm>

#include "moebius/ops/attention/sm90.h"

namespace moebius::ops::sm90 {
namespace {

struct Shapes {
    int64_t sequences = 2, tokens = 512, heads = 8, kv_heads = 2, head_dim = 64, padding = 0;
    DType dtype = DType::BF16;
    bool rest = false;
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
