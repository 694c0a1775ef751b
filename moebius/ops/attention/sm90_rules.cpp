#include <fmt/format.h>

#include <algorithm>

#include "moebius/ops/attention/sm90.h"

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

std::string refused(const AttentionBackwardArgs& a) {
    if (a.q.dtype != DType::BF16) return fmt::format("takes bf16, not {}", name(a.q.dtype));
    if (a.q.size(2) != 64 && a.q.size(2) != 128)
        return fmt::format("takes head_dim 64 or 128, not {}", a.q.size(2));
    if (a.out_rest.data) return "does not read what rounding took from out";
    for (const View* view : {&a.q, &a.k, &a.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv}) {
        if (!aligned(*view)) return "asks for heads and tokens that begin at multiples of 16 bytes";
    }
    const BackwardSizes sizes = backward_sizes(a);
    if (a.q.size(0) > kMost || sizes.items > kMost || a.shape.cu_seqlens.size(0) > kMost) {
        return fmt::format("takes at most {} tokens, sequences and tiles times heads, not {}, {} and {}",
                           kMost, a.q.size(0), a.shape.cu_seqlens.size(0) - 1, sizes.items);
    }
    return {};
}

}  // namespace moebius::ops::sm90
