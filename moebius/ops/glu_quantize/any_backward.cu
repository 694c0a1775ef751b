// Backward on every card from sm_80, one read of what there is: the pre-activation's gradient goes to codes
// in both directions and is never in memory in bf16. The bits are those of scaled_glu_backward followed by
// quantize, dscales' too.
//
// A tile (any_pairs.cuh) is 128 gates and the 128 ups of the same columns. The next rows are on their way
// while one is worked on, those of the next tile while this one is finished.
//
// dscales: scaled_glu_backward's half-warps have 128 columns side by side at a time. A block here takes those
// of one of its warps, every b.turns-th tile, so that a lane's sums are those of a thread, and blocks that
// run together read what lies together.
#include <algorithm>

#include "moebius/ops/glu_quantize/cuda.h"
#include "moebius/ops/quantize/any_pairs.cuh"
#include "moebius/ops/swiglu/cuda.h"
#include "moebius/ptx/dynamic_shared.h"
#include "moebius/ptx/glu.h"
#include "moebius/ptx/rows_in_use.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

using namespace pairs;

constexpr int kAhead = 2;  // steps of two rows that are on their way
static_assert(kSteps % kAhead == 0);

struct BackwardShared {
    Shared tile;
    float dscales[2][kTile][16];  // a lane's sums, of a half-warp's columns each
};

struct Backward {
    const __nv_bfloat16 *x, *dy;
    int64_t x_stride, dy_stride;
    const float* scales;  // (capacity), null: 1
    float* dscales;       // (turns, capacity), null: not asked for
    ExpertSizes sizes;
    int64_t rows, intermediate;
    int turns;  // warps of scaled_glu_backward's block
    ptx::GluConstants constants;
    __device__ int64_t step() const { return int64_t{turns} * kTile; }  // from a block's tile to its next
};

// Eight neighbours of a row's gates, ups and gradients of the activation, and the row's scale.
struct Loaded {
    uint4 gate, up, dy;
    float scale;
};

// Reads a thread's rows of the turn's tiles, one after the other.
class Reader {
  public:
    __device__ Reader(const Backward& b, const Place& at)
        : b_(b), column_(at.column), row_(at.row_of(0)), rows_(at.rows) {
        const int64_t row = at.first + row_, column = column_ + 8 * at.chunk;
        x_ = b.x + row * b.x_stride + column;
        dy_ = b.dy + row * b.dy_stride + column;
        scales_ = b.scales + (b.scales == nullptr ? 0 : row);
        end();
    }
    __device__ __forceinline__ Loaded next() {
        const bool exists = row_ < rows_;
        Loaded loaded;
        loaded.gate = ptx::load_ahead_if(exists, x_);
        loaded.up = ptx::load_ahead_if(exists, x_ + b_.intermediate);
        loaded.dy = ptx::load_ahead_if(exists, dy_);
        loaded.scale = !exists ? 0.0f : b_.scales == nullptr ? 1.0f : __ldg(scales_);
        x_ += 2 * b_.x_stride;
        dy_ += 2 * b_.dy_stride;
        scales_ += 2;
        row_ += 2;
        return loaded;
    }
    // After the tile's last row: to the next tile.
    __device__ __forceinline__ void advance() {
        const int64_t step = b_.step();
        x_ += step - kWarpRows * b_.x_stride;
        dy_ += step - kWarpRows * b_.dy_stride;
        scales_ -= kWarpRows;
        row_ -= kWarpRows;
        column_ += step;
        end();
    }

  private:
    __device__ __forceinline__ void end() {
        if (column_ >= b_.intermediate) rows_ = 0;
    }

    const Backward& b_;
    const __nv_bfloat16 *x_, *dy_;
    const float* scales_;
    int64_t column_;
    int row_, rows_;
};

// The gradients of gates and ups, rounded. Adds the terms of dscale to `dscale`, one after the other.
template <bool kClamped>
__device__ __forceinline__ Eights gradients_of(const Loaded& loaded, const ptx::GluConstants& constants,
                                               float& dscale) {
    const uint32_t* gates = &loaded.gate.x;
    const uint32_t* ups = &loaded.up.x;
    const uint32_t* dys = &loaded.dy.x;
    float sigmoids[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float gate = i % 2 == 0 ? ptx::low_bf16(gates[i / 2]) : ptx::high_bf16(gates[i / 2]);
        sigmoids[i] = ptx::sigmoid_argument<kClamped>(gate, constants);
    }
    ptx::sigmoids(sigmoids);
    Eights result;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const auto of = [&](int half) {
            const auto number = [&](uint32_t pair) {
                return half == 0 ? ptx::low_bf16(pair) : ptx::high_bf16(pair);
            };
            const ptx::GluPair pair = ptx::glu_pair_of<kClamped>(sigmoids[2 * i + half], number(gates[i]),
                                                                 number(ups[i]), constants);
            const ptx::GluGradients g = ptx::glu_backward<kClamped>(pair, number(dys[i]), loaded.scale);
            dscale += g.dscale;
            return g;
        };
        const ptx::GluGradients low = of(0), high = of(1);
        result.pairs[0][i] = ptx::pack_bf16(low.dgate, high.dgate);
        result.pairs[1][i] = ptx::pack_bf16(low.dup, high.dup);
    }
    return result;
}

