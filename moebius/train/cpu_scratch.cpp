#include "moebius/train/cpu_scratch.h"

#include <algorithm>
#include <cmath>

namespace moebius::train {
namespace {

// In floats; as doubles, which no size overflows. A stride is at most 48 above its row, a row of register
// tiles at most 32 above its width.
constexpr double kPad = 48;
constexpr double kPacked = 16.0 * (1 << 20);  // a call's budget for packed operands: 64 MiB
constexpr double kBlockRows = 128;            // of a thread, at most
constexpr double kCutRows = 1024;             // sums over rows are cut here

struct Sizes {
    double hidden, intermediate, experts, topk, vocab, heads, kv_heads, head_dim;
    double tokens, length, rows, threads;

    Sizes(const nn::DecoderOptions& d, const data::BatchShape& shape, int thread_count) {
        const auto of = [](int64_t value) { return static_cast<double>(value); };
        hidden = of(d.layer.moe.experts.hidden);
        intermediate = of(d.layer.moe.experts.intermediate);
        experts = of(d.layer.moe.experts.experts);
        topk = of(d.layer.moe.router.topk);
        vocab = of(d.vocab);
        heads = of(d.layer.attention.heads);
        kv_heads = of(d.layer.attention.kv_heads);
        head_dim = of(d.layer.attention.head_dim);
        tokens = of(shape.capacity);
        length = of(shape.max_seqlen);
        rows = tokens * topk;
        threads = thread_count;
    }
    double qkv() const { return (heads + 2 * kv_heads) * head_dim; }
    double widest() const { return std::max({hidden, 2 * intermediate, qkv(), vocab}); }
};

// Products: what is packed or kept for all threads, then blocks of rows or tiles of sums.
double products(const Sizes& s) {
    const double expert = 3 * (s.hidden + kPad) * (s.intermediate + kPad);
    const double expert_row = 3 * (s.intermediate + kPad);
    const double dense = (s.hidden + kPad) * (std::max(s.vocab, s.qkv()) + kPad);
    // The fused backward keeps as many rows of dC and of the activation as fit, at least kCutRows of an
    // expert.
    const double all = s.experts * expert + s.rows * expert_row;
    const double wave = std::min(all, std::max(kPacked, expert + kCutRows * expert_row));
    const double packed = std::max(wave, std::min(dense, kPacked));
    // Two experts' gradients in fp32, where rows were cut and gradients are bf16.
    const double cut = wave < all ? 2 * expert : 0;
    const double block = kBlockRows * 1.1 *
                         (std::max(s.hidden, 2 * s.intermediate) +
                          std::max({s.widest(), 4 * s.intermediate, s.hidden}) + 512 + 4 * kPad);
    const double tile = (std::min(s.widest(), 256.0) + 32) * (std::min(s.widest(), 512.0) + kPad);
    const double slices = 47 * tile, slice = 256 * (304 + 544) + 2 * tile;
    return packed + cut + std::max(block * s.threads, slices + slice * s.threads);
}

double attention(const Sizes& s) {
    const double row = s.head_dim + kPad, width = 32 * std::ceil(s.head_dim / 32);
    const double queries = 96 * (8 * row + 4 * 112) + 2 * row * row;
    const double keys = (s.length + 112) * 7 * row;
    // Keys of a long sequence are cut among threads, at most eight ways, where there are few heads.
    const double ways = s.kv_heads < 16 ? std::min(8 * s.tokens, s.length * 32 / s.kv_heads) : 0;
    const double forward = s.threads * (112 * 4 * row + s.heads / s.kv_heads * 96 * (2 * row + 2) + queries);
    return std::max(forward, s.threads * (keys + queries) + s.heads * width * ways);
}

// Products of codes: operands of one expert, or of a dense layer, as fp32; the experts' activation's
// gradient; tiles and strips of rows on their way to codes.
double quantized(const Sizes& s) {
    const double rows = s.rows + kBlockRows, wide = s.hidden + 2 * s.intermediate;
    const double experts = std::max(rows * wide, rows * 2 * s.intermediate + wide * s.hidden);
    const double dense = (s.tokens + kBlockRows + s.qkv()) * (s.hidden + s.qkv());
    const double strips = s.threads * kBlockRows * (2 * s.intermediate + 2 * kBlockRows);
    const double statistics = 8 * (rows / kBlockRows + s.experts) * (wide / kBlockRows + 2);
    return products(s) + std::max(experts, dense) + rows * s.intermediate + strips + statistics;
}

double others(const Sizes& s) {
    const double rope = (s.tokens + 1) * (s.head_dim + kPad);
    const double norm = 257 * (s.hidden + kPad);
    const double embedding = 2 * (s.vocab + 2 + s.tokens);
    const double router =
        2 * (s.tokens / 256 + 2) * (s.experts + 1) + s.threads * 16 * (6 * s.experts + 3 * s.topk);
    const double permutation = 256 * s.experts;
    return std::max({rope, norm, embedding, router, permutation});
}

}  // namespace

int64_t cpu_scratch_bytes(const nn::DecoderOptions& model, const data::BatchShape& shape, int threads) {
    const Sizes s(model, shape, threads);
    constexpr double kLeast = 3.0 * (2 << 20);  // three scratches of at least a huge page each
    const bool codes = model.low_precision.recipe != nullptr;
    const double bytes = kLeast + 4 * std::max({codes ? quantized(s) : products(s), attention(s), others(s)});
    return static_cast<int64_t>(std::min(bytes, 0x1p62));
}

}  // namespace moebius::train
