// Forward on every card from sm_80 where gates lie before ups: a tile (any_pairs.cuh) is 256 columns of the
// activation. The next rows are on their way while one is worked on, those of the next tile while this one is
// finished. A tile of rows is shared by f.turns blocks, each of which takes every f.turns-th of its tiles.
#include <algorithm>

#include "moebius/ops/glu_quantize/cuda.h"
#include "moebius/ops/quantize/any_pairs.cuh"
#include "moebius/ptx/dynamic_shared.h"
#include "moebius/ptx/glu.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

using namespace pairs;

constexpr int kColumns = 2 * kTile;
constexpr int kAhead = 2;  // steps of two rows that are on their way
static_assert(kSteps % kAhead == 0);

struct Forward {
    const __nv_bfloat16* x;
    int64_t stride;
    const float* scales;  // (capacity), null: 1
    ExpertSizes sizes;
    int64_t intermediate;
    int turns;  // blocks that share a tile of rows
    ptx::GluConstants constants;
};

// Eight neighbours of a row's gates and ups, of both sides, and the row's scale.
struct Loaded {
    uint4 gate[2], up[2];
    float scale;
};

// Reads a thread's rows of the block's tiles, one after the other.
class Reader {
  public:
    __device__ Reader(const Forward& f, const Place& at)
        : f_(f), column_(at.column), row_(at.row_of(0)), rows_(at.rows) {
        const int64_t row = at.first + row_;
        x_ = f.x + row * f.stride + column_ + 8 * at.chunk;
        scales_ = f.scales + (f.scales == nullptr ? 0 : row);
        end();
    }
    __device__ __forceinline__ Loaded next() {
        const bool exists = row_ < rows_;
        Loaded loaded;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            loaded.gate[side] = ptx::load_ahead_if(exists, x_ + side * kTile);
            loaded.up[side] = ptx::load_ahead_if(exists, x_ + f_.intermediate + side * kTile);
        }
        loaded.scale = !exists ? 0.0f : f_.scales == nullptr ? 1.0f : __ldg(scales_);
        x_ += 2 * f_.stride;
        scales_ += 2;
        row_ += 2;
        return loaded;
    }
    // After the tile's last row: to the next tile.
    __device__ __forceinline__ void advance() {
        x_ += int64_t{f_.turns} * kColumns - kWarpRows * f_.stride;
        column_ += int64_t{f_.turns} * kColumns;
        scales_ -= kWarpRows;
        row_ -= kWarpRows;
        end();
    }

  private:
    __device__ __forceinline__ void end() {
        if (column_ >= f_.intermediate) rows_ = 0;
    }

    const Forward& f_;
    const __nv_bfloat16* x_;
    const float* scales_;
    int64_t column_;
    int row_, rows_;
};

// The activation, rounded.
template <bool kClamped>
__device__ __forceinline__ Eights activation_of(const Loaded& loaded, const ptx::GluConstants& constants) {
    Eights result;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const uint32_t* gates = &loaded.gate[side].x;
        const uint32_t* ups = &loaded.up[side].x;
        float gate[8], sigmoids[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            gate[i] = i % 2 == 0 ? ptx::low_bf16(gates[i / 2]) : ptx::high_bf16(gates[i / 2]);
            sigmoids[i] = ptx::sigmoid_argument<kClamped>(gate[i], constants);
        }
        ptx::sigmoids(sigmoids);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const auto of = [&](int n, float up) {
                return ptx::glu_forward(ptx::glu_pair_of<kClamped>(sigmoids[n], gate[n], up, constants),
                                        loaded.scale);
            };
            result.pairs[side][i] =
                ptx::pack_bf16(of(2 * i, ptx::low_bf16(ups[i])), of(2 * i + 1, ptx::high_bf16(ups[i])));
        }
    }
    return result;
}

// The block's rows and its first tile. False: there are fewer.
template <bool kMx = false>
__device__ __forceinline__ bool find_first(const Forward& f, Place& at) {
    if (!find_place<kMx>(f.sizes, static_cast<int>(blockIdx.x) / f.turns, at)) return false;
    at.apart = kTile;
    at.column = static_cast<int>(blockIdx.x) % f.turns * kColumns;
    return true;
}

