// The tensor that quantization reads, cut into tiles of 128 × 128 inside the experts' rows.
#pragma once

#include <algorithm>

#include "moebius/ops/device_types.cuh"
#include "moebius/ops/quantize/quantize.h"
#include "moebius/ptx/load.h"
#include "moebius/ptx/split_sizes.h"
#include "moebius/ptx/vector.h"

namespace moebius::ops::cuda {

constexpr int kTile = 128, kTileThreads = 256;

// split_sizes, or `each` rows an expert where there are none.
struct ExpertSizes {
    ptx::SplitSizes split;
    int64_t each;
    int64_t experts, capacity;

    __device__ int64_t operator[](int64_t expert) const {
        return split.data != nullptr ? split[expert] : each;
    }
};

struct Source {
    const void* values;
    int64_t stride, values_rows;  // values_rows: what row_index may point into
    const int32_t* row_index;     // or null
    int64_t topk;
    ExpertSizes sizes;
    int64_t rows, columns;  // of all experts, of a weight's one
    bool aligned;           // eight neighbours begin on 16 bytes
    // Of a norm's output, or null: one a row of values, one a column.
    const float* rstd;
    const void* norm_weight;
    bool norm_weight_is_float;
};

inline Source source_of(const QuantizeSource& s) {
    const MatrixShape m = matrix_of(s);
    const View &v = s.values, &splits = s.split_sizes;
    const int64_t all = m.weight ? m.rows * m.experts : m.rows;
    Source source{};
    source.values = v.data;
    source.stride = v.stride[static_cast<size_t>(v.rank() - 2)];
    source.values_rows = v.size(v.rank() - 2);
    source.row_index = device_data<int32_t>(s.row_index);
    source.topk = s.topk;
    source.sizes = {{splits.data, splits.dtype == DType::I64, m.experts, m.rows}, m.rows, m.experts, all};
    source.rows = m.rows;
    source.columns = m.columns;
    source.rstd = device_data<float>(s.rstd);
    source.norm_weight = s.norm_weight ? s.norm_weight.data : nullptr;
    source.norm_weight_is_float = s.norm_weight && s.norm_weight.dtype == DType::F32;
    source.aligned = reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && source.stride % 8 == 0;
    return source;
}

// The most tiles that there can be: each expert has a short one. Or runs of `each` tiles side by side.
inline int64_t tiles_of(const Source& s, int each = 1) {
    const int64_t down = s.sizes.split.data == nullptr ? ceil_div(s.rows, kTile) * s.sizes.experts
                                                       : s.rows / kTile + s.sizes.experts;
    return down * ceil_div(s.columns, int64_t{kTile} * each);
}
// Tiles side by side that a block takes one after the other: to find the place takes as long as to read one.
inline int tiles_each(const Source& s, const Exec& exec) {
    constexpr int64_t kMost = 8, kBlocksPerSm = 12;
    return static_cast<int>(
        std::clamp<int64_t>(tiles_of(s) / (kBlocksPerSm * exec.device->sm_count()), 1, kMost));
}

struct TilePlace {
    ptx::ExpertTile own;
    int64_t row, column;  // of the tile, from the expert's first row
    int64_t row_blocks,
        mx_blocks;  // tiles of rows before this one, of all experts; Σ ⌈n/32⌉ of the experts before
};

// By whole warps: Σ ⌈n/32⌉ of the experts before.
__device__ inline int64_t mx_blocks_before(const ExpertSizes& sizes, int64_t expert) {
    int64_t blocks = 0;
    for (int64_t e = threadIdx.x % 32; e < expert; e += 32) blocks += (sizes[e] + 31) / 32;
    return __shfl_sync(~0u, ptx::inclusive_scan_warp(blocks), 31);
}

// By whole warps: the first tile of a run of `each`. False: there are fewer.
template <bool kMx = true>
__device__ inline bool find_tile(const Source& s, int64_t index, TilePlace& place, int each = 1) {
    const int64_t width = int64_t{kTile} * each, across = (s.columns + width - 1) / width;
    if (across == 0) return false;
    place.row_blocks = index / across;
    place.column = index % across * width;
    place.own = ptx::find_expert_tile(s.sizes, kTile, place.row_blocks);
    if (place.own.expert < 0) return false;
    place.row = place.own.tile * kTile;
    place.mx_blocks = 0;
    if constexpr (kMx) place.mx_blocks = mx_blocks_before(s.sizes, place.own.expert);
    return true;
}

__device__ inline int clamp_to_eight(int64_t count) {
    return count <= 0 ? 0 : count < 8 ? static_cast<int>(count) : 8;
}

// Eight neighbours of a row as they lie in memory.
template <class T>
struct Eight {
    static constexpr int kParts = static_cast<int>(sizeof(T)) / 2;
    uint4 parts[kParts];

    // The first `count`, zeros after. `vectors`: `count` is 0 or 8, and they begin on 16 bytes; such loads
    // stay as far ahead of their use as they are written.
    __device__ void load(const T* from, int count, bool vectors) {
        if (vectors) {
#pragma unroll
            for (int i = 0; i < kParts; ++i)
                parts[i] = ptx::load_ahead_if(count > 0, from + i * (8 / kParts));
            return;
        }
        uint32_t words[4 * kParts] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (i >= count) continue;
            if constexpr (kParts == 2) {
                words[i] = __float_as_uint(from[i]);
            } else {
                words[i / 2] |= __float_as_uint(ptx::load_float(from + i)) >> 16 << i % 2 * 16;
            }
        }
#pragma unroll
        for (int i = 0; i < kParts; ++i)
            parts[i] = {words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
    }
    __device__ void get(float (&v)[8]) const {
        const uint32_t* words = &parts[0].x;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if constexpr (kParts == 2) {
                v[i] = __uint_as_float(words[i]);
            } else {
                v[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u);
            }
        }
    }
};

// Where row `row` of the rows that are quantized lies among the values; an index out of range reads row 0.
__device__ inline int64_t source_row(const Source& s, int64_t row) {
    if (s.row_index == nullptr) return row;
    const int named = s.row_index[row], from = named / static_cast<int>(s.topk);
    return named >= 0 && from < s.values_rows ? from : 0;
}

}  // namespace moebius::ops::cuda
