// On every card from sm_80: a block takes 128 rows of one expert by 128 columns of the activation, reads the
// pre-activation (and the activation's gradient) once and writes codes and scales in both directions
// (quantize/any_tiles.cuh). Backward has two tiles, of gates and of ups; the second waits in registers,
// rounded as the chain would store it.
//
// A scale of the whole tensor is known only at the end: a first pass over the same finds the amax.
#include <type_traits>

#include "moebius/ops/glu_quantize/cuda.h"
#include "moebius/ops/quantize/any_tiles.cuh"
#include "moebius/ptx/glu.h"
#include "moebius/ptx/rows_in_use.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

using namespace tiles;

// What is read: source.columns are the activation's; values and stride x's.
struct Glu {
    Source source;
    const void* dy;
    int64_t dy_stride;
    const float* scales;          // (capacity), null: 1
    float* partial;               // (tiles across, capacity): a tile's part of dscales; null: not asked
    int64_t intermediate, block;  // columns of gates side by side, then as many of ups
    bool vectors;                 // eight neighbours of a half lie side by side on 16 bytes, also in dy
    ptx::GluConstants constants;

    __device__ int64_t gate_column(int64_t column) const {
        return block == intermediate ? column : column / block * 2 * block + column % block;
    }
    __device__ float scale(int64_t row) const { return scales != nullptr ? scales[row] : 1.0f; }
};

template <class T>
inline constexpr bool kPrecise = std::is_same_v<T, float>;

template <class T>
__device__ float rounded(float value) {
    if constexpr (std::is_same_v<T, float>) return value;
    return __bfloat162float(__float2bfloat16_rn(value));
}

// A row's eight gates and ups; zeros where nothing is.
template <class T>
__device__ void load_pairs(const Glu& g, int64_t row, bool exists, int64_t column, int columns,
                           float (&gate)[kEach], float (&up)[kEach]) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) gate[i] = up[i] = 0.0f;
    if (!exists || columns == 0) return;
    const T* from = static_cast<const T*>(g.source.values) + row * g.source.stride;
    if (g.vectors) {
        from += g.gate_column(column);
        ptx::load_floats<kEach>(from, gate);
        ptx::load_floats<kEach>(from + g.block, up);
        return;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if (i >= columns) continue;
        const T* at = from + g.gate_column(column + i);
        gate[i] = ptx::load_float(at);
        up[i] = ptx::load_float(at + g.block);
    }
}

// The activation, as the chain stores it.
template <bool kClamped, class T>
__device__ void load_activation(const Glu& g, const Place& at, float (&v)[kEach][kEach]) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int64_t row = at.tile.own.first + at.row + i;
        const bool exists = i < at.rows;
        float gate[kEach], up[kEach];
        load_pairs<T>(g, row, exists, at.column, at.columns, gate, up);
        const float scale = exists ? g.scale(row) : 0.0f;
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
            const ptx::GluPair pair = ptx::glu_pair<kClamped, kPrecise<T>>(gate[j], up[j], g.constants);
            v[i][j] = exists && j < at.columns ? rounded<T>(ptx::glu_forward(pair, scale)) : 0.0f;
        }
    }
}

template <bool kClamped, Blocks kBlocks, class T>
__global__ void __launch_bounds__(kTileThreads, 2) scaled_glu_quantize_any(const Quantize q, const Glu g) {
    __shared__ Shared shared;
    if (kBlocks == Blocks::Tensor && blockIdx.x == 0) store_tensor_scales(q);
    TilePlace tile;
    if (!find_tile(g.source, blockIdx.x, tile)) return;
    const Place at = place_of(tile, g.source.columns);
    float v[kEach][kEach];
    load_activation<kClamped, T>(g, at, v);
    Counts counts;
    write_tile<kBlocks>(q, at, v, shared, counts);
    if (q.observed != nullptr) observe(q.observed, tile.own.expert, amax_of(v));
    if (q.counts != nullptr) add_counts(q, tile.own.expert, counts);
}

template <bool kClamped, class T>
__global__ void __launch_bounds__(kTileThreads, 2) scaled_glu_amax_any(const Glu g, unsigned* amax) {
    TilePlace tile;
    if (!find_tile(g.source, blockIdx.x, tile)) return;
    float v[kEach][kEach];
    load_activation<kClamped, T>(g, place_of(tile, g.source.columns), v);
    observe(amax, tile.own.expert, amax_of(v));
}

// A tile of values of T that waits while another is written.
template <class T>
struct Held {
    static constexpr int kEachWord = std::is_same_v<T, float> ? 1 : 2;
    using Word = ptx::Pack<T, kEachWord>;
    Word words[kEach][kEach / kEachWord];

    __device__ void put(int i, const float (&row)[kEach]) {
#pragma unroll
        for (int w = 0; w < kEach / kEachWord; ++w) {
            float part[kEachWord];
#pragma unroll
            for (int n = 0; n < kEachWord; ++n) part[n] = row[w * kEachWord + n];
            words[i][w] = ptx::pack<T, kEachWord>(part);
        }
    }
    __device__ void get(float (&v)[kEach][kEach]) const {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
            for (int w = 0; w < kEach / kEachWord; ++w) {
                float part[kEachWord];
                ptx::unpack(words[i][w], part);
#pragma unroll
                for (int n = 0; n < kEachWord; ++n) v[i][w * kEachWord + n] = part[n];
            }
        }
    }
};

