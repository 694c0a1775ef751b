// Forward on Hopper: the gate-up product, whose epilogue has a pair's gate and up in one thread and writes
// the pre-activation and the activation; then the down product. Scratch: the activation (M, I).
#include "moebius/ops/grouped_gemm/sm90_launch.cuh"
#include "moebius/ops/grouped_mlp/sm90.h"
#include "moebius/ptx/glu.h"

namespace moebius::ops::sm90 {
namespace {

template <int kRowBlocks, int kColumnBlocks>
using GateUpTraits = ProductTraits<false, false, false, true, kRowBlocks, kColumnBlocks>;

// Sums 0 … 127 of a row are gates, 128 … 255 the ups of the same columns. Rounded as the unfused chain stores
// them.
template <bool kClamped>
struct StoreActivation {
    struct Args {
        Rows gate, up;  // halves of C
        Rows activation;
        const float* scales;  // (capacity), null: 1
        ptx::GluConstants constants;
        int keeps_c;
    };
    __device__ static int rows(const Args&) { return 0; }  // not asked: rows are the experts'
    __device__ static void run(const Args& args, float (&sums)[128], Place& place) {
        float scale[2] = {1.0f, 1.0f};  // of the thread's two rows
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = place.row + 16 * place.warp + 8 * half + place.lane / 4;
            if (args.scales != nullptr && row < place.row_end) scale[half] = args.scales[row];
        }
#pragma unroll
        for (int block = 0; block < 2; ++block) {
            const int column = place.column + 64 * block;
            if (column >= args.activation.columns) break;
            StagedBlock gate, up, activation;
            round_block(gate, sums, block);
            round_block(up, sums, block + 2);
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const auto value = [&](float g, float u) {
                    return ptx::glu_forward(ptx::glu_pair<kClamped, false>(g, u, args.constants),
                                            scale[i % 2]);
                };
                activation[i] = ptx::pack_bf16(value(ptx::low_bf16(gate[i]), ptx::low_bf16(up[i])),
                                               value(ptx::high_bf16(gate[i]), ptx::high_bf16(up[i])));
            }
            if (args.keeps_c) {
                store_block(args.gate, gate, column, place);
                store_block(args.up, up, column, place);
            }
            store_block(args.activation, activation, column, place);
        }
    }
};

template <bool kClamped>
void gate_up(const GroupedMlpArgs& a, const View& activation, const Exec& exec) {
    const int64_t intermediate = a.down.size(2);
    typename StoreActivation<kClamped>::Args store{};
    store.activation = rows_of(activation);
    store.gate = a.c ? rows_of(a.c.columns(0, intermediate)) : store.activation;
    store.up = a.c ? rows_of(a.c.columns(intermediate, intermediate)) : store.activation;
    store.scales = a.scales ? a.scales.as<float>() : nullptr;
    store.constants = {a.options.limit, a.options.alpha, a.options.offset};
    store.keeps_c = a.c ? 1 : 0;
    const Product product{.a = a.x,
                          .b = a.gate_up,
                          .split_sizes = a.split_sizes,
                          .capacity = a.x.size(0),
                          .columns = intermediate,
                          .depth = a.x.size(1),
                          .second = intermediate};
    launch_product<GateUpTraits<1, 1>, StoreActivation<kClamped>>("grouped_mlp.gate_up", product, store,
                                                                  exec);
}

}  // namespace

void grouped_mlp(const GroupedMlpArgs& a, const Exec& outer) {
    const int64_t rows = a.x.size(0), intermediate = a.down.size(2);
    if (rows == 0) return;
    Exec exec = outer;
    exec.cost = nullptr;  // counted when the op was chosen
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
