// Backward on Hopper: the down product's dgrad, whose finishing warps read C and write dC, the activation
// once more and its part of the scales' gradient; then both weights' gradients and the gate-up product's
// dgrad. Scratch: dC (M, 2I) unless it may be written over C, the activation (M, I), and a float a row and
// 256 columns of I.
#include "moebius/ops/grouped_mlp/cuda.h"
#include "moebius/ops/grouped_mlp/sm90.h"
#include "moebius/ops/grouped_mlp/sm90_finish.cuh"
#include "moebius/ptx/split_sizes.h"
#include "moebius/runtime/without_cost.h"

namespace moebius::ops::sm90 {
namespace {

using DownTraits = ProductTraits<false, true, false, false>;

// As ptx::load_ahead_if, of memory that this thread alone may write afterwards: not by the way of read-only
// data. Where it does not exist, the value is none.
__device__ __forceinline__ Eight load_own_if(bool exists, const void* address) {
    uint4 value;
    asm volatile(
        "{\n"
        ".reg .pred exists;\n"
        "setp.ne.b32 exists, %5, 0;\n"
        "@exists ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(address), "r"(static_cast<int>(exists)));
    return value;
}

// The sums are the activation's gradient, rounded as the unfused chain stores it.
template <bool kClamped>
struct FinishGluBackward : PlainEpilogue {
    static constexpr int kFinishers = 7;
    struct Args {
        Matrix c, dc;  // gates, `columns` further on ups
        Matrix activation;
        int columns;          // of the activation
        const float* scales;  // (capacity), null: 1
        float* partial;       // (tiles of I, capacity): Σ of a tile's columns; null: not asked
        int64_t capacity;
        ptx::GluConstants constants;
    };
    struct Pair {
        Eight gate, up;
    };

    // A warp a row. C comes from global memory to registers some rows ahead. Registers of a load under way
    // are not moved: that would wait for it. dC may be C: eight columns of a row are read and written by one
    // thread alone, and what it writes is made of what it read.
    __device__ static void finish(const Args& args, const StagedTile& tile) {
        constexpr int kAhead = kClamped ? 1 : 2;  // rows; more would be spilled
        const int column = tile.column + 8 * tile.lane;
        const bool exists = column < args.columns;
        const int first_row = tile.row + tile.warp;
        const __nv_bfloat16* c = args.c.at(first_row, column);  // of the next row to ask for
        __nv_bfloat16* dc = args.dc.at(first_row, column);      // of the next to write
        __nv_bfloat16* activation = args.activation.at(first_row, column);
        const auto load = [&](int row) {
            const bool there = exists && row < tile.rows;
            const Pair pair{load_own_if(there, c), load_own_if(there, c + args.columns)};
            c += kFinishers * args.c.stride;
            return pair;
        };
        Pair ahead[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) ahead[i] = load(tile.warp + kFinishers * i);
        __syncwarp();
        const RowScales scales(args.scales, tile);
        tile.wait();
#pragma unroll 1
        for (int first = tile.warp; first < tile.rows; first += kFinishers * kAhead) {
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                const int row = first + kFinishers * i;
                if (row >= tile.rows) break;
                const uint32_t staged = tile.at<uint32_t>(row, tile.lane);
                const Gradients gradients =
                    gradients_of(ahead[i], ptx::load_shared(staged), scales.of(row), args.constants);
                ahead[i] = load(row + kFinishers * kAhead);
                if (exists) {
                    gradients.dgate.store(dc);
                    gradients.dup.store(dc + args.columns);
                    gradients.activation.store(activation);
                }
                dc += kFinishers * args.dc.stride;
                activation += kFinishers * args.activation.stride;
                if (args.partial != nullptr)
                    ptx::store_shared(staged, exists ? gradients.dscale : 0.0f, 0.0f);
            }
        }
        if (args.partial == nullptr) return;
        __syncwarp();  // the terms lie where dy lay
        int row = tile.warp + kFinishers * tile.lane;
        asm volatile("" : "+r"(row));  // or the chunks' places are kept in registers from tile to tile
        if (row >= tile.rows) return;
        float sum = 0.0f;
#pragma unroll 8
        for (int chunk = 0; chunk < kTileColumns / 8; ++chunk)
            sum = __fadd_rn(sum, ptx::load_shared_floats(tile.at<uint32_t>(row, chunk)).x);
        args.partial[tile.column / kTileColumns * args.capacity + tile.row + row] = sum;
    }

    // Of eight columns of a row. dscale: their part of the scale's gradient.
    struct Gradients {
        Eight dgate, dup, activation;
        float dscale;
    };
    __device__ __forceinline__ static Gradients gradients_of(const Pair& c, const Eight& dy, float scale,
                                                             const ptx::GluConstants& constants) {
        float sigmoids[8];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t g = c.gate.pairs[i];
            sigmoids[2 * i] = ptx::sigmoid_argument<kClamped>(ptx::low_bf16(g), constants);
            sigmoids[2 * i + 1] = ptx::sigmoid_argument<kClamped>(ptx::high_bf16(g), constants);
        }
        ptx::sigmoids(sigmoids);
        Gradients of_all;
        of_all.dscale = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const auto backward = [&](float sigmoid, float gate, float up, float upstream) {
                const auto pair = ptx::glu_pair_of<kClamped>(sigmoid, gate, up, constants);
                const ptx::GluGradients gradients = ptx::glu_backward<kClamped>(pair, upstream, scale);
                of_all.dscale = __fadd_rn(of_all.dscale, gradients.dscale);
                return gradients;
            };
            const uint32_t g = c.gate.pairs[i], u = c.up.pairs[i], d = dy.pairs[i];
            const auto low = backward(sigmoids[2 * i], ptx::low_bf16(g), ptx::low_bf16(u), ptx::low_bf16(d));
            const auto high =
                backward(sigmoids[2 * i + 1], ptx::high_bf16(g), ptx::high_bf16(u), ptx::high_bf16(d));
            of_all.dgate.pairs[i] = ptx::pack_bf16(low.dgate, high.dgate);
            of_all.dup.pairs[i] = ptx::pack_bf16(low.dup, high.dup);
            of_all.activation.pairs[i] = ptx::pack_bf16(low.activation, high.activation);
        }
        return of_all;
    }
};

