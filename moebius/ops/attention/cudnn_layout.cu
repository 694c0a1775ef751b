#include <cuda_runtime.h>

#include "moebius/ops/attention/cudnn_layout.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cudnn {
namespace {

constexpr int kThreads = 256;

struct Borders {
    const int32_t* cu_seqlens;  // (count + 1)
    int64_t count, tokens, max_seqlen;
};

__device__ int64_t clamped(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

__device__ int64_t border(const Borders& b, int64_t index) {
    return clamped(b.cu_seqlens[index < b.count ? index : b.count], 0, b.tokens);
}

// A thread an entry of a piece's offsets: sequences + 1 of them, the last one an end.
__global__ void attention_layout_any(Borders borders, PackedLayout layout, int64_t length_pitch,
                                     int64_t offset_pitch) {
    const int64_t index = blockIdx.x * int64_t{kThreads} + threadIdx.x;
    const int64_t entries = layout.sequences + 1;
    const int64_t piece = index / entries, entry = index % entries;
    if (piece >= layout.pieces) return;
    const int64_t sequence = piece * layout.sequences + entry;
    const int64_t begin = border(borders, sequence), end = border(borders, sequence + 1);
    if (entry < layout.sequences) {
        layout.lengths[piece * length_pitch + entry] =
            static_cast<int32_t>(clamped(end - begin, 0, borders.max_seqlen));
    }
    for (int64_t tensor = 0; tensor < layout.tensors; ++tensor)
        layout.offsets[(tensor * layout.pieces + piece) * offset_pitch + entry] =
            begin * layout.token_stride[tensor];
}

struct StatsCopy {
    Borders borders;
    float* lse;  // (heads, T)
    int64_t lse_stride, heads;
    float* packed;
    int64_t rows, block_heads, pitch;
};

// (heads, T) and blocks of (rows, block_heads): a thread an element, tokens side by side on the side of lse.
template <bool kPack>
__global__ void attention_stats_any(StatsCopy copy) {
    const int64_t token = blockIdx.x * int64_t{kThreads} + threadIdx.x;
    const bool used = token < border(copy.borders, copy.borders.count);
    if (token >= copy.rows || (!kPack && !used)) return;
    for (int64_t head = blockIdx.y; head < copy.heads; head += gridDim.y) {
        float& packed = copy.packed[head / copy.block_heads * copy.pitch + token * copy.block_heads +
                                    head % copy.block_heads];
        if (kPack) {
            packed = used ? copy.lse[head * copy.lse_stride + token] : 0.0f;
        } else {
            copy.lse[head * copy.lse_stride + token] = packed;
        }
    }
}

struct HeadsCopy {
    Borders borders;
    const uint4* from;  // (T, heads · vectors)
    uint4* to;
    int64_t heads, vectors;             // of 16 bytes, of a head
    int64_t token_stride, head_stride;  // of `to`, in vectors
};

__global__ void attention_heads_any(HeadsCopy copy) {
    const int64_t index = blockIdx.x * int64_t{kThreads} + threadIdx.x;
    const int64_t row = copy.heads * copy.vectors, token = index / row, rest = index % row;
    if (token >= border(copy.borders, copy.borders.count)) return;
    copy.to[token * copy.token_stride + rest / copy.vectors * copy.head_stride + rest % copy.vectors] =
        copy.from[index];
}

Borders borders_of(const AttentionShape& shape, int64_t tokens) {
    return {shape.cu_seqlens.as<int32_t>(), shape.cu_seqlens.size(0) - 1, tokens, shape.max_seqlen};
}

template <bool kPack>
void copy_stats(const PackedStats& stats, const View& lse, const AttentionShape& shape, const Exec& exec) {
    const int64_t heads = lse.size(0), tokens = lse.size(1);
    const StatsCopy copy{borders_of(shape, tokens),
                         lse.as<float>(),
                         lse.stride[0],
                         heads,
                         stats.data,
                         stats.rows,
                         stats.heads,
                         stats.pitch};
    dim3 grid = grid_for(kPack ? stats.rows : tokens, kThreads);
    grid.y = static_cast<unsigned>(heads < 65535 ? heads : 65535);
    launch(kPack ? "attention.pack_stats" : "attention.unpack_stats", attention_stats_any<kPack>,
           {.grid = grid, .block = dim3(kThreads)}, exec, copy);
}

}  // namespace

void write_layout(const AttentionShape& shape, int64_t tokens, const PackedLayout& layout, const Exec& exec) {
    launch("attention.layout", attention_layout_any,
           {.grid = grid_for(layout.pieces * (layout.sequences + 1), kThreads), .block = dim3(kThreads)},
           exec, borders_of(shape, tokens), layout, layout.length_pitch(), layout.offset_pitch());
}

void unpack_stats(const PackedStats& stats, const View& lse, const AttentionShape& shape, const Exec& exec) {
    copy_stats<false>(stats, lse, shape, exec);
}

void pack_stats(const View& lse, const PackedStats& stats, const AttentionShape& shape, const Exec& exec) {
    copy_stats<true>(stats, lse, shape, exec);
}

void copy_heads(const void* from, const View& to, const AttentionShape& shape, const Exec& exec) {
    const int64_t vector = static_cast<int64_t>(sizeof(uint4)) / bytes_of(to.dtype, 1);
    const HeadsCopy copy{.borders = borders_of(shape, to.size(0)),
                         .from = static_cast<const uint4*>(from),
                         .to = static_cast<uint4*>(to.data),
                         .heads = to.size(1),
                         .vectors = to.size(2) / vector,
                         .token_stride = to.stride[0] / vector,
                         .head_stride = to.stride[1] / vector};
    launch("attention.copy_heads", attention_heads_any,
           {.grid = grid_for(to.size(0) * copy.heads * copy.vectors, kThreads), .block = dim3(kThreads)},
           exec, copy);
}

}  // namespace moebius::ops::cudnn