// The tile's rows. `ahead`: its first steps, and the next tile's after. `dscale`: the thread's sum of its
// first.
template <bool kClamped, Blocks kBlocks, bool kE5M2>
__device__ __forceinline__ void write_rows(const Quantize& q, const Backward& b, const Place& at,
                                           Reader& reader, Loaded (&ahead)[kAhead], Eights& most,
                                           float tensor_scale, float* dscale, const Shared& shared) {
    RowWriter<kBlocks, kE5M2> writer(q, at, shared);
#pragma unroll 1
    for (int begin = 0; begin < kSteps; begin += kAhead) {
        if (begin == kSteps - kAhead) reader.advance();
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const bool exists = at.exists(begin + i);
            float sum = *dscale;
            Eights gradients = gradients_of<kClamped>(ahead[i], b.constants, sum);
            *dscale = sum;
            dscale += 2 * 16;
            ahead[i] = reader.next();
            if (kClamped && !exists) gradients = {};  // whose zeros may be negative
            writer.put(q, at, exists, gradients, most, tensor_scale);
        }
    }
}

// The sums of a row's lanes, as ptx::warp_sum makes them of a warp of scaled_glu_backward's block.
__device__ __forceinline__ void write_dscales(const Backward& b, const Place& at, int turn,
                                              const BackwardShared& shared) {
    __syncwarp();
    for (int i = 0; i < kWarpRows; ++i) {
        const int row = kWarpRows * at.warp + i;
        const float sum = ptx::warp_sum(shared.dscales[at.half][row][at.chunk]);
        if (at.lane == 0 && row < at.rows) b.dscales[turn * b.rows + at.first + row] = sum;
    }
}

// A block takes a turn of one tile of rows.
template <bool kClamped, Blocks kBlocks, bool kE5M2>
__global__ void __launch_bounds__(kTileThreads, 2)
    scaled_glu_backward_quantize_pairs_any(const Quantize q, const Backward b) {
    auto& shared = *ptx::dynamic_shared<BackwardShared>();
    if (kBlocks == Blocks::Tensor && blockIdx.x == 0) tiles::store_tensor_scales(q);
    const int turn = static_cast<int>(blockIdx.x) % b.turns;
    Place at;
    if (!find_place(b.sizes, static_cast<int>(blockIdx.x) / b.turns, at)) return;
    at.apart = b.intermediate;
    at.column = turn * kTile;
    Reader reader(b, at);
    Loaded ahead[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) ahead[n] = reader.next();
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int n = 0; n < 2; ++n) shared.dscales[n][at.row_of(step)][at.chunk] = 0.0f;
    }
    const float tensor_scale = kBlocks == Blocks::Tensor ? tiles::scale_of_expert(q, at.expert).scale : 1.0f;
    float amax = 0.0f;
    Eights most{};
    for (int n = 0; at.column < b.intermediate; at.column += b.step(), n ^= 1) {
        write_rows<kClamped, kBlocks, kE5M2>(q, b, at, reader, ahead, most, tensor_scale,
                                             &shared.dscales[n][at.row_of(0)][at.chunk], shared.tile);
        finish_tile<kBlocks, kE5M2>(q, at, most, amax, tensor_scale, shared.tile);
    }
    if (b.dscales != nullptr) write_dscales(b, at, turn, shared);
    observe<kBlocks>(q, at, most, amax);
}

