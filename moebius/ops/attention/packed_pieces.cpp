#include "moebius/ops/attention/packed_pieces.h"

#include <fmt/format.h>

#include <algorithm>

namespace moebius::ops::cudnn {
namespace {

constexpr int64_t kVectorBytes = 16;  // what the library's kernels load at a time
// Blocks are launched for every tile that max_seqlen allows, in every sequence: so many times those that the
// tokens fill are accepted, and a few thousand in any case.
constexpr int64_t kMostIdleTiles = 16, kFewTiles = 4096;

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

AttentionSizes sizes_of(const AttentionShape& shape, const View& q, const View& k) {
    return {shape.cu_seqlens.size(0) - 1, shape.max_seqlen, q.size(1), k.size(1)};
}

bool vectors(const View& view) {
    const int64_t element = bytes_of(view.dtype, 1);
    return reinterpret_cast<uintptr_t>(view.data) % kVectorBytes == 0 &&
           view.stride[0] * element % kVectorBytes == 0 && view.stride[1] * element % kVectorBytes == 0;
}

bool alike(const View& a, const View& b) {
    return a.stride[0] == b.stride[0] && a.stride[1] == b.stride[1];
}

std::string refused_both(const AttentionShape& shape, const View& q, const View& out_rest,
                         std::initializer_list<const View*> views) {
    if (q.dtype != DType::BF16) return fmt::format("takes bf16, not {}", name(q.dtype));
    if (q.size(2) % 16 != 0 || q.size(2) > 128)
        return fmt::format("takes head_dim 16, 32, … 128, not {}", q.size(2));
    if (out_rest.data) return "has no output for what rounding takes from out";
    for (const View* view : views) {
        if (!vectors(*view)) return "asks for heads and tokens that begin at multiples of 16 bytes";
    }
    const int64_t sequences = shape.cu_seqlens.size(0) - 1;
    const int64_t tiles = sequences * ceil_div(shape.max_seqlen, kLengthStep);
    const int64_t filled = ceil_div(q.size(0), kLengthStep);
    if (tiles > std::max(kFewTiles, kMostIdleTiles * filled)) {
        return fmt::format(
            "would launch blocks for {} sequences of {} tokens where there are {} tokens in all", sequences,
            shape.max_seqlen, q.size(0));
    }
    return {};
}

}  // namespace

Pieces forward_pieces(const AttentionSizes& s) {
    return {
        .kv_heads = s.kv_heads, .sequences = s.sequences, .head_pieces = 1, .sequence_pieces = 1, .bytes = 0};
}

Pieces backward_pieces(const AttentionSizes& s, bool ordered) {
    if (!ordered) return forward_pieces(s);
    const int64_t length = ceil_div(std::max<int64_t>(s.max_seqlen, 1), kLengthStep) * kLengthStep;
    const int64_t one = s.heads / s.kv_heads * length * length * bytes_of(DType::BF16, 1);
    const int64_t fit = std::max<int64_t>(kPieceBytes / one, 1);  // kv heads × sequences
    Pieces p;
    p.kv_heads = 1;
    for (int64_t heads = 1; heads <= s.kv_heads; ++heads) {
        if (s.kv_heads % heads == 0 && heads * s.sequences <= fit) p.kv_heads = heads;
    }
    p.sequences = std::clamp<int64_t>(fit / p.kv_heads, 1, std::max<int64_t>(s.sequences, 1));
    while (s.sequences % p.sequences != 0) --p.sequences;
    p.head_pieces = s.kv_heads / p.kv_heads;
    p.sequence_pieces = ceil_div(s.sequences, p.sequences);
    p.bytes = one * p.kv_heads * p.sequences;
    return p;
}

std::string refused(const AttentionArgs& a) {
    return refused_both(a.shape, a.q, a.out_rest, {&a.q, &a.k, &a.v, &a.out});
}

std::string refused(const AttentionBackwardArgs& a, bool ordered) {
    std::string reason =
        refused_both(a.shape, a.q, a.out_rest, {&a.q, &a.k, &a.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv});
    if (!reason.empty()) return reason;
    if (!alike(a.q, a.dq) || !alike(a.k, a.v) || !alike(a.k, a.dk) || !alike(a.k, a.dv) ||
        !alike(a.out, a.dout)) {
        return "asks for dq that lies as q does, dout as out, and v, dk and dv as k";
    }
    const Pieces pieces = backward_pieces(sizes_of(a.shape, a.q, a.k), ordered);
    if (pieces.bytes > kMostPieceBytes) {
        return fmt::format("needs {} bytes for the gradients of scores of sequences of {} tokens",
                           pieces.bytes, a.shape.max_seqlen);
    }
    if (pieces.count() > kMostPieces) {
        return fmt::format("would take {} pieces for {} sequences of up to {} tokens", pieces.count(),
                           a.shape.cu_seqlens.size(0) - 1, a.shape.max_seqlen);
    }
    return {};
}

std::string refused_by_version(const AttentionShape& shape, size_t version) {
    if (shape.none_empty || version >= kVersionWithEmptySequences) return {};
    return fmt::format("asks for sequences of at least one token before cuDNN {}.{}, and this is {}.{}",
                       kVersionWithEmptySequences / 10000, kVersionWithEmptySequences / 100 % 100,
                       version / 10000, version / 100 % 100);
}

}  // namespace moebius::ops::cudnn
