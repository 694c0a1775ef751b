// Forward on every card from sm_80: a block takes 128 rows of one expert by 128 columns of the activation,
// reads the pre-activation once and writes codes and scales in both directions (quantize/any_tiles.cuh).
//
// A scale of the whole tensor is known only at the end: a first pass over the same finds the amax.
#include <type_traits>

#include "moebius/ops/glu_quantize/cuda.h"
#include "moebius/ops/quantize/any_tiles.cuh"
#include "moebius/ptx/glu.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

using namespace tiles;

using Element = __nv_bfloat16;

// What is read: source.columns are the activation's; values and stride x's.
struct Glu {
    Source source;
    const float* scales;          // (capacity), null: 1
    int64_t intermediate, block;  // columns of gates side by side, then as many of ups
    ptx::GluConstants constants;

    __device__ int64_t gate_column(int64_t column) const {
        return block == intermediate ? column : column / block * 2 * block + column % block;
    }
    __device__ float scale(int64_t row) const { return scales != nullptr ? scales[row] : 1.0f; }
};

constexpr int kAhead = 2;  // rows that are asked for before any of them is used

// The activation, as the chain stores it; zeros where nothing is.
template <bool kClamped>
__device__ void load_activation(const Glu& g, const Place& at, Numbers<Element>& numbers) {
    const int64_t first = at.tile.own.first + at.row;
    const Element* x = static_cast<const Element*>(g.source.values) + g.gate_column(at.column);
#pragma unroll
    for (int begin = 0; begin < kEach; begin += kAhead) {
        Eight<Element> gates[kAhead], ups[kAhead];
        float scales[kAhead];
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
            const int i = begin + n;
            const bool exists = i < at.rows && at.columns > 0;
            const Element* from = x + (first + i) * g.source.stride;
            gates[n].load(from, exists ? kEach : 0, true);
            ups[n].load(from + g.block, exists ? kEach : 0, true);
            scales[n] = exists ? g.scale(first + i) : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
            float gate[kEach], up[kEach], y[kEach];
            gates[n].get(gate);
            ups[n].get(up);
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
                const ptx::GluPair pair = ptx::glu_pair<kClamped, false>(gate[j], up[j], g.constants);
                y[j] = begin + n < at.rows ? ptx::glu_forward(pair, scales[n]) : 0.0f;
            }
            numbers.put(begin + n, y);
        }
    }
}

template <bool kClamped, Blocks kBlocks>
__global__ void __launch_bounds__(kTileThreads, 3)
    scaled_glu_quantize_any(const Quantize q, const Glu g, int each) {
    __shared__ Shared shared;
    if (kBlocks == Blocks::Tensor && blockIdx.x == 0) store_tensor_scales(q);
    TilePlace tile;
    if (!find_tile<kBlocks == Blocks::Mx>(g.source, blockIdx.x, tile, each)) return;
    Counts counts;
    float amax = 0.0f;
    for (int n = 0; n < each && tile.column < g.source.columns; ++n, tile.column += kTile) {
        if (n > 0) __syncthreads();  // the tile before has been written
        const Place at = place_of(tile, g.source.columns);
        Numbers<Element> numbers;
        load_activation<kClamped>(g, at, numbers);
        write_tile<kBlocks>(q, at, numbers, shared, counts);
        if (q.observed != nullptr) amax = fmaxf(amax, numbers.amax());
    }
    if (q.observed != nullptr) observe(q.observed, tile.own.expert, amax);
    if (q.counts != nullptr) add_counts(q, tile.own.expert, counts);
}

template <bool kClamped>
__global__ void __launch_bounds__(kTileThreads, 3)
    scaled_glu_amax_any(const Glu g, unsigned* amax, int each) {
    TilePlace tile;
    if (!find_tile<false>(g.source, blockIdx.x, tile, each)) return;
    float most = 0.0f;
    for (int n = 0; n < each && tile.column < g.source.columns; ++n, tile.column += kTile) {
        Numbers<Element> numbers;
        load_activation<kClamped>(g, place_of(tile, g.source.columns), numbers);
        most = fmaxf(most, numbers.amax());
    }
    observe(amax, tile.own.expert, most);
}

// Calls f(kind of blocks, whether clamped) as constants.
template <class F>
void with_kinds(const Format& format, const GluOptions& options, F&& f) {
    const auto with_blocks = [&](auto clamped) {
        switch (blocks_of(format, false)) {
            case Blocks::Tensor:
                return f(std::integral_constant<Blocks, Blocks::Tensor>{}, clamped);
            case Blocks::Mx:
                return f(std::integral_constant<Blocks, Blocks::Mx>{}, clamped);
            default:
                return f(std::integral_constant<Blocks, Blocks::Line128>{}, clamped);
        }
    };
    if (options.kind == GluKind::SwiGlu) return with_blocks(std::false_type{});
    with_blocks(std::true_type{});
}

}  // namespace

void scaled_glu_quantize(const ScaledGluQuantizeArgs& a, const Exec& exec) {
    const int64_t intermediate = a.x.size(1) / 2, experts = a.split_sizes.size(0);
    Glu g{};
    g.source = source_of({.values = a.x, .split_sizes = a.split_sizes});
    g.source.columns = intermediate;
    g.scales = device_data<float>(a.scales);
    g.intermediate = intermediate;
    g.block = a.options.interleave > 0 ? a.options.interleave : intermediate;
    g.constants = {a.options.limit, a.options.alpha, a.options.offset};
    const bool finds = finds_amax(a.activation);
    const size_t amax_bytes = finds ? static_cast<size_t>(experts) * sizeof(float) : 0;
    const Scratch found("glu_quantize.amax", amax_bytes, exec);
    const View amax = finds ? View(found.as<void>(), DType::F32, {experts}) : View();
    if (finds) zero(found.as<void>(), amax_bytes, exec);
    Quantize q = quantize_of(a.activation, amax, a.x.dtype, false, exec);
    q.source = g.source;
    const Format& format = (a.activation.row ? a.activation.row : a.activation.column).format;
    const int each = tiles_each(g.source, exec);
    const int64_t runs = tiles_of(g.source, each);
    // A scale of a tensor is written even where there is no tile.
    const LaunchShape shape{
        grid_for(format.scale == ScaleKind::Tensor ? std::max<int64_t>(runs, 1) : runs, 1),
        dim3(kTileThreads)};
    with_kinds(format, a.options, [&](auto blocks, auto clamped) {
        if (finds) {
            launch("scaled_glu_amax", scaled_glu_amax_any<clamped()>, shape, exec, g, found.as<unsigned>(),
                   each);
        }
        launch("scaled_glu_quantize", scaled_glu_quantize_any<clamped(), blocks()>, shape, exec, q, g, each);
    });
}

}  // namespace moebius::ops::cuda