template <bool kClamped>
__global__ void __launch_bounds__(kTileThreads, 2)
    scaled_glu_backward_amax_pairs_any(const Backward b, unsigned* amax) {
    constexpr int kTogether = 4;  // steps
    Place at;
    if (!find_place(b.sizes, static_cast<int>(blockIdx.x) / b.turns, at)) return;
    at.column = static_cast<int>(blockIdx.x) % b.turns * kTile;
    Eights most{};
    Reader reader(b, at);
    for (; at.column < b.intermediate; at.column += b.step()) {
#pragma unroll 1
        for (int begin = 0; begin < kSteps; begin += kTogether) {
            Loaded loaded[kTogether];
#pragma unroll
            for (Loaded& row : loaded) row = reader.next();
#pragma unroll
            for (const Loaded& row : loaded) {
                float unused = 0;
                magnitudes_of(gradients_of<kClamped>(row, b.constants, unused), most);
            }
        }
        reader.advance();
    }
    tiles::observe(amax, at.expert, largest(most));
}

// What ptx::block_sum makes of the turns' sums.
constexpr int kMostTurns = 8;
__global__ void __launch_bounds__(kTileThreads)
    sum_turns_any(const float* turns, float* dscales, const ptx::SplitSizes sizes) {
    const int64_t row = int64_t{blockIdx.x} * kTileThreads + threadIdx.x;
    if (row >= ptx::rows_in_use(sizes)) return;
    float part[kMostTurns];
#pragma unroll
    for (int n = 0; n < kMostTurns; ++n) part[n] = turns[n * sizes.capacity + row] + 0.0f;
#pragma unroll
    for (int step = kMostTurns / 2; step > 0; step /= 2) {
#pragma unroll
        for (int n = 0; n < step; ++n) part[n] += part[n + step];
    }
    dscales[row] = part[0];
}

}  // namespace

void scaled_glu_backward_quantize_pairs(const ScaledGluBackwardQuantizeArgs& a, const Exec& exec) {
    make_activation_again(a, exec);
    const int64_t rows = a.x.size(0), experts = a.split_sizes.size(0);
    Backward b{};
    b.x = static_cast<const __nv_bfloat16*>(a.x.data);
    b.dy = static_cast<const __nv_bfloat16*>(a.dy.data);
    b.x_stride = a.x.stride[0];
    b.dy_stride = a.dy.stride[0];
    b.scales = device_data<float>(a.scales);
    b.rows = rows;
    b.intermediate = a.dy.size(1);
    b.turns = scaled_glu_backward_warps(b.intermediate, kVector<__nv_bfloat16>);
    b.constants = {a.options.limit, a.options.alpha, a.options.offset};
    const bool finds = finds_amax(a.dx), sums = a.dscales && b.turns > 1;
    const size_t amax_bytes = finds ? static_cast<size_t>(experts) * sizeof(float) : 0;
    const Scratch found("glu_quantize.amax", amax_bytes, exec),
        turns("glu_quantize.dscales", sums ? static_cast<size_t>(b.turns * rows) * sizeof(float) : 0, exec);
    MOEBIUS_CHECK(b.turns == 1 || b.turns == kMostTurns, "scaled_glu_backward has ", b.turns, " warps");
    b.dscales = sums ? turns.as<float>() : device_data<float>(a.dscales);
    const View amax = finds ? View(found.as<void>(), DType::F32, {experts}) : View();
    if (finds) zero(found.as<void>(), amax_bytes, exec);
    Quantize q = tiles::quantize_of(a.dx, amax, a.x.dtype, false, exec);
    q.source = source_of({.values = a.x, .split_sizes = a.split_sizes});
    b.sizes = q.source.sizes;
    const int64_t blocks = (rows / kTile + experts) * b.turns;
    // A scale of a tensor is written even where there is no expert's row.
    const LaunchShape shape{grid_for(std::max<int64_t>(blocks, 1), 1), dim3(kTileThreads),
                            sizeof(BackwardShared)};
    with_codes((a.dx.row ? a.dx.row : a.dx.column).format, [&](auto kind, auto e5m2) {
        const auto run = [&](auto clamped) {
            if (finds) {
                launch("scaled_glu_backward_amax", scaled_glu_backward_amax_pairs_any<clamped()>,
                       {shape.grid, shape.block}, exec, b, found.as<unsigned>());
            }
            launch("scaled_glu_backward_quantize",
                   scaled_glu_backward_quantize_pairs_any<clamped(), kind(), e5m2()>, shape, exec, q, b);
        };
        a.options.kind == GluKind::SwiGlu ? run(std::false_type{}) : run(std::true_type{});
    });
    if (sums) {
        launch("scaled_glu_backward_quantize.dscales", sum_turns_any,
               {grid_for(rows, kTileThreads), dim3(kTileThreads)}, exec, turns.as<float>(),
               device_data<float>(a.dscales), b.sizes.split);
    }
}

}  // namespace moebius::ops::cuda