// Both halves of dx as the chain stores them, and the tile's part of dscales.
template <bool kClamped, class T>
__device__ void load_gradients(const Glu& g, const Place& at, float (&dgate)[kEach][kEach], Held<T>& dup) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int64_t row = at.tile.own.first + at.row + i;
        const bool exists = i < at.rows;
        float gate[kEach], up[kEach], dy[kEach] = {}, ups[kEach];
        load_pairs<T>(g, row, exists, at.column, at.columns, gate, up);
        if (exists && at.columns > 0) {
            const T* from = static_cast<const T*>(g.dy) + row * g.dy_stride + at.column;
            if (g.vectors) {
                ptx::load_floats<kEach>(from, dy);
            } else {
#pragma unroll
                for (int j = 0; j < kEach; ++j) dy[j] = j < at.columns ? ptx::load_float(from + j) : 0.0f;
            }
        }
        const float scale = exists ? g.scale(row) : 0.0f;
        float dscale = 0.0f;
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
            const ptx::GluPair pair = ptx::glu_pair<kClamped, kPrecise<T>>(gate[j], up[j], g.constants);
            const ptx::GluGradients gradients = ptx::glu_backward(pair, dy[j], scale);
            const bool there = exists && j < at.columns;
            dgate[i][j] = there ? rounded<T>(gradients.dgate) : 0.0f;
            ups[j] = there ? gradients.dup : 0.0f;
            dscale = __fadd_rn(dscale, there ? gradients.dscale : 0.0f);
        }
        dup.put(i, ups);
        if (g.partial == nullptr) continue;
#pragma unroll
        for (int step = 8; step > 0; step /= 2)
            dscale = __fadd_rn(dscale, __shfl_xor_sync(~0u, dscale, step));
        if (at.across == 0 && exists)
            g.partial[at.tile.column / kTile * g.source.sizes.capacity + row] = dscale;
    }
}

template <bool kClamped, Blocks kBlocks, class T>
__global__ void __launch_bounds__(kTileThreads, 2)
    scaled_glu_backward_quantize_any(const Quantize q, const Glu g) {
    __shared__ Shared shared;
    if (kBlocks == Blocks::Tensor && blockIdx.x == 0) store_tensor_scales(q);
    TilePlace tile;
    if (!find_tile(g.source, blockIdx.x, tile)) return;
    float v[kEach][kEach];
    Held<T> dup;
    load_gradients<kClamped, T>(g, place_of(tile, g.source.columns), v, dup);
    Counts counts;
    float amax = 0.0f;
    write_tile<kBlocks>(q, place_of(tile, q.source.columns), v, shared, counts);
    if (q.observed != nullptr) amax = amax_of(v);
    dup.get(v);
    tile.column += g.intermediate;
    __syncthreads();  // the first tile's codes and scales have been read
    write_tile<kBlocks>(q, place_of(tile, q.source.columns), v, shared, counts);
    if (q.observed != nullptr) observe(q.observed, tile.own.expert, fmaxf(amax, amax_of(v)));
    if (q.counts != nullptr) add_counts(q, tile.own.expert, counts);
}

template <bool kClamped, class T>
__global__ void __launch_bounds__(kTileThreads, 2) scaled_glu_backward_amax_any(Glu g, unsigned* amax) {
    TilePlace tile;
    if (!find_tile(g.source, blockIdx.x, tile)) return;
    float v[kEach][kEach];
    Held<T> dup;
    load_gradients<kClamped, T>(g, place_of(tile, g.source.columns), v, dup);
    const float gates = amax_of(v);
    dup.get(v);
    observe(amax, tile.own.expert, fmaxf(gates, amax_of(v)));
}

// dscales: the tiles' sums of a row, in the tiles' order.
__global__ void __launch_bounds__(256)
    sum_scale_gradients_any(const float* partial, int64_t tiles, ptx::SplitSizes sizes, float* dscales) {
    const int64_t row = int64_t{blockIdx.x} * 256 + threadIdx.x;
    if (row >= ptx::rows_in_use(sizes)) return;
    float sum = 0.0f;
    for (int64_t tile = 0; tile < tiles; ++tile) sum = __fadd_rn(sum, partial[tile * sizes.capacity + row]);
    dscales[row] = sum;
}

Glu glu_of(const GluOptions& options, const View& x, const View& scales, const View& split_sizes) {
    const int64_t intermediate = x.size(1) / 2;
    Glu g{};
    g.source = source_of({.values = x, .split_sizes = split_sizes});
    g.source.columns = intermediate;
    g.scales = device_data<float>(scales);
    g.intermediate = intermediate;
    g.block = options.interleave > 0 ? options.interleave : intermediate;
    g.vectors = g.block % kEach == 0 && intermediate % kEach == 0 && rows_in_vectors(x, kEach);
    g.constants = {options.limit, options.alpha, options.offset};
    return g;
}

