// Quantization on every card from sm_80: a block of 256 threads a tile (any_tiles.cuh), one read of the
// source for both directions.
#include "moebius/ops/quantize/any_tiles.cuh"
#include "moebius/ops/quantize/cuda.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

using namespace tiles;

template <class T, Blocks kBlocks>
__global__ void __launch_bounds__(kTileThreads, 2) quantize_any(const Quantize q) {
    __shared__ Shared shared;
    if (kBlocks == Blocks::Tensor && blockIdx.x == 0) store_tensor_scales(q);
    TilePlace tile;
    if (!find_tile(q.source, blockIdx.x, tile)) return;
    const Place at = place_of(tile, q.source.columns);
    float v[kEach][kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i)
        load_eight<T>(q.source, tile.own.first + at.row + i, i < at.rows, at.column, at.columns, v[i]);
    Counts counts;
    write_tile<kBlocks>(q, at, v, shared, counts);
    if (q.observed != nullptr) observe(q.observed, tile.own.expert, amax_of(v));
    if (q.counts != nullptr) add_counts(q, tile.own.expert, counts);
}

template <class T>
__global__ void __launch_bounds__(kTileThreads) tensor_amax_any(const Source source, unsigned* amax) {
    TilePlace tile;
    if (!find_tile(source, blockIdx.x, tile)) return;
    const int64_t column = tile.column + static_cast<int>(threadIdx.x) % 16 * kEach;
    const int columns = clamp_to_eight(source.columns - column);
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int64_t row = tile.row + static_cast<int>(threadIdx.x) / 16 * kEach + i;
        float v[kEach];
        load_eight<T>(source, tile.own.first + row, row < tile.own.rows, column, columns, v);
#pragma unroll
        for (int j = 0; j < kEach; ++j) most = fmaxf(most, fabsf(v[j]));
    }
    most = ptx::block_max<kTileThreads>(most);
    if (threadIdx.x == 0) atomicMax(amax + tile.own.expert, __float_as_uint(most));
}

template <class T>
void run(const Quantize& q, Blocks blocks, const Exec& exec) {
    const auto kernel = blocks == Blocks::Tensor    ? quantize_any<T, Blocks::Tensor>
                        : blocks == Blocks::Line128 ? quantize_any<T, Blocks::Line128>
                        : blocks == Blocks::Mx      ? quantize_any<T, Blocks::Mx>
                                                    : quantize_any<T, Blocks::Weight128>;
    // A tensor scale is written even where there is no tile.
    const int64_t blocks_needed =
        tiles_of(q.source) + (blocks == Blocks::Tensor && tiles_of(q.source) == 0 ? 1 : 0);
    launch("quantize", kernel, {grid_for(blocks_needed, 1), dim3(kTileThreads)}, exec, q);
}

}  // namespace

void quantize(const QuantizeArgs& args, const Exec& exec) {
    const MatrixShape matrix = matrix_of(args.source);
    Quantize q = quantize_of(target_of(args), args.amax, args.source.values.dtype, matrix.weight, exec);
    q.source = source_of(args.source);
    const Format& format = (args.row ? args.row : args.column).format;
    with_device_type(args.source.values.dtype,
                     [&](auto type) { run<decltype(type)>(q, blocks_of(format, matrix.weight), exec); });
}

void tensor_amax(const TensorAmaxArgs& args, const Exec& exec) {
    const Source source = source_of(args.source);
    auto* amax = reinterpret_cast<unsigned*>(args.amax.as<float>());
    zero(amax, static_cast<size_t>(args.amax.bytes()), exec);
    with_device_type(args.source.values.dtype, [&](auto type) {
        launch("tensor_amax", tensor_amax_any<decltype(type)>,
               {grid_for(tiles_of(source), 1), dim3(kTileThreads)}, exec, source, amax);
    });
}

}  // namespace moebius::ops::cuda