// dscales: the tiles' sums of a row, in the tiles' order.
__global__ void __launch_bounds__(256)
    grouped_mlp_scale_gradients_sm90(const float* partial, int tiles, ptx::SplitSizes sizes, float* dscales) {
    int64_t rows = 0;
    for (int64_t e = static_cast<int64_t>(threadIdx.x % 32); e < sizes.experts; e += 32) rows += sizes[e];
    rows = __shfl_sync(~0u, ptx::inclusive_scan_warp(rows), 31);
    const int64_t row = int64_t{blockIdx.x} * 256 + threadIdx.x;
    if (row >= rows || row >= sizes.capacity) return;
    float sum = 0.0f;
    for (int tile = 0; tile < tiles; ++tile) sum += partial[tile * sizes.capacity + row];
    dscales[row] = sum;
}

template <bool kClamped>
void down_dgrad(const GroupedMlpBackwardArgs& a, const View& dc, const View& activation, const Exec& exec) {
    const int64_t rows = a.x.size(0), intermediate = a.down.size(2);
    const int64_t tiles = (intermediate + kTileColumns - 1) / kTileColumns;
    const Scratch partial("grouped_mlp.dscales",
                          a.dscales ? static_cast<size_t>(tiles * rows) * sizeof(float) : 0, exec);
    const typename FinishGluBackward<kClamped>::Args finish{
        .c = Matrix(a.c),
        .dc = Matrix(dc),
        .activation = Matrix(activation),
        .columns = static_cast<int>(intermediate),
        .scales = a.scales ? a.scales.as<float>() : nullptr,
        .partial = a.dscales ? partial.as<float>() : nullptr,
        .capacity = rows,
        .constants = {a.options.limit, a.options.alpha, a.options.offset}};
    const Product product{.a = a.dy,
                          .b = a.down,
                          .split_sizes = a.split_sizes,
                          .capacity = rows,
                          .columns = intermediate,
                          .depth = a.dy.size(1)};
    launch_product<DownTraits, FinishGluBackward<kClamped>>("grouped_mlp.down_dgrad", product, finish, exec);
    if (!a.dscales) return;
    const ptx::SplitSizes sizes{.data = a.split_sizes.data,
                                .is_i64 = a.split_sizes.dtype == DType::I64,
                                .experts = a.split_sizes.size(0),
                                .capacity = rows};
    launch("grouped_mlp.dscales", grouped_mlp_scale_gradients_sm90,
           {.grid = grid_for(rows, 256), .block = dim3(256)}, exec, partial.as<float>(),
           static_cast<int>(tiles), sizes, a.dscales.as<float>());
}

}  // namespace

void grouped_mlp_backward(const GroupedMlpBackwardArgs& a, const Exec& outer) {
    const int64_t rows = a.x.size(0), intermediate = a.down.size(2);
    const Exec exec = without_cost(outer);
    const auto bytes = [&](int64_t columns) {
        return static_cast<size_t>(bytes_of(DType::BF16, rows * columns));
    };
    const cuda::GradientOfC dc(a, exec);
    {
        const Scratch narrow("grouped_mlp.activation", bytes(intermediate), exec);
        const View activation(narrow.as<void>(), DType::BF16, {rows, intermediate});
        if (rows > 0 && a.options.kind == GluKind::SwiGlu) {
            down_dgrad<false>(a, dc, activation, exec);
        } else if (rows > 0) {
            down_dgrad<true>(a, dc, activation, exec);
        }
        cuda::gradient_of_down(a, activation, exec);
    }
    cuda::gradients_from_dc(a, dc, exec);
}

}  // namespace moebius::ops::sm90