// Calls f(kind of blocks, whether clamped, an element) as constants.
template <class F>
void with_kinds(const Format& format, const GluOptions& options, DType dtype, F&& f) {
    const auto with_blocks = [&](auto clamped, auto type) {
        switch (blocks_of(format, false)) {
            case Blocks::Tensor:
                return f(std::integral_constant<Blocks, Blocks::Tensor>{}, clamped, type);
            case Blocks::Mx:
                return f(std::integral_constant<Blocks, Blocks::Mx>{}, clamped, type);
            default:
                return f(std::integral_constant<Blocks, Blocks::Line128>{}, clamped, type);
        }
    };
    with_device_type(dtype, [&](auto type) {
        if (options.kind == GluKind::SwiGlu) return with_blocks(std::false_type{}, type);
        with_blocks(std::true_type{}, type);
    });
}

// The amax that a scale comes from, where the target gives none; zeros at first.
class FoundAmax {
  public:
    FoundAmax(const QuantizeTarget& target, int64_t experts, const Exec& exec)
        : wanted_(finds_amax(target)),
          experts_(experts),
          memory_("glu_quantize.amax", wanted_ ? static_cast<size_t>(experts) * sizeof(float) : 0, exec) {
        if (wanted_) zero(bits(), static_cast<size_t>(experts) * sizeof(float), exec);
    }
    bool wanted() const { return wanted_; }
    unsigned* bits() const { return memory_.as<unsigned>(); }
    View view() const { return wanted_ ? View(memory_.as<void>(), DType::F32, {experts_}) : View(); }

  private:
    bool wanted_;
    int64_t experts_;
    Scratch memory_;
};

// A scale of a tensor is written even where there is no tile.
LaunchShape tiles_shape(const Source& source, const Format& format) {
    const int64_t tiles = tiles_of(source);
    return {grid_for(tiles == 0 && format.scale == ScaleKind::Tensor ? 1 : tiles, 1), dim3(kTileThreads)};
}

}  // namespace

void scaled_glu_quantize(const ScaledGluQuantizeArgs& a, const Exec& exec) {
    const Glu g = glu_of(a.options, a.x, a.scales, a.split_sizes);
    const FoundAmax amax(a.activation, a.split_sizes.size(0), exec);
    Quantize q = quantize_of(a.activation, amax.view(), a.x.dtype, false, exec);
    q.source = g.source;
    const Format& format = (a.activation.row ? a.activation.row : a.activation.column).format;
    const LaunchShape shape = tiles_shape(g.source, format);
    with_kinds(format, a.options, a.x.dtype, [&](auto blocks, auto clamped, auto type) {
        using T = decltype(type);
        if (amax.wanted())
            launch("scaled_glu_amax", scaled_glu_amax_any<clamped(), T>, shape, exec, g, amax.bits());
        launch("scaled_glu_quantize", scaled_glu_quantize_any<clamped(), blocks(), T>, shape, exec, q, g);
    });
}

void scaled_glu_backward_quantize(const ScaledGluBackwardQuantizeArgs& a, const Exec& exec) {
    Glu g = glu_of(a.options, a.x, a.scales, a.split_sizes);
    g.dy = a.dy.data;
    g.dy_stride = a.dy.stride[0];
    g.vectors = g.vectors && rows_in_vectors(a.dy, kEach);
    const int64_t rows = a.x.size(0), across = g.intermediate / kTile;
    const Scratch partial("glu_quantize.dscales",
                          a.dscales ? static_cast<size_t>(across * rows) * sizeof(float) : 0, exec);
    if (a.dscales) g.partial = partial.as<float>();
    const FoundAmax amax(a.dx, a.split_sizes.size(0), exec);
    Quantize q = quantize_of(a.dx, amax.view(), a.x.dtype, false, exec);
    q.source = g.source;
    q.source.columns = a.x.size(1);
    const Format& format = (a.dx.row ? a.dx.row : a.dx.column).format;
    const LaunchShape shape = tiles_shape(g.source, format);
    with_kinds(format, a.options, a.x.dtype, [&](auto blocks, auto clamped, auto type) {
        using T = decltype(type);
        if (amax.wanted()) {
            Glu first = g;
            first.partial = nullptr;
            launch("scaled_glu_backward_amax", scaled_glu_backward_amax_any<clamped(), T>, shape, exec, first,
                   amax.bits());
        }
        launch("scaled_glu_backward_quantize", scaled_glu_backward_quantize_any<clamped(), blocks(), T>,
               shape, exec, q, g);
    });
    if (!a.dscales) return;
    const ptx::SplitSizes sizes{.data = a.split_sizes.data,
                                .is_i64 = a.split_sizes.dtype == DType::I64,
                                .experts = a.split_sizes.size(0),
                                .capacity = rows};
    launch("glu_quantize.dscales", sum_scale_gradients_any, {grid_for(rows, 256), dim3(256)}, exec,
           partial.as<float>(), across, sizes, a.dscales.as<float>());
}

}  // namespace moebius::ops::cuda
