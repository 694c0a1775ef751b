// How attention is cut for cuDNN: rules on shapes, so they are tested without it.
#include <gtest/gtest.h>

#include "moebius/ops/attention/packed_pieces.h"

namespace moebius::ops::cudnn {
namespace {

void expect_whole(const AttentionSizes& s) {
    const Pieces p = backward_pieces(s);
    EXPECT_EQ(p.kv_heads * p.head_pieces, s.kv_heads);
    EXPECT_EQ(p.sequences * p.sequence_pieces, s.sequences);
    const int64_t length = (s.max_seqlen + kLengthStep - 1) / kLengthStep * kLengthStep;
    EXPECT_EQ(p.bytes, p.kv_heads * p.sequences * (s.heads / s.kv_heads) * length * length * 2);
    if (p.kv_heads > 1 || p.sequences > 1) {
        EXPECT_LE(p.bytes, kPieceBytes);
    }
}

TEST(AttentionPieces, EverythingIsInOnePieceAndOnlyOne) {
    for (const int64_t sequences : {1, 2, 3, 7, 64, 1000}) {
        for (const int64_t length : {1, 127, 128, 129, 1024, 8192, 40000}) {
            for (const int64_t kv_heads : {1, 2, 6, 8, 32}) {
                for (const int64_t group : {1, 4, 7})
                    expect_whole({sequences, length, kv_heads * group, kv_heads});
            }
        }
    }
}

TEST(AttentionPieces, RowsOf8192AreCutByHeadsAlone) {
    const Pieces p = backward_pieces({.sequences = 2, .max_seqlen = 8192, .heads = 32, .kv_heads = 8});
    EXPECT_EQ(p.kv_heads, 2);
    EXPECT_EQ(p.head_pieces, 4);
    EXPECT_EQ(p.sequences, 2);
    EXPECT_EQ(p.bytes, kPieceBytes);
}

TEST(AttentionPieces, ShortSequencesAreNotCut) {
    const Pieces p = backward_pieces({.sequences = 8, .max_seqlen = 1024, .heads = 4, .kv_heads = 2});
    EXPECT_EQ(p.count(), 1);
}

struct Shapes {
    int64_t sequences = 2, length = 256, tokens = 512, head_dim = 64, padding = 0, gradient_padding = 0;
    DType dtype = DType::BF16;
};

std::string reason(const Shapes& s) {
    alignas(16) static char memory[16];
    const AttentionShape shape{View(memory, DType::I32, {s.sequences + 1}), s.length, 0, 1};
    View x(memory, s.dtype, {s.tokens, 4, s.head_dim});
    x.stride[0] += s.padding;
    View gradient = x;
    gradient.stride[0] += s.gradient_padding;
    return refused(AttentionBackwardArgs{.shape = shape,
                                         .q = x,
                                         .k = x,
                                         .v = x,
                                         .out = x,
                                         .lse = View(memory, DType::F32, {4, s.tokens}),
                                         .dout = x,
                                         .dq = gradient,
                                         .dk = gradient,
                                         .dv = gradient});
}

TEST(AttentionPieces, ReasonsCarryValues) {
    EXPECT_EQ(reason({}), "");
    EXPECT_EQ(reason({.padding = 8}), "");
    EXPECT_NE(reason({.gradient_padding = 8}).find("dq that lies as q does"), std::string::npos);
    EXPECT_EQ(reason({.dtype = DType::F32}), "takes bf16, not f32");
    EXPECT_EQ(reason({.head_dim = 40}), "takes head_dim 16, 32, … 128, not 40");
    EXPECT_EQ(reason({.head_dim = 144}), "takes head_dim 16, 32, … 128, not 144");
    EXPECT_NE(reason({.padding = 4}).find("multiples of 16 bytes"), std::string::npos);
    EXPECT_EQ(reason({.sequences = 16384, .length = 8192, .tokens = 16384}),
              "would launch blocks for 16384 sequences of 8192 tokens where there are 16384 tokens in all");
    EXPECT_NE(reason({.sequences = 1, .length = 131072, .tokens = 131072}).find("34359738368 bytes"),
              std::string::npos);
    EXPECT_NE(reason({.sequences = 300, .length = 32768, .tokens = 300 * 32768}).find("pieces"),
              std::string::npos);
}

TEST(AttentionPieces, EmptySequencesNeedAVersion) {
    AttentionShape shape;
    EXPECT_EQ(refused_by_version(shape, 91900),
              "asks for sequences of at least one token before cuDNN 9.25, and this is 9.19");
    EXPECT_EQ(refused_by_version(shape, 92500), "");
    shape.none_empty = true;
    EXPECT_EQ(refused_by_version(shape, 91900), "");
}

}  // namespace
}  // namespace moebius::ops::cudnn
