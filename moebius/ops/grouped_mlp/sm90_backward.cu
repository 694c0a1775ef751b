// Backward on Hopper: the down product's dgrad, whose epilogue reads C and writes dC, the activation once
// more and its part of the scales' gradient; then both weights' gradients and the gate-up product's dgrad.
// Scratch: dC (M, 2I), the activation (M, I), and a float a row and 256 columns of I.
#include "moebius/ops/grouped_gemm/sm90_launch.cuh"
#include "moebius/ops/grouped_mlp/sm90.h"
#include "moebius/ptx/glu.h"
#include "moebius/ptx/split_sizes.h"

namespace moebius::ops::sm90 {
namespace {

template <int kRowBlocks, int kColumnBlocks>
using DownTraits = ProductTraits<false, true, false, false, kRowBlocks, kColumnBlocks>;

// The sums are the activation's gradient.
template <bool kClamped>
struct StoreGluBackward {
    struct Args {
        Rows dgate, dup;  // halves of dC
        Rows activation;
        CUtensorMap gate_map, up_map;  // halves of C, boxes of 64 × 64
        const __nv_bfloat16* c;        // (capacity, 2I)
        int64_t c_stride;
        const float* scales;  // (capacity), null: 1
        float* partial;       // (tiles of I, capacity): Σ of a tile's columns; null: not asked
        int64_t capacity;
        ptx::GluConstants constants;
    };
    __device__ static int rows(const Args&) { return 0; }  // not asked: rows are the experts'

    __device__ __forceinline__ static void prefetch(const Args& args, int row, int column) {
        for (int x = column; x < column + kTileColumns && x < args.activation.columns; x += 64) {
            for (int y = row; y < row + kTileRows; y += kGroupRows) {
                ptx::tma_prefetch(&args.gate_map, x, y, 0);
                ptx::tma_prefetch(&args.up_map, x, y, 0);
            }
        }
    }

    // Gates and ups of a thread's part of a block, as wgmma gives it; zeros where nothing is.
    __device__ __forceinline__ static void load(const Args& args, StagedBlock& gate, StagedBlock& up,
                                                int column, const Place& place) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = place.row + 16 * place.warp + 8 * half + place.lane / 4;
            const __nv_bfloat16* from = args.c + row * args.c_stride + column + 2 * (place.lane % 4);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const bool exists = row < place.row_end && column + 8 * i < args.activation.columns;
                gate[2 * i + half] = ptx::load_global_if(exists, from + 8 * i);
                up[2 * i + half] = ptx::load_global_if(exists, from + args.activation.columns + 8 * i);
            }
        }
    }

    __device__ static void run(const Args& args, float (&sums)[128], Place& place) {
        float scale[2] = {1.0f, 1.0f}, dscale[2] = {0.0f, 0.0f};  // of the thread's two rows
        const int first_row = place.row + 16 * place.warp + place.lane / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (args.scales != nullptr && first_row + 8 * half < place.row_end)
                scale[half] = args.scales[first_row + 8 * half];
        }
        constexpr int kBlocks = kTileColumns / 64;
        StagedBlock rounded[kBlocks];  // as the unfused chain stores it; and half the registers
        StagedBlock gate, up;
        load(args, gate, up, place.column, place);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            round_block(rounded[block], sums, block);
            ptx::hold(rounded[block]);  // rounded now, not where it is used
        }
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            const int column = place.column + 64 * block;
            if (column >= args.activation.columns) break;
            StagedBlock next_gate, next_up;
            if (block + 1 < kBlocks) load(args, next_gate, next_up, column + 64, place);
            const StagedBlock& dy = rounded[block];
            StagedBlock activation;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const auto backward = [&](float g, float u, float upstream) {
                    const auto pair = ptx::glu_pair<kClamped, false>(g, u, args.constants);
                    const ptx::GluGradients gradients = ptx::glu_backward(pair, upstream, scale[i % 2]);
                    dscale[i % 2] = __fadd_rn(dscale[i % 2], gradients.dscale);
                    return gradients;
                };
                const auto low = backward(ptx::low_bf16(gate[i]), ptx::low_bf16(up[i]), ptx::low_bf16(dy[i]));
                const auto high =
                    backward(ptx::high_bf16(gate[i]), ptx::high_bf16(up[i]), ptx::high_bf16(dy[i]));
                gate[i] = ptx::pack_bf16(low.dgate, high.dgate);
                up[i] = ptx::pack_bf16(low.dup, high.dup);
                activation[i] = ptx::pack_bf16(low.activation, high.activation);
            }
            store_block(args.dgate, gate, column, place);
            store_block(args.dup, up, column, place);
            store_block(args.activation, activation, column, place);
            if (block + 1 < kBlocks) {
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    gate[i] = next_gate[i];
                    up[i] = next_up[i];
                }
            }
        }
        if (args.partial == nullptr) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = dscale[half];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const int row = first_row + 8 * half;
            if (place.lane % 4 == 0 && row < place.row_end)
                args.partial[place.column / kTileColumns * args.capacity + row] = sum;
        }
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
    const typename StoreGluBackward<kClamped>::Args store{
        .dgate = rows_of(dc.columns(0, intermediate)),
        .dup = rows_of(dc.columns(intermediate, intermediate)),
        .activation = rows_of(activation),
        .gate_map = tensor_map(a.c.columns(0, intermediate), kGroupRows),
        .up_map = tensor_map(a.c.columns(intermediate, intermediate), kGroupRows),
        .c = static_cast<const __nv_bfloat16*>(a.c.data),
        .c_stride = a.c.stride[0],
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
    launch_product<DownTraits<1, 1>, StoreGluBackward<kClamped>>("grouped_mlp.down_dgrad", product, store,
                                                                 exec);
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
    Exec exec = outer;
    exec.cost = nullptr;  // counted when the op was chosen
    const auto bytes = [&](int64_t columns) {
        return static_cast<size_t>(bytes_of(DType::BF16, rows * columns));
    };
    const Scratch wide("grouped_mlp.dc", bytes(2 * intermediate), exec);
    const Scratch narrow("grouped_mlp.activation", bytes(intermediate), exec);
    const View dc(wide.as<void>(), DType::BF16, {rows, 2 * intermediate});
    const View activation(narrow.as<void>(), DType::BF16, {rows, intermediate});
    if (rows > 0 && a.options.kind == GluKind::SwiGlu) {
        down_dgrad<false>(a, dc, activation, exec);
    } else if (rows > 0) {
        down_dgrad<true>(a, dc, activation, exec);
    }
    const auto product = [&](GemmKind kind, const View& left, const View& right, const View& out,
                             float beta) {
        grouped_gemm({.kind = kind,
                      .a = left,
                      .b = right,
                      .out = out,
                      .split_sizes = a.split_sizes,
                      .bias = {},
                      .bias_scale = {},
                      .beta = beta},
                     exec);
    };
    product(GemmKind::Wgrad, a.dy, activation, a.ddown, a.beta_down);
    product(GemmKind::Wgrad, dc, a.x, a.dgate_up, a.beta_gate_up);
    product(GemmKind::Dgrad, dc, a.gate_up, a.dx, 0);
}

}  // namespace moebius::ops::sm90
