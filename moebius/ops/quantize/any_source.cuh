// The tensor that quantization reads, cut into tiles of 128 × 128 inside the experts' rows.
#pragma once

#include "moebius/ops/device_types.cuh"
#include "moebius/ops/quantize/quantize.h"
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
    source.aligned = reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && source.stride % 8 == 0;
    return source;
}

// The most tiles that there can be: each expert has a short one.
inline int64_t tiles_of(const Source& s) {
    const int64_t down = s.sizes.split.data == nullptr ? ceil_div(s.rows, kTile) * s.sizes.experts
                                                       : s.rows / kTile + s.sizes.experts;
    return down * ceil_div(s.columns, kTile);
}

struct TilePlace {
    ptx::ExpertTile own;
    int64_t row, column;  // of the tile, from the expert's first row
    int64_t row_blocks,
        mx_blocks;  // tiles of rows before this one, of all experts; Σ ⌈n/32⌉ of the experts before
};

// By whole warps. False: there are fewer tiles.
__device__ inline bool find_tile(const Source& s, int64_t index, TilePlace& place) {
    const int64_t across = (s.columns + kTile - 1) / kTile;
    if (across == 0) return false;
    place.row_blocks = index / across;
    place.column = index % across * kTile;
    place.own = ptx::find_expert_tile(s.sizes, kTile, place.row_blocks);
    if (place.own.expert < 0) return false;
    place.row = place.own.tile * kTile;
    int64_t blocks = 0;
    for (int64_t e = threadIdx.x % 32; e < place.own.expert; e += 32) blocks += (s.sizes[e] + 31) / 32;
    place.mx_blocks = __shfl_sync(~0u, ptx::inclusive_scan_warp(blocks), 31);
    return true;
}

__device__ inline int clamp_to_eight(int64_t count) {
    return count <= 0 ? 0 : count < 8 ? static_cast<int>(count) : 8;
}

// Eight neighbours of row `row`, zeros where nothing is. An index out of range reads row 0.
template <class T>
__device__ inline void load_eight(const Source& s, int64_t row, bool exists, int64_t column, int columns,
                                  float (&value)[8]) {
    if (!exists || columns == 0) {
#pragma unroll
        for (int i = 0; i < 8; ++i) value[i] = 0.0f;
        return;
    }
    if (s.row_index != nullptr) {
        const int64_t named = s.row_index[row], from = named / s.topk;
        row = named >= 0 && from < s.values_rows ? from : 0;
    }
    const T* from = static_cast<const T*>(s.values) + row * s.stride + column;
    if (s.aligned && columns == 8) {
        ptx::load_floats<8>(from, value);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) value[i] = i < columns ? ptx::load_float(from + i) : 0.0f;
    }
}

}  // namespace moebius::ops::cuda
