// Codes back to numbers, element by element, on every card from sm_80.
#include "moebius/ops/quantize/any_source.cuh"
#include "moebius/ops/quantize/cuda.h"
#include "moebius/ptx/float8.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

struct Dequantize {
    Source out;  // its values are written
    const uint8_t* codes;
    const void* scale;
    int64_t stride;  // between lines of codes
    ScaleKind kind;
    ScaleLayout layout;
    bool row, transposed, weight, e5m2;

    // Place of element (i, c), i from the expert's first row.
    __device__ int64_t code_place(const TilePlace& t, int64_t i, int64_t c) const {
        if (!transposed) return (t.own.first + i) * stride + c;
        if (weight) return (t.own.expert * out.columns + c) * stride + i;
        return c * stride + (t.row_blocks - t.row / 128) * 128 + i;
    }
    __device__ float factor(const TilePlace& t, int64_t i, int64_t c) const {
        if (kind == ScaleKind::Tensor) return static_cast<const float*>(scale)[t.own.expert];
        if (kind == ScaleKind::MX32)
            return ptx::decode_e8m0(static_cast<const uint8_t*>(scale)[mx_place(t, i, c)]);
        return static_cast<const float*>(scale)[block_place(t, i, c)];
    }
    __device__ int64_t block_place(const TilePlace& t, int64_t i, int64_t c) const {
        const int64_t across = (out.columns + 127) / 128, down = (out.rows + 127) / 128;
        if (weight)
            return t.own.expert * across * down +
                   (row ? i / 128 * across + c / 128 : c / 128 * down + i / 128);
        return row ? c / 128 * ((out.rows + 3) / 4 * 4) + t.own.first + i : t.row_blocks * out.columns + c;
    }
    __device__ int64_t mx_place(const TilePlace& t, int64_t i, int64_t c) const {
        const int64_t tiles = (out.columns + 127) / 128, before = t.row_blocks - t.row / 128;
        if (layout == ScaleLayout::Compact)
            return row ? (t.own.first + i) * ((out.columns + 31) / 32) + c / 32
                       : (t.mx_blocks + i / 32) * out.columns + c;
        if (layout == ScaleLayout::Padded)
            return row ? (before * 128 + i) * tiles * 4 + c / 32 : (before * 4 + i / 32) * tiles * 128 + c;
        const int64_t across = row ? tiles : (t.own.rows + 127) / 128;
        const int64_t a = row ? i : c, b = (row ? c : i) / 32;
        return (before * tiles + a / 128 * across + b / 4) * 512 + a % 32 * 16 + a % 128 / 32 * 4 + b % 4;
    }
};

template <class T>
__global__ void __launch_bounds__(kTileThreads) dequantize_any(const Dequantize d) {
    TilePlace tile;
    if (!find_tile(d.out, blockIdx.x, tile)) return;
    auto* out = static_cast<T*>(const_cast<void*>(d.out.values));
    const int along = static_cast<int>(threadIdx.x) % kTile;
    for (int line = static_cast<int>(threadIdx.x) / kTile; line < kTile; line += kTileThreads / kTile) {
        const int64_t i = tile.row + line, c = tile.column + along;
        if (i >= tile.own.rows || c >= d.out.columns) continue;
        const uint32_t code = d.codes[d.code_place(tile, i, c)];
        const float value = d.e5m2 ? ptx::E5M2::decode(code) : ptx::E4M3::decode(code);
        ptx::store_float(out + (tile.own.first + i) * d.out.stride + c,
                         __fmul_rn(value, d.factor(tile, i, c)));
    }
}

}  // namespace

void dequantize(const DequantizeArgs& args, const Exec& exec) {
    const Operand& from = args.from;
    Dequantize d{};
    d.out = source_of({.values = args.out, .split_sizes = args.split_sizes, .row_index = {}});
    d.codes = static_cast<const uint8_t*>(from.data.data);
    d.scale = from.scale.data;
    d.stride = from.data.stride[static_cast<size_t>(from.data.rank() - 2)];
    d.kind = from.format.scale;
    d.layout = from.layout;
    d.row = args.direction == Direction::Row;
    d.transposed = from.transposed;
    d.weight = args.out.rank() == 3;
    d.e5m2 = from.format.element == DType::F8E5M2;
    with_device_type(args.out.dtype, [&](auto type) {
        launch("dequantize", dequantize_any<decltype(type)>,
               {grid_for(tiles_of(d.out), 1), dim3(kTileThreads)}, exec, d);
    });
}

}  // namespace moebius::ops::cuda
