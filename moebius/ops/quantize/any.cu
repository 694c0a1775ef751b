// Quantization on every card from sm_80: a block of 256 threads a tile (any_tiles.cuh), one read of the
// source for both directions.
#include "moebius/ops/quantize/any_tiles.cuh"
#include "moebius/ops/quantize/cuda.h"
#include "moebius/ptx/dynamic_shared.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

using namespace tiles;

// Blocks an SM: as many as there are registers for what a thread holds.
template <class T, Blocks kBlocks>
constexpr int kBlocksEach =
    std::is_same_v<T, float> || kBlocks == Blocks::Weight128 || kBlocks == Blocks::Mx ? 2 : 3;

template <class T, bool kNorm>
struct Memory {
    Shared shared;
    typename TilesAhead<T, kNorm>::Memory ahead;
};

template <class T, Blocks kBlocks, bool kNorm>
__global__ void __launch_bounds__(kTileThreads, kBlocksEach<T, kBlocks>)
    quantize_any(const Quantize q, int each) {
    auto& memory = *ptx::dynamic_shared<Memory<T, kNorm>>();
    if (kBlocks == Blocks::Tensor && blockIdx.x == 0) store_tensor_scales(q);
    TilePlace tile;
    if (!find_tile<kBlocks == Blocks::Mx>(q.source, blockIdx.x, tile, each)) return;
    Counts counts;
    float amax = 0.0f;
    const TilesAhead<T, kNorm> ahead(q.source, tile, memory.ahead);
    ahead.ask(tile.column);
    for (int n = 0; n < each && tile.column < q.source.columns; ++n, tile.column += kTile) {
        Numbers<T> numbers;
        ahead.take(tile.column, numbers);
        if (n + 1 < each) ahead.ask(tile.column + kTile);
        if (n > 0) __syncthreads();  // the tile before has been written
        write_tile<kBlocks>(q, place_of(tile, q.source.columns), numbers, memory.shared, counts);
        if (q.observed != nullptr) amax = fmaxf(amax, numbers.amax());
    }
    if (q.observed != nullptr) observe(q.observed, tile.own.expert, amax);
    if (q.counts != nullptr) add_counts(q, tile.own.expert, counts);
}

template <class T, bool kNorm>
__global__ void __launch_bounds__(kTileThreads)
    tensor_amax_any(const Source source, unsigned* amax, int each) {
    TilePlace tile;
    if (!find_tile<false>(source, blockIdx.x, tile, each)) return;
    const TilesAhead<T, kNorm> ahead(source, tile,
                                     *ptx::dynamic_shared<typename TilesAhead<T, kNorm>::Memory>());
    ahead.ask(tile.column);
    float most = 0.0f;
    for (int n = 0; n < each && tile.column < source.columns; ++n, tile.column += kTile) {
        Numbers<T> numbers;
        ahead.take(tile.column, numbers);
        if (n + 1 < each) ahead.ask(tile.column + kTile);
        most = fmaxf(most, numbers.amax());
    }
    observe(amax, tile.own.expert, most);
}

template <class T, bool kNorm>
void run(const Quantize& q, Blocks blocks, const Exec& exec) {
    const auto kernel = blocks == Blocks::Tensor    ? quantize_any<T, Blocks::Tensor, kNorm>
                        : blocks == Blocks::Line128 ? quantize_any<T, Blocks::Line128, kNorm>
                        : blocks == Blocks::Mx      ? quantize_any<T, Blocks::Mx, kNorm>
                                                    : quantize_any<T, Blocks::Weight128, false>;
    // A tensor scale is written even where there is no tile.
    const int each = tiles_each(q.source, exec);
    const int64_t runs = tiles_of(q.source, each);
    launch("quantize", kernel,
           {grid_for(blocks == Blocks::Tensor && runs == 0 ? 1 : runs, 1), dim3(kTileThreads),
            sizeof(Memory<T, kNorm>)},
           exec, q, each);
}

}  // namespace

void quantize(const QuantizeArgs& args, const Exec& exec) {
    const MatrixShape matrix = matrix_of(args.source);
    Quantize q = quantize_of(target_of(args), args.amax, args.source.values.dtype, matrix.weight, exec);
    q.source = source_of(args.source);
    const Format& format = (args.row ? args.row : args.column).format;
    const Blocks blocks = blocks_of(format, matrix.weight);
    with_device_type(args.source.values.dtype, [&](auto type) {
        q.source.norm_weight != nullptr ? run<decltype(type), true>(q, blocks, exec)
                                        : run<decltype(type), false>(q, blocks, exec);
    });
}

void tensor_amax(const TensorAmaxArgs& args, const Exec& exec) {
    const Source source = source_of(args.source);
    auto* amax = reinterpret_cast<unsigned*>(args.amax.as<float>());
    zero(amax, static_cast<size_t>(args.amax.bytes()), exec);
    const int each = tiles_each(source, exec);
    with_device_type(args.source.values.dtype, [&](auto type) {
        const auto run = [&](auto norm) {
            using Ahead = TilesAhead<decltype(type), decltype(norm)::value>;
            launch("tensor_amax", tensor_amax_any<decltype(type), decltype(norm)::value>,
                   {grid_for(tiles_of(source, each), 1), dim3(kTileThreads), sizeof(typename Ahead::Memory)},
                   exec, source, amax, each);
        };
        source.norm_weight != nullptr ? run(std::true_type()) : run(std::false_type());
    });
}

}  // namespace moebius::ops::cuda
