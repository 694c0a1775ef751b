// Backward on every card from sm_80, one read of what there is: the pre-activation's gradient goes to codes
// in both directions, and the activation column-wise if it is asked for; neither is ever in memory in bf16.
// The bits are those of scaled_glu_backward followed by quantize, dscales' too.
//
// A tile (any_pairs.cuh) is 128 gates and the 128 ups of the same columns. The next rows are on their way
// while one is worked on, those of the next tile while this one is finished.
//
// dscales: scaled_glu_backward's half-warps have 128 columns side by side at a time. A block here takes those
// of one of its warps, every b.turns-th tile, so that a lane's sums are those of a thread, and blocks that
// run together read what lies together. Where the activation leaves no room in shared memory for the sums of
// both halves, a block takes the first half's tiles first and puts its sums away.
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

using Activation = SharedOf<1>;
struct NoActivation {};
template <bool kAgain>
struct BackwardShared {
    Shared tile;
    std::conditional_t<kAgain, Activation, NoActivation> activation;
    float dscales[kAgain ? 1 : 2][kTile][16];  // a lane's sums, of a half-warp's columns each
};
static_assert(2 * (sizeof(BackwardShared<true>) + 1024) <= 228 * 1024, "two blocks an SM");

struct Backward {
    const __nv_bfloat16 *x, *dy;
    int64_t x_stride, dy_stride;
    const float* scales;  // (capacity), null: 1
    float* dscales;       // (turns, capacity), null: not asked for
    float* put_away;      // (blocks, kTile, 16): a block's sums of the first half's tiles
    ExpertSizes sizes;
    int64_t rows, intermediate;
    int turns;  // warps of scaled_glu_backward's block
    ptx::GluConstants constants;

    __host__ __device__ int64_t step() const {
        return int64_t{turns} * kTile;
    }  // from a half's tile to the other's
    // The tile that a block takes after this one, at `intermediate` or beyond: none. The halves by turns, or
    // one half after the other.
    template <bool kHalves>
    __device__ int64_t after(int64_t column, int turn) const {
        if constexpr (!kHalves) return column + step();
        if (const int64_t next = column + 2 * step(); next < intermediate) return next;
        return second(column, turn) ? intermediate : (turn + turns) * int64_t{kTile};
    }
    __device__ bool second(int64_t column, int turn) const {
        return (column / kTile - turn) / turns % 2 != 0;
    }
};

// Eight neighbours of a row's gates, ups and gradients of the activation, and the row's scale.
struct Loaded {
    uint4 gate, up, dy;
    float scale;
};

// Reads a thread's rows of the turn's tiles, one after the other.
template <bool kHalves>
class Reader {
  public:
    __device__ Reader(const Backward& b, const Place& at, int turn)
        : b_(b), column_(at.column), turn_(turn), row_(at.row_of(0)), rows_(at.rows) {
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
        const int64_t next = b_.after<kHalves>(column_, turn_), step = next - column_;
        x_ += step - kWarpRows * b_.x_stride;
        dy_ += step - kWarpRows * b_.dy_stride;
        scales_ -= kWarpRows;
        row_ -= kWarpRows;
        column_ = next;
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
    int turn_, row_, rows_;
};

// The gradients of gates and ups and the activation, rounded. Adds the terms of dscale to `dscale`, one after
// the other.
template <bool kClamped>
__device__ __forceinline__ Eights gradients_of(const Loaded& loaded, const ptx::GluConstants& constants,
                                               float& dscale, EightsOf<1>& activation) {
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
        activation.pairs[0][i] = ptx::pack_bf16(low.activation, high.activation);
    }
    return result;
}

