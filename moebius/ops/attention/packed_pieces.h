// How attention is cut for cuDNN: rules on shapes alone, no library and no GPU involved.
#pragma once

#include "moebius/ops/attention/attention.h"

namespace moebius::ops::cudnn {

// Its deterministic backward holds dS of every query and key, masked ones too, so the work goes in pieces
// that share one such buffer. A piece is all `kv_heads` heads (with the query heads that read them) of all
// `sequences` sequences, whose number divides that of all: not every version takes empty ones to fill up
// with.
struct Pieces {
    int64_t kv_heads = 0, sequences = 0;           // of one piece
    int64_t head_pieces = 0, sequence_pieces = 0;  // how many of them
    int64_t bytes = 0;                             // of dS in one piece
    int64_t count() const { return head_pieces * sequence_pieces; }
};

// Of dS in a piece, where that allows for one kv head of one sequence.
inline constexpr int64_t kPieceBytes = int64_t{2} << 30;
// More is not asked for: the reason against this variant names it.
inline constexpr int64_t kMostPieceBytes = int64_t{8} << 30;
inline constexpr int64_t kMostPieces = 256;

// Lengths of sequences are rounded up to it: tiles are as long, so no work is added, and fewer graphs are
// built.
inline constexpr int64_t kLengthStep = 128;

// Rows of log-sums that belong to no token: the library's tiles read past the last sequence.
inline constexpr int64_t kSpareRows = kLengthStep;

// Of the library: the first whose backward takes sequences without a token.
inline constexpr size_t kVersionWithEmptySequences = 92500;

struct AttentionSizes {
    int64_t sequences, max_seqlen, heads, kv_heads;
};
// Unordered: one piece with everything, as forward.
Pieces backward_pieces(const AttentionSizes& sizes, bool ordered = true);
Pieces forward_pieces(const AttentionSizes& sizes);

// Reasons against that follow from the arguments alone; "" for none.
std::string refused(const AttentionArgs& args);
std::string refused(const AttentionBackwardArgs& args, bool ordered = true);
// What follows from the library's version.
std::string refused_by_version(const AttentionShape& shape, size_t version);

}  // namespace moebius::ops::cudnn
