// Products on every card from sm_80: bf16 operands on the tensor cores, others in plain fp32.
#include "moebius/ops/gemm/any_products.h"
#include "moebius/ops/gemm/any_tile.cuh"
#include "moebius/ops/gemm/cuda.h"
#include "moebius/ptx/split_sizes.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

__host__ __device__ inline int64_t tiles_of(int64_t count) {
    return (count + kTile - 1) / kTile;
}

// Row tiles that the experts' rows make at most: each has one that is short.
int64_t most_row_tiles(const AnyProducts& p) {
    return (p.m + (kTile - 1) * p.experts) / kTile;
}

struct GridPlace {
    int64_t row, column;  // of tiles
};

// Blocks that run together cover a band of a few rows of tiles: its operands stay in the L2 cache.
__device__ inline GridPlace place_in_band(int64_t index, int64_t rows, int64_t columns) {
    constexpr int64_t kBand = 8;
    const int64_t first = index / (kBand * columns) * kBand, inside = index % (kBand * columns);
    const int64_t height = rows - first < kBand ? rows - first : kBand;
    return {first + inside % height, inside / height};
}

template <class A, class B>
struct Tile {
    TileOperand<A> a;
    TileOperand<B> b;
    TileOutput out;
};

template <class T>
__device__ inline const T* at(const void* data, int64_t offset) {
    return static_cast<const T*>(data) + offset;
}
__device__ inline void* out_at(const AnyProducts& p, int64_t offset) {
    return static_cast<char*>(p.out) + offset * (p.out_is_bf16 ? 2 : 4);
}

// The block's tile; false: none.
template <GemmKind kind, class A, class B>
__device__ bool find_tile(const AnyProducts& p, int64_t row_tiles, Tile<A, B>& tile) {
    const ptx::SplitSizes sizes{p.split_sizes, p.split_is_i64, p.experts, p.m};
    const int64_t columns = tiles_of(p.n);
    tile.out.stride = p.out_stride;
    tile.out.is_bf16 = p.out_is_bf16;
    tile.out.bias_is_bf16 = p.bias_is_bf16;
    tile.out.accumulate = p.accumulate;
    tile.out.paired = p.out_paired;
    tile.out.bias = nullptr;
    tile.out.scale = nullptr;
    if constexpr (kind == GemmKind::Wgrad) {
        const int64_t each = row_tiles * columns, expert = blockIdx.x / each;
        const GridPlace place = place_in_band(blockIdx.x % each, row_tiles, columns);
        ptx::ExpertTile own{.expert = expert, .rows = p.m};
        if (p.split_sizes) own = ptx::find_expert(sizes, expert);
        const int64_t i = place.row * kTile, j = place.column * kTile;
        if (own.rows == 0 && p.accumulate) return false;
        tile.a = {at<A>(p.a, own.first * p.a_stride + i), p.a_stride, p.k - i, own.rows, p.a_aligned};
        tile.b = {at<B>(p.b, own.first * p.b_stride + j), p.b_stride, p.n - j, own.rows, p.b_aligned};
        tile.out.data = out_at(p, expert * p.out_expert + i * p.out_stride + j);
        tile.out.rows = p.k - i;
        tile.out.columns = p.n - j;
    } else {
        const GridPlace place = place_in_band(blockIdx.x, row_tiles, columns);
        ptx::ExpertTile own{.expert = 0, .rows = p.m, .tile = place.row};
        if (p.split_sizes) own = ptx::find_expert_tile(sizes, kTile, place.row);
        if (own.expert < 0) return false;
        const int64_t i = own.first + own.tile * kTile, j = place.column * kTile;
        const int64_t rows = own.rows - own.tile * kTile;
        const int64_t column = kind == GemmKind::Forward ? j * p.b_stride : j;
        tile.a = {at<A>(p.a, i * p.a_stride), p.a_stride, rows, p.k, p.a_aligned};
        tile.b = {at<B>(p.b, own.expert * p.b_expert + column), p.b_stride, p.n - j, p.k, p.b_aligned};
        tile.out.data = out_at(p, i * p.out_stride + j);
        tile.out.rows = rows;
        tile.out.columns = p.n - j;
        if (p.bias) {
            tile.out.bias = static_cast<const char*>(p.bias) +
                            (own.expert * p.bias_stride + j) * (p.bias_is_bf16 ? 2 : 4);
            tile.out.scale = p.bias_scale ? p.bias_scale + i : nullptr;
        }
    }
    return true;
}

template <GemmKind kind, bool kPromote>
__global__ void __launch_bounds__(kThreads) gemm_mma_any(AnyProducts p, int64_t row_tiles) {
    extern __shared__ __align__(128) char shared[];
    Tile<__nv_bfloat16, __nv_bfloat16> tile;
    if (!find_tile<kind>(p, row_tiles, tile)) return;
    mma_tile<kind == GemmKind::Wgrad, kind != GemmKind::Forward, kPromote>(tile.a, tile.b, tile.out, shared);
}