// The tile's rows. `ahead`: its first steps, and the next tile's after. `dscale`: the thread's sum of its
// first. `most_active`: of the activation.
template <bool kClamped, Blocks kBlocks, bool kE5M2, bool kAgain>
__device__ __forceinline__ void write_rows(const Quantize& q, const Backward& b, const Place& at,
                                           Reader<kAgain>& reader, Loaded (&ahead)[kAhead], Eights& most,
                                           EightsOf<1>& most_active, float tensor_scale, float* dscale,
                                           const BackwardShared<kAgain>& shared) {
    RowWriter<kBlocks, kE5M2> writer(q, at, shared.tile);
    uint32_t place = 0;
    if constexpr (kAgain) place = place_of(shared.activation, at.row_of(0), at.chunk);
#pragma unroll 1
    for (int begin = 0; begin < kSteps; begin += kAhead) {
        if (begin == kSteps - kAhead) reader.advance();
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            const bool exists = at.exists(begin + i);
            float sum = *dscale;
            EightsOf<1> activation;
            Eights gradients = gradients_of<kClamped>(ahead[i], b.constants, sum, activation);
            *dscale = sum;
            dscale += 2 * 16;
            ahead[i] = reader.next();
            if (kClamped && !exists) {  // whose zeros may be negative
                gradients = {};
                activation = {};
            }
            if constexpr (kAgain) {
                if constexpr (kBlocks != Blocks::Tensor) magnitudes_of(activation, most_active);
                const uint32_t(&p)[4] = activation.pairs[0];
                ptx::store_shared(place, uint4{p[0], p[1], p[2], p[3]});
                place += 2 * Activation::kRowBytes;
            }
            writer.put(q, at, exists, gradients, most, tensor_scale);
        }
    }
}

// A thread's sums, to begin with and of the first half when the second begins.
template <bool kAgain>
__device__ __forceinline__ void clear_dscales(const Place& at, BackwardShared<kAgain>& shared,
                                              float* put_away = nullptr) {
    for (int step = 0; step < kSteps; ++step) {
        const int row = at.row_of(step);
        for (auto& half : shared.dscales) {
            float& sum = half[row][at.chunk];
            if (put_away != nullptr) put_away[row * 16 + at.chunk] = sum;
            sum = 0.0f;
        }
    }
}

// The sums of a row's lanes, as ptx::warp_sum makes them of a warp of scaled_glu_backward's block.
// `put_away`: the first half's, if the second had tiles.
template <bool kAgain>
__device__ __forceinline__ void write_dscales(const Backward& b, const Place& at, int turn,
                                              const BackwardShared<kAgain>& shared, const float* put_away) {
    __syncwarp();
    for (int i = 0; i < kWarpRows; ++i) {
        const int row = kWarpRows * at.warp + i;
        float own;
        if constexpr (kAgain) {
            own = shared.dscales[0][row][at.chunk];
            // Without a second half these are the first's.
            if (put_away != nullptr && at.half == 0) own = put_away[row * 16 + at.chunk];
            if (put_away == nullptr && at.half == 1) own = 0.0f;
        } else {
            own = shared.dscales[at.half][row][at.chunk];
        }
        const float sum = ptx::warp_sum(own);
        if (at.lane == 0 && row < at.rows) b.dscales[turn * b.rows + at.first + row] = sum;
    }
}

// A block takes a turn of one tile of rows. `active`: what the activation becomes.
template <bool kClamped, Blocks kBlocks, bool kE5M2, bool kAgain>
__global__ void __launch_bounds__(kTileThreads, 2)
    scaled_glu_backward_quantize_pairs_any(const Quantize q, const Quantize active, const Backward b) {
    auto& shared = *ptx::dynamic_shared<BackwardShared<kAgain>>();
    if (kBlocks == Blocks::Tensor && blockIdx.x == 0) {
        tiles::store_tensor_scales(q);
        if constexpr (kAgain) tiles::store_tensor_scales(active);
    }
    const int turn = static_cast<int>(blockIdx.x) % b.turns;
    Place at;
    if (!find_place<kBlocks == Blocks::Mx>(b.sizes, static_cast<int>(blockIdx.x) / b.turns, at)) return;
    at.apart = b.intermediate;
    at.column = turn * kTile;
    Reader<kAgain> reader(b, at, turn);
    Loaded ahead[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) ahead[n] = reader.next();
    clear_dscales(at, shared);
    float tensor_scale = 1.0f, active_scale = 1.0f;
    if constexpr (kBlocks == Blocks::Tensor) {
        tensor_scale = tiles::scale_of_expert(q, at.expert).scale;
        if constexpr (kAgain) active_scale = tiles::scale_of_expert(active, at.expert).scale;
    }
    float amax = 0.0f;
    Eights most{};
    EightsOf<1> most_active{};
    float* put_away = nullptr;
    for (int n = 0; at.column < b.intermediate;) {
        write_rows<kClamped, kBlocks, kE5M2, kAgain>(q, b, at, reader, ahead, most, most_active, tensor_scale,
                                                     &shared.dscales[n][at.row_of(0)][at.chunk], shared);
        if constexpr (kAgain) {
            // Before finish_tile, whose last barrier frees the activation's place too.
            float unused = 0;
            finish_columns<kBlocks, false>(active, at, most_active, unused, active_scale, shared.activation);
        }
        finish_tile<kBlocks, kE5M2>(q, at, most, amax, tensor_scale, shared.tile);
        const int64_t next = b.after<kAgain>(at.column, turn);
        if constexpr (kAgain) {
            if (next < b.intermediate && b.second(next, turn) && !b.second(at.column, turn)) {
                put_away = b.put_away + int64_t{blockIdx.x} * (kTile * 16);
                clear_dscales(at, shared, put_away);
            }
        } else {
            n ^= 1;
        }
        at.column = next;
    }
    if (b.dscales != nullptr) write_dscales(b, at, turn, shared, put_away);
    observe<kBlocks>(q, at, most, amax);
}

