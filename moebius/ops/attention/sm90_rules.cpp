#include <fmt/format.h>

#include <algorithm>

#include "moebius/ops/attention/sm90.h"
#include "moebius/ops/attention/sm90_units.h"

namespace moebius::ops::sm90 {
namespace {

constexpr int64_t kAlignmentBytes = 16;  // of TMA
// Tokens, and items of work, are counted in 32 bits; sums of two of them stay there.
constexpr int64_t kMost = int64_t{1} << 30;

bool aligned(const View& view) {
    const int64_t element = bytes_of(view.dtype, 1);
    return reinterpret_cast<uintptr_t>(view.data) % kAlignmentBytes == 0 &&
           view.stride[0] * element % kAlignmentBytes == 0 && view.stride[1] * element % kAlignmentBytes == 0;
}

std::string refused_both(const View& q, std::initializer_list<const View*> views) {
    if (q.dtype != DType::BF16) return fmt::format("takes bf16, not {}", name(q.dtype));
    if (q.size(2) != 64 && q.size(2) != 128)
        return fmt::format("takes head_dim 64 or 128, not {}", q.size(2));
    for (const View* view : views) {
        if (!aligned(*view)) return "asks for heads and tokens that begin at multiples of 16 bytes";
    }
    return {};
}

std::string too_many(const View& q, const AttentionShape& shape, int64_t items) {
    if (q.size(0) <= kMost && items <= kMost && shape.cu_seqlens.size(0) <= kMost) return {};
    return fmt::format("takes at most {} tokens, sequences and tiles times heads, not {}, {} and {}", kMost,
                       q.size(0), shape.cu_seqlens.size(0) - 1, items);
}

}  // namespace

BackwardSizes backward_sizes(const AttentionBackwardArgs& a) {
    const int64_t tokens = a.q.size(0), heads = a.q.size(1), kv_heads = a.k.size(1), d = a.q.size(2);
    const int64_t sequences = std::min(a.shape.cu_seqlens.size(0) - 1, tokens);
    BackwardSizes sizes;
    sizes.key_tiles = (tokens + (kTileKeys - 1) * sequences) / kTileKeys;
    sizes.query_tiles = sizes.key_tiles * (d / 64);
    sizes.flags = 2 * (sizes.query_tiles * heads + sizes.key_tiles * kv_heads) + 1;
    sizes.sums = tokens * (heads + 2 * kv_heads) * d;
    sizes.items = sizes.key_tiles * heads;
    return sizes;
}

ForwardSizes forward_sizes(const AttentionArgs& a) {
    const int64_t tokens = a.q.size(0), heads = a.q.size(1), kv_heads = a.k.size(1);
    const int64_t sequences = std::min(a.shape.cu_seqlens.size(0) - 1, tokens);
    const int64_t tiles = (tokens + (UnitPlan::kQueries - 1) * sequences) / UnitPlan::kQueries;
    const int64_t groups = forward_groups(a.q.size(2));
    // A sequence's units under a kv head are filled up to whole items.
    return {kv_heads * ((tiles * (heads / kv_heads) + (groups - 1) * sequences) / groups)};
}

std::string refused(const AttentionArgs& a) {
    std::string reason = refused_both(a.q, {&a.q, &a.k, &a.v, &a.out});
    if (!reason.empty()) return reason;
    if (a.out_rest.data) return "has no output for what rounding takes from out";
    if (!(a.shape.scale > 0)) return fmt::format("takes a scale above 0, not {}", a.shape.scale);
    return too_many(a.q, a.shape, forward_sizes(a).items);
}

std::string refused(const AttentionBackwardArgs& a) {
    std::string reason = refused_both(a.q, {&a.q, &a.k, &a.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv});
    if (!reason.empty()) return reason;
    if (a.out_rest.data) return "does not read what rounding took from out";
    return too_many(a.q, a.shape, backward_sizes(a).items);
}

}  // namespace moebius::ops::sm90