template <GemmKind kind, class A, class B>
__global__ void __launch_bounds__(kThreads) gemm_fma_any(AnyProducts p, int64_t row_tiles) {
    __shared__ __align__(16) FmaShared shared;
    Tile<A, B> tile;
    if (!find_tile<kind>(p, row_tiles, tile)) return;
    fma_tile<kind == GemmKind::Wgrad, kind != GemmKind::Forward>(tile.a, tile.b, tile.out, shared);
}

using Kernel = void (*)(AnyProducts, int64_t);

template <GemmKind kind>
Kernel kernel_for(DType a, DType b, DType out) {
    const bool a_bf16 = a == DType::BF16, b_bf16 = b == DType::BF16;
    if (a_bf16 && b_bf16) {
        return out == DType::BF16 ? gemm_mma_any<kind, false> : gemm_mma_any<kind, true>;
    }
    if (a_bf16) return gemm_fma_any<kind, __nv_bfloat16, float>;
    return b_bf16 ? gemm_fma_any<kind, float, __nv_bfloat16> : gemm_fma_any<kind, float, float>;
}

// Every row, and every expert's first, begins on a multiple of `bytes`.
bool rows_begin_on(const View& view, int64_t bytes) {
    const int64_t element = bytes_of(view.dtype, 1);
    bool all = reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(bytes) == 0;
    for (int axis = 0; axis + 1 < view.rank(); ++axis)
        all = all && view.stride[static_cast<size_t>(axis)] * element % bytes == 0;
    return all;
}

AnyProducts products_of(const AnyProductsArgs& args) {
    const bool wgrad = args.kind == GemmKind::Wgrad;
    const View &a = args.a, &b = args.b, &out = args.out;
    AnyProducts p;
    p.a = a.data;
    p.b = b.data;
    p.out = out.data;
    p.a_stride = a.stride[0];
    p.b_stride = b.stride[b.rank() == 3 ? 1 : 0];
    p.out_stride = out.stride[out.rank() == 3 ? 1 : 0];
    if (b.rank() == 3) p.b_expert = b.stride[0];
    if (out.rank() == 3) p.out_expert = out.stride[0];
    p.m = a.size(0);
    p.k = a.size(1);
    p.n = out.size(out.rank() - 1);
    if (args.split_sizes) {
        p.split_sizes = args.split_sizes.data;
        p.split_is_i64 = args.split_sizes.dtype == DType::I64;
        p.experts = wgrad ? out.size(0) : b.size(0);
    }
    if (args.bias) {
        p.bias = args.bias.data;
        p.bias_stride = args.bias.stride[0];
        p.bias_is_bf16 = args.bias.dtype == DType::BF16;
        if (args.bias_scale) p.bias_scale = args.bias_scale.as<float>();
    }
    p.out_is_bf16 = out.dtype == DType::BF16;
    p.accumulate = args.accumulate;
    p.a_aligned = rows_begin_on(a, 16);
    p.b_aligned = rows_begin_on(b, 16);
    p.out_paired = rows_begin_on(out, 2 * bytes_of(out.dtype, 1));
    return p;
}

}  // namespace

void any_products(const AnyProductsArgs& args, const Exec& exec) {
    const AnyProducts p = products_of(args);
    if (p.experts == 0) return;
    const bool mma = args.a.dtype == DType::BF16 && args.b.dtype == DType::BF16;
    const bool wgrad = args.kind == GemmKind::Wgrad;
    const int64_t row_tiles = wgrad ? tiles_of(p.k) : p.m == 0 ? 0 : most_row_tiles(p);
    const Kernel kernel = wgrad ? kernel_for<GemmKind::Wgrad>(args.a.dtype, args.b.dtype, args.out.dtype)
                          : args.kind == GemmKind::Forward
                              ? kernel_for<GemmKind::Forward>(args.a.dtype, args.b.dtype, args.out.dtype)
                              : kernel_for<GemmKind::Dgrad>(args.a.dtype, args.b.dtype, args.out.dtype);
    const dim3 grid = grid_for(row_tiles * tiles_of(p.n) * (wgrad ? p.experts : 1), 1);
    launch(args.name, kernel, {grid, dim3(kThreads), mma ? size_t{kMmaSharedBytes} : 0}, exec, p, row_tiles);
}

void gemm(const GemmArgs& args, const Exec& exec) {
    any_products({.name = "gemm",
                  .kind = args.kind,
                  .a = args.a,
                  .b = args.b,
                  .out = args.out,
                  .split_sizes = {},
                  .bias = {},
                  .bias_scale = {},
                  .accumulate = args.beta != 0},
                 exec);
}

}  // namespace moebius::ops::cuda