template <bool kClamped>
__global__ void __launch_bounds__(kTileThreads, 2)
    scaled_glu_backward_amax_pairs_any(const Backward b, unsigned* amax) {
    constexpr int kTogether = 4;  // steps
    Place at;
    if (!find_place(b.sizes, static_cast<int>(blockIdx.x) / b.turns, at)) return;
    const int turn = static_cast<int>(blockIdx.x) % b.turns;
    at.column = turn * kTile;
    Eights most{};
    Reader<false> reader(b, at, turn);
    for (; at.column < b.intermediate; at.column += b.step()) {
#pragma unroll 1
        for (int begin = 0; begin < kSteps; begin += kTogether) {
            Loaded loaded[kTogether];
#pragma unroll
            for (Loaded& row : loaded) row = reader.next();
#pragma unroll
            for (const Loaded& row : loaded) {
                float unused = 0;
                EightsOf<1> activation;
                magnitudes_of(gradients_of<kClamped>(row, b.constants, unused, activation), most);
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
    const bool again = static_cast<bool>(a.activation.column), halves = again && b.intermediate > b.step();
    const Scratch away("glu_quantize.put_away",
                       halves ? static_cast<size_t>(blocks) * kTile * 16 * sizeof(float) : 0, exec);
    b.put_away = away.as<float>();
    Quantize active{};
    if (again) {
        active = tiles::quantize_of(a.activation, View(), a.x.dtype, false, exec);
        active.source = q.source;
        active.source.columns = b.intermediate;
    }
    // A scale of a tensor is written even where there is no expert's row.
    const dim3 grid = grid_for(std::max<int64_t>(blocks, 1), 1), block(kTileThreads);
    with_codes((a.dx.row ? a.dx.row : a.dx.column).format, [&](auto kind, auto e5m2) {
        const auto run = [&](auto clamped, auto with_activation) {
            if (finds) {
                launch("scaled_glu_backward_amax", scaled_glu_backward_amax_pairs_any<clamped()>,
                       {grid, block}, exec, b, found.as<unsigned>());
            }
            launch("scaled_glu_backward_quantize",
                   scaled_glu_backward_quantize_pairs_any<clamped(), kind(), e5m2(), with_activation()>,
                   {grid, block, sizeof(BackwardShared<with_activation()>)}, exec, q, active, b);
        };
        const auto with_again = [&](auto clamped) {
            again ? run(clamped, std::true_type{}) : run(clamped, std::false_type{});
        };
        a.options.kind == GluKind::SwiGlu ? with_again(std::false_type{}) : with_again(std::true_type{});
    });
    if (sums) {
        launch("scaled_glu_backward_quantize.dscales", sum_turns_any,
               {grid_for(rows, kTileThreads), dim3(kTileThreads)}, exec, turns.as<float>(),
               device_data<float>(a.dscales), b.sizes.split);
    }
}

}  // namespace moebius::ops::cuda
