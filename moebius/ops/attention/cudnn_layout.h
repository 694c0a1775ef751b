// What the library wants to know of packed sequences, and its layouts of what it leaves, by small kernels:
// the host never reads cu_seqlens.
#pragma once

#include "moebius/ops/attention/packed_pieces.h"

namespace moebius::ops::cudnn {

// Sequences in pieces of the same number. All on the device.
struct PackedLayout {
    static constexpr int64_t kMostTensors = 9;

    int64_t pieces = 0, sequences = 0;        // sequences of one piece
    int64_t token_stride[kMostTensors] = {};  // of each tensor, in elements
    int64_t tensors = 0;
    int32_t* lengths = nullptr;  // (pieces, length_pitch)
    int64_t* offsets = nullptr;  // (tensors, pieces, offset_pitch): where sequences begin, in elements

    // Addresses of a piece keep the 16 bytes of alignment that the library assumes.
    int64_t length_pitch() const { return (sequences + 3) / 4 * 4; }
    int64_t offset_pitch() const { return (sequences + 2) / 2 * 2; }
    int64_t length_count() const { return pieces * length_pitch(); }
    int64_t offset_count() const { return tensors * pieces * offset_pitch(); }
    int32_t* piece_lengths(int64_t piece) const { return lengths + piece * length_pitch(); }
    int64_t* piece_offsets(int64_t tensor, int64_t piece) const {
        return offsets + (tensor * pieces + piece) * offset_pitch();
    }
};

// Fills lengths and offsets. Borders out of order or past `tokens` give shorter sequences, never others'
// memory.
void write_layout(const AttentionShape& shape, int64_t tokens, const PackedLayout& layout, const Exec& exec);

// Log-sums as the library packs them: blocks of `heads` query heads, each (rows, heads), `pitch` elements
// apart. There are more rows than tokens.
struct PackedStats {
    float* data = nullptr;
    int64_t heads = 0, rows = 0, pitch = 0;
};
inline int64_t stats_pitch(int64_t rows, int64_t heads) {
    return (rows * heads + 63) / 64 * 64;
}
// lse (Hq, T); tokens past the last sequence are neither read nor written there, and packed as 0.
void unpack_stats(const PackedStats& stats, const View& lse, const AttentionShape& shape, const Exec& exec);
void pack_stats(const View& lse, const PackedStats& stats, const AttentionShape& shape, const Exec& exec);

// Dense (T, heads, d) → `to`, a view of that shape; the same of tokens past the last sequence.
void copy_heads(const void* from, const View& to, const AttentionShape& shape, const Exec& exec);

}  // namespace moebius::ops::cudnn
