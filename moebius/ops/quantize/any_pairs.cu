// Rows in bf16 to codes on every card from sm_80: a tile (any_pairs.cuh) is 256 columns. The next rows are on
// their way while one is worked on, those of the next tile while this one is finished. A tile of rows is
// shared by f.turns blocks, each of which takes every f.turns-th of its tiles.
#include <algorithm>

#include "moebius/ops/quantize/any_pairs.cuh"
#include "moebius/ops/quantize/cuda.h"
#include "moebius/ptx/dynamic_shared.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

using namespace pairs;

constexpr int kColumns = 2 * kTile;
constexpr int kAhead = 4;  // steps of two rows that are on their way
static_assert(kSteps % kAhead == 0);

struct RowsShared {
    Shared tile;
    int64_t rows[kTile];  // where the tile's rows lie among the values
    float rstd[kTile];
};

// Eight neighbours of a row of both sides.
struct Loaded {
    uint4 side[2];
};

// Reads a thread's rows of the block's tiles, one after the other.
class Reader {
  public:
    __device__ Reader(const Source& source, const Place& at, int turns, const RowsShared& shared)
        : source_(source),
          rows_of_(shared.rows),
          column_(at.column),
          step_(int64_t{turns} * kColumns),
          first_(at.row_of(0)),
          row_(first_),
          rows_(at.rows) {
        x_ = static_cast<const __nv_bfloat16*>(source.values) + column_ + 8 * at.chunk;
        end();
    }
    __device__ __forceinline__ Loaded next() {
        const bool exists = row_ < rows_;
        const __nv_bfloat16* from = x_ + rows_of_[exists ? row_ : 0] * source_.stride;
        const Loaded loaded{{ptx::load_ahead_if(exists, from), ptx::load_ahead_if(exists, from + kTile)}};
        row_ += 2;
        return loaded;
    }
    // After the tile's last row: to the next tile.
    __device__ __forceinline__ void advance() {
        x_ += step_;
        column_ += step_;
        row_ = first_;
        end();
    }

  private:
    __device__ __forceinline__ void end() {
        if (column_ >= source_.columns) rows_ = 0;
    }

    const Source& source_;
    const int64_t* rows_of_;
    const __nv_bfloat16* x_;
    int64_t column_, step_;
    int first_, row_, rows_;
};

// A thread's columns of the norm's weight.
struct NormWeight {
    float side[2][8];
};
__device__ __forceinline__ void load_weight(const Source& source, const Place& at, NormWeight& weight) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int64_t column = at.column + side * kTile + 8 * at.chunk + i;
            weight.side[side][i] =
                source.norm_weight_is_float
                    ? static_cast<const float*>(source.norm_weight)[column]
                    : __bfloat162float(static_cast<const __nv_bfloat16*>(source.norm_weight)[column]);
        }
    }
}

template <bool kNorm>
__device__ __forceinline__ Eights numbers_of(const Loaded& loaded, float rstd, const NormWeight& weight) {
    Eights result;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const uint32_t* words = &loaded.side[side].x;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (kNorm) {
                const float* w = &weight.side[side][2 * i];
                result.pairs[side][i] =
                    ptx::pack_bf16(__fmul_rn(__fmul_rn(ptx::low_bf16(words[i]), rstd), w[0]),
                                   __fmul_rn(__fmul_rn(ptx::high_bf16(words[i]), rstd), w[1]));
            } else {
                result.pairs[side][i] = words[i];
            }
        }
    }
    return result;
}

template <Blocks kBlocks, bool kE5M2, bool kNorm>
__global__ void __launch_bounds__(kTileThreads, 2) quantize_pairs_any(const Quantize q, int turns) {
    auto& shared = *ptx::dynamic_shared<RowsShared>();
    if (kBlocks == Blocks::Tensor && blockIdx.x == 0) tiles::store_tensor_scales(q);
    Place at;
    if (!find_place<kBlocks == Blocks::Mx>(q.source.sizes, static_cast<int>(blockIdx.x) / turns, at)) return;
    at.apart = kTile;
    at.column = static_cast<int>(blockIdx.x) % turns * kColumns;
    if (threadIdx.x < at.rows) {
        const int64_t row = source_row(q.source, at.first + threadIdx.x);
        shared.rows[threadIdx.x] = row;
        if constexpr (kNorm) shared.rstd[threadIdx.x] = q.source.rstd[row];
    }
    __syncthreads();  // rows
    Reader reader(q.source, at, turns, shared);
    Loaded ahead[kAhead];
#pragma unroll
    for (Loaded& row : ahead) row = reader.next();
    const float tensor_scale = kBlocks == Blocks::Tensor ? tiles::scale_of_expert(q, at.expert).scale : 1.0f;
    float amax = 0.0f;
    Eights most{};
    NormWeight weight;
    for (; at.column < q.source.columns; at.column += int64_t{turns} * kColumns) {
        if constexpr (kNorm) load_weight(q.source, at, weight);
        RowWriter<kBlocks, kE5M2> writer(q, at, shared.tile);
#pragma unroll 1
        for (int begin = 0; begin < kSteps; begin += kAhead) {
            if (begin == kSteps - kAhead) reader.advance();
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                const bool exists = at.exists(begin + i);
                const float rstd = kNorm && exists ? shared.rstd[at.row_of(begin + i)] : 0.0f;
                const Eights numbers = numbers_of<kNorm>(ahead[i], rstd, weight);
                ahead[i] = reader.next();
                writer.put(q, at, exists, numbers, most, tensor_scale);
            }
        }
        finish_tile<kBlocks, kE5M2>(q, at, most, amax, tensor_scale, shared.tile);
    }
    observe<kBlocks>(q, at, most, amax);
}

}  // namespace

void quantize_pairs(const QuantizeArgs& args, const Exec& exec) {
    constexpr int64_t kMostTurns = 8;
    const MatrixShape matrix = matrix_of(args.source);
    // Of a block: finding its rows takes as long as reading some. A weight has fewer blocks, whose last ones
    // are to be short.
    const int64_t least_tiles = matrix.weight ? 2 : 4;
    Quantize q =
        tiles::quantize_of(target_of(args), args.amax, args.source.values.dtype, matrix.weight, exec);
    q.source = source_of(args.source);
    const auto turns =
        static_cast<int>(std::clamp<int64_t>(matrix.columns / kColumns / least_tiles, 1, kMostTurns));
    // A scale of a tensor is written even where there is no expert's row.
    const int64_t blocks = std::max<int64_t>((q.source.sizes.capacity / kTile + matrix.experts) * turns, 1);
    const LaunchShape shape{grid_for(blocks, 1), dim3(kTileThreads), sizeof(RowsShared)};
    with_codes((args.row ? args.row : args.column).format, [&](auto kind, auto e5m2) {
        const auto run = [&](auto norm) {
            launch("quantize", quantize_pairs_any<kind(), e5m2(), norm()>, shape, exec, q, turns);
        };
        args.source.norm_weight ? run(std::true_type{}) : run(std::false_type{});
    });
}

}  // namespace moebius::ops::cuda
