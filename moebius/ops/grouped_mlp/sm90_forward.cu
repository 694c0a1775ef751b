// Forward on Hopper: the gate-up product, whose finishing warps have a pair's gate and up beside each other
// and write the pre-activation and the activation; then the down product. Scratch: the activation (M, I).
#include "moebius/ops/grouped_mlp/sm90.h"
#include "moebius/ops/grouped_mlp/sm90_finish.cuh"
#include "moebius/runtime/without_cost.h"

namespace moebius::ops::sm90 {
namespace {

using GateUpTraits = ProductTraits<false, false, false, true>;

// Sums 0 … 127 of a row are gates, 128 … 255 the ups of the same columns. Rounded as the unfused chain stores
// them.
template <bool kClamped>
struct FinishActivation : PlainEpilogue {
    static constexpr int kFinishers = 3;
    struct Args {
        Matrix gate, up;  // halves of C; without data: not kept
        Matrix activation;
        int columns;          // of the activation
        const float* scales;  // (capacity), null: 1
        ptx::GluConstants constants;
    };

    // Half a warp a row.
    __device__ static void finish(const Args& args, const StagedTile& tile) {
        const RowScales scales(args.scales, tile);
        const int chunk = tile.lane % 16, column = tile.column + 8 * chunk;
        tile.wait();
        for (int first = 2 * tile.warp; first < tile.rows; first += 2 * kFinishers) {
            const int row = first + tile.lane / 16;
            const float scale = scales.of(row);
            const Eight gate = ptx::load_shared(tile.at(row, chunk)),
                        up = ptx::load_shared(tile.at(row, 16 + chunk));
            Eight activation;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const auto value = [&](float g, float u) {
                    return ptx::glu_forward(ptx::glu_pair<kClamped, false>(g, u, args.constants), scale);
                };
                const uint32_t g = gate.pairs[i], u = up.pairs[i];
                activation.pairs[i] = ptx::pack_bf16(value(ptx::low_bf16(g), ptx::low_bf16(u)),
                                                     value(ptx::high_bf16(g), ptx::high_bf16(u)));
            }
            if (row >= tile.rows || column >= args.columns) continue;
            activation.store(args.activation.at(tile.row + row, column));
            if (args.gate.data == nullptr) continue;
            gate.store(args.gate.at(tile.row + row, column));
            up.store(args.up.at(tile.row + row, column));
        }
    }
};

template <bool kClamped>
void gate_up(const GroupedMlpArgs& a, const View& activation, const Exec& exec) {
    const int64_t intermediate = a.down.size(2);
    typename FinishActivation<kClamped>::Args finish{};
    if (a.c) {
        finish.gate = Matrix(a.c.columns(0, intermediate));
        finish.up = Matrix(a.c.columns(intermediate, intermediate));
    }
    finish.activation = Matrix(activation);
    finish.columns = static_cast<int>(intermediate);
    finish.scales = a.scales ? a.scales.as<float>() : nullptr;
    finish.constants = {a.options.limit, a.options.alpha, a.options.offset};
    const Product product{.a = a.x,
                          .b = a.gate_up,
                          .split_sizes = a.split_sizes,
                          .capacity = a.x.size(0),
                          .columns = intermediate,
                          .depth = a.x.size(1),
                          .second = intermediate};
    launch_product<GateUpTraits, FinishActivation<kClamped>>("grouped_mlp.gate_up", product, finish, exec);
}

}  // namespace

void grouped_mlp(const GroupedMlpArgs& a, const Exec& outer) {
    const int64_t rows = a.x.size(0), intermediate = a.down.size(2);
    if (rows == 0) return;
    const Exec exec = without_cost(outer);
    const Scratch scratch("grouped_mlp.activation",
                          static_cast<size_t>(bytes_of(DType::BF16, rows * intermediate)), exec);
    const View activation(scratch.as<void>(), DType::BF16, {rows, intermediate});
    if (a.options.kind == GluKind::SwiGlu) {
        gate_up<false>(a, activation, exec);
    } else {
        gate_up<true>(a, activation, exec);
    }
    grouped_gemm({.kind = GemmKind::Forward,
                  .a = activation,
                  .b = a.down,
                  .out = a.y,
                  .split_sizes = a.split_sizes,
                  .bias = {},
                  .bias_scale = {}},
                 exec);
}

}  // namespace moebius::ops::sm90