template <bool kClamped, Blocks kBlocks, bool kE5M2>
__global__ void __launch_bounds__(kTileThreads, 2)
    scaled_glu_quantize_pairs_any(const Quantize q, const Forward f) {
    auto& shared = *ptx::dynamic_shared<Shared>();
    if (kBlocks == Blocks::Tensor && blockIdx.x == 0) tiles::store_tensor_scales(q);
    Place at;
    if (!find_first<kBlocks == Blocks::Mx>(f, at)) return;
    Reader reader(f, at);
    Loaded ahead[kAhead];
#pragma unroll
    for (Loaded& row : ahead) row = reader.next();
    const float tensor_scale = kBlocks == Blocks::Tensor ? tiles::scale_of_expert(q, at.expert).scale : 1.0f;
    float amax = 0.0f;
    Eights most{};
    for (; at.column < f.intermediate; at.column += int64_t{f.turns} * kColumns) {
        RowWriter<kBlocks, kE5M2> writer(q, at, shared);
#pragma unroll 1
        for (int begin = 0; begin < kSteps; begin += kAhead) {
            if (begin == kSteps - kAhead) reader.advance();
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                const bool exists = at.exists(begin + i);
                Eights activation = activation_of<kClamped>(ahead[i], f.constants);
                ahead[i] = reader.next();
                if (kClamped && !exists) activation = {};  // whose zeros may be negative
                writer.put(q, at, exists, activation, most, tensor_scale);
            }
        }
        finish_tile<kBlocks, kE5M2>(q, at, most, amax, tensor_scale, shared);
    }
    observe<kBlocks>(q, at, most, amax);
}

template <bool kClamped>
__global__ void __launch_bounds__(kTileThreads, 2)
    scaled_glu_amax_pairs_any(const Forward f, unsigned* amax) {
    constexpr int kTogether = 2;  // steps
    Place at;
    if (!find_first(f, at)) return;
    Reader reader(f, at);
    Eights most{};
    for (; at.column < f.intermediate; at.column += int64_t{f.turns} * kColumns) {
#pragma unroll 1
        for (int begin = 0; begin < kSteps; begin += kTogether) {
            Loaded loaded[kTogether];
#pragma unroll
            for (Loaded& row : loaded) row = reader.next();
#pragma unroll
            for (const Loaded& row : loaded) magnitudes_of(activation_of<kClamped>(row, f.constants), most);
        }
        reader.advance();
    }
    tiles::observe(amax, at.expert, largest(most));
}

}  // namespace

void scaled_glu_quantize_pairs(const ScaledGluQuantizeArgs& a, const Exec& exec) {
    constexpr int64_t kMostTurns = 8;
    constexpr int64_t kLeastTiles = 4;  // of a block: finding its rows takes as long as reading some
    const int64_t experts = a.split_sizes.size(0), rows = a.x.size(0);
    Forward f{};
    f.x = static_cast<const __nv_bfloat16*>(a.x.data);
    f.stride = a.x.stride[0];
    f.scales = device_data<float>(a.scales);
    f.intermediate = a.x.size(1) / 2;
    f.turns = static_cast<int>(std::clamp<int64_t>(f.intermediate / kColumns / kLeastTiles, 1, kMostTurns));
    f.constants = {a.options.limit, a.options.alpha, a.options.offset};
    const bool finds = finds_amax(a.activation);
    const size_t amax_bytes = finds ? static_cast<size_t>(experts) * sizeof(float) : 0;
    const Scratch found("glu_quantize.amax", amax_bytes, exec);
    const View amax = finds ? View(found.as<void>(), DType::F32, {experts}) : View();
    if (finds) zero(found.as<void>(), amax_bytes, exec);
    Quantize q = tiles::quantize_of(a.activation, amax, a.x.dtype, false, exec);
    q.source = source_of({.values = a.x, .split_sizes = a.split_sizes});
    q.source.columns = f.intermediate;
    f.sizes = q.source.sizes;
    // A scale of a tensor is written even where there is no expert's row.
    const int64_t blocks = std::max<int64_t>((rows / kTile + experts) * f.turns, 1);
    const LaunchShape shape{grid_for(blocks, 1), dim3(kTileThreads), sizeof(Shared)};
    const Format& format = (a.activation.row ? a.activation.row : a.activation.column).format;
    with_codes(format, [&](auto kind, auto e5m2) {
        const auto run = [&](auto clamped) {
            if (finds) {
                launch("scaled_glu_amax", scaled_glu_amax_pairs_any<clamped()>, {shape.grid, shape.block},
                       exec, f, found.as<unsigned>());
            }
            launch("scaled_glu_quantize", scaled_glu_quantize_pairs_any<clamped(), kind(), e5m2()>, shape,
                   exec, q, f);
        };
        a.options.kind == GluKind::SwiGlu ? run(std::false_type{}) : run(std::true_type{});
    });
}

}  // namespace moebius::ops::cuda
