// The permutation: a stable counting sort of copies by expert.
#include <algorithm>
#include <cstring>

#include "moebius/ops/permute/cpu.h"

namespace moebius::ops::cpu {
namespace {

// Copies a piece works on: from the number of copies alone. At most kMostPieces histograms.
constexpr int64_t kLeastCopies = 2048, kMostPieces = 256;

}  // namespace

// Each piece counts its copies of every expert; a prefix sum over (expert, piece) says where a piece's first
// copy of an expert goes; then each piece places its copies, in order.
void permutation(const PermutationArgs& args, const Exec& exec) {
    const int64_t copies = args.topk_indices.numel(), experts = args.split_sizes.numel();
    const auto* expert_of = args.topk_indices.as<int32_t>();
    auto* row_of = args.row_of.as<int32_t>();
    auto* source = args.source.as<int32_t>();
    auto* split_sizes = args.split_sizes.as<int32_t>();
    const int64_t size = std::max(kLeastCopies, ceil_div(copies, kMostPieces));
    const int64_t pieces = ceil_div(copies, size);
    const auto bytes = static_cast<size_t>(pieces * experts) * sizeof(int32_t);
    const Scratch scratch("permutation counts", bytes, exec);
    auto* next = scratch.as<int32_t>();  // (pieces, experts): counts, then the next row
    std::memset(next, 0, bytes);

    exec.parallel(pieces, [&](int64_t piece, int) {
        int32_t* count = next + piece * experts;
        const int64_t end = std::min(copies, (piece + 1) * size);
        for (int64_t copy = piece * size; copy < end; ++copy) {
            const int32_t e = expert_of[copy];
            MOEBIUS_CHECK(e >= 0 && e < experts, "copy ", copy, " goes to expert ", e, " of ", experts);
            ++count[e];
        }
    });
    int32_t row = 0;
    for (int64_t e = 0; e < experts; ++e) {
        const int32_t first = row;
        for (int64_t piece = 0; piece < pieces; ++piece) {
            int32_t& slot = next[piece * experts + e];
            const int32_t count = slot;
            slot = row;
            row += count;
        }
        split_sizes[e] = row - first;
    }
    exec.parallel(pieces, [&](int64_t piece, int) {
        int32_t* place = next + piece * experts;
        const int64_t end = std::min(copies, (piece + 1) * size);
        for (int64_t copy = piece * size; copy < end; ++copy) {
            const int32_t to = place[expert_of[copy]]++;
            row_of[copy] = to;
            source[to] = static_cast<int32_t>(copy);
        }
    });
}

}  // namespace moebius::ops::cpu
