// Low-precision products on every card from sm_80: codes become bf16, exactly, on their way to shared memory,
// bf16 products on the tensor cores, fp32 sums. f32 scales are applied to the sums of each 128 of the depth;
// MX32's factors are powers of two and go into the bf16 elements.
#include "moebius/ops/gemm/any_tile.cuh"
#include "moebius/ops/grouped_gemm_quantized/cuda.h"
#include "moebius/ptx/float8.h"
#include "moebius/ptx/split_sizes.h"
#include "moebius/runtime/launch.h"

namespace moebius::ops::cuda {
namespace {

constexpr int kStepsOf128 = 128 / kMmaDepth;

// What of an operand the kernel needs. Element (i, p), i along the tile, p along the depth, is at
// codes[i · stride + p], or, across, at codes[p · stride + i].
struct Codes {
    const uint8_t* data;
    const void* scale;
    int64_t stride, expert;              // between lines; between experts' weights
    int64_t scale_stride, scale_expert;  // between lines of scales; between experts' weights
    bool across, e5m2, aligned;          // every line begins on 16 bytes
};

struct Product {
    Codes a, b;
    void* out;
    int64_t out_stride, out_expert;
    ptx::SplitSizes sizes;
    int64_t m, n,
        k;  // Forward, Dgrad: rows, columns of out, depth; Wgrad: rows and columns of an expert's out
    bool out_is_bf16, accumulate, out_paired;
};

// An operand at a tile's origin.
struct Tile {
    const uint8_t* codes;
    const void* scale;
    int64_t extent, depth;
};

// Sixteen codes of one line, those past `count` zero.
__device__ uint4 load_codes(const uint8_t* from, int count, bool aligned) {
    if (count == 16 && aligned) return *reinterpret_cast<const uint4*>(from);
    uint32_t words[4] = {};
    for (int i = 0; i < count; ++i) words[i / 4] |= static_cast<uint32_t>(from[i]) << i % 4 * 8;
    return {words[0], words[1], words[2], words[3]};
}

__device__ float decode(uint32_t code, bool e5m2) {
    return e5m2 ? ptx::E5M2::decode(code) : ptx::E4M3::decode(code);
}

// A thread's part of a step of kMmaDepth: sixteen codes of line `line` from `first` on, and their MX32
// factors.
struct Part {
    uint4 codes;
    float factor;       // along the depth: one for the line's part
    uint4 scale_codes;  // across: one a column
};

template <bool kAcross, bool kMx>
__device__ Part load_part(const Codes& of, const Tile& tile, int64_t step) {
    const int thread = static_cast<int>(threadIdx.x);
    const int line = kAcross ? thread / 8 : thread / 2, along = (kAcross ? thread % 8 : thread % 2) * 16;
    const int64_t first = step * kMmaDepth;
    Part part{};
    const int64_t i = kAcross ? along : line, p = first + (kAcross ? line : along);
    const int count = kAcross ? (p < tile.depth ? clamp_count(tile.extent - i, 16) : 0)
                              : (i < tile.extent ? clamp_count(tile.depth - p, 16) : 0);
    if (count == 0) return part;
    part.codes =
        load_codes(tile.codes + (kAcross ? p * of.stride + i : i * of.stride + p), count, of.aligned);
    if constexpr (kMx) {
        const auto* scales = static_cast<const uint8_t*>(tile.scale);
        if constexpr (kAcross) {
            part.scale_codes = load_codes(scales + p / 32 * of.scale_stride + i, count, false);
        } else {
            part.factor = ptx::decode_e8m0(scales[i * of.scale_stride + p / 32]);
        }
    }
    return part;
}

// To shared memory as bf16, in the layouts of any_tile.cuh.
template <bool kAcross, bool kMx>
__device__ void store_part(const Part& part, bool e5m2, char* to) {
    const int thread = static_cast<int>(threadIdx.x);
    const int line = kAcross ? thread / 8 : thread / 2, chunk = (kAcross ? thread % 8 : thread % 2) * 2;
    const uint32_t codes[4] = {part.codes.x, part.codes.y, part.codes.z, part.codes.w};
    const uint32_t scales[4] = {part.scale_codes.x, part.scale_codes.y, part.scale_codes.z,
                                part.scale_codes.w};
    uint32_t words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float pair[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int at = 2 * i + j;
            pair[j] = decode(codes[at / 4] >> at % 4 * 8 & 0xFFu, e5m2);
            if constexpr (kMx) {
                const float factor =
                    kAcross ? ptx::decode_e8m0(scales[at / 4] >> at % 4 * 8 & 0xFFu) : part.factor;
                pair[j] = __fmul_rn(pair[j], factor);
            }
        }
        const __nv_bfloat162 both = __floats2bfloat162_rn(pair[0], pair[1]);
        words[i] = *reinterpret_cast<const uint32_t*>(&both);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = chunk + half, place = kAcross ? at ^ (line % 8) : at ^ (line / 2 % 4);
        *reinterpret_cast<uint4*>(to + line * (kAcross ? 256 : 64) + place * 16) = {
            words[4 * half], words[4 * half + 1], words[4 * half + 2], words[4 * half + 3]};
    }
}

// total += sums · factor of the row · factor of the column, as they stand in one warp's registers.
__device__ void promote(MmaSums& total, MmaSums& sums, const float* rows, const float* columns) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int row = warp / 4 * 64 + lane / 4, column = warp % 4 * 32 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const float factor = rows[row + i * 16 + x / 2 * 8] * columns[column + j * 8 + x % 2];
                total.at[i][j][x] = fmaf(sums.at[i][j][x], factor, total.at[i][j][x]);
            }
        }
    }
    sums.clear();
}

// Factors of 128 lines for block `block` of the depth into shared memory. A weight's one factor stands for
// all.
template <GemmKind kind, ScaleKind scale, bool kLeft>
__device__ void load_factors(const Codes& of, const Tile& tile, int64_t block, float* to) {
    const int line = static_cast<int>(threadIdx.x) % kTile;
    if ((static_cast<int>(threadIdx.x) < kTile) != kLeft) return;
    const auto* scales = static_cast<const float*>(tile.scale);
    float factor = 0.0f;
    if constexpr (scale == ScaleKind::Tensor) {
        factor = scales[0];
    } else if constexpr (kLeft || kind == GemmKind::Wgrad) {
        if (line < tile.extent) factor = scales[block * of.scale_stride + line];
    } else {
        factor = scales[block];
    }
    to[line] = factor;
}

template <GemmKind kind, ScaleKind scale>
__device__ bool find_tiles(const Product& p, int64_t row_tiles, Tile& a, Tile& b, TileOutput& out) {
    const int64_t columns = (p.n + kTile - 1) / kTile;
    const int64_t column = blockIdx.x % columns, j = column * kTile;
    int64_t row = blockIdx.x / columns;
    constexpr bool kMx = scale == ScaleKind::MX32;
    const auto at = [](const void* scales, int64_t offset) -> const void* {
        return static_cast<const char*>(scales) + offset * (kMx ? 1 : 4);
    };
    ptx::ExpertTile own;
    int64_t out_offset;
    if constexpr (kind == GemmKind::Wgrad) {
        own = ptx::find_expert(p.sizes, row / row_tiles);
        row %= row_tiles;
        if (own.rows == 0 && p.accumulate) return false;
        const int64_t i = row * kTile;
        int64_t blocks = 0;  // Σ ⌈n/128⌉, or of MX32 ⌈n/32⌉, of the experts before
        for (int64_t e = static_cast<int>(threadIdx.x % 32); e < own.expert; e += 32)
            blocks += (p.sizes[e] + (kMx ? 31 : 127)) / (kMx ? 32 : 128);
        blocks = __shfl_sync(~0u, ptx::inclusive_scan_warp(blocks), 31);
        const int64_t lines = kMx ? own.first : blocks * 128;
        // More padded rows than the operand has: a broken split_sizes, of which nothing is read.
        int64_t depth = own.rows;
        if (!kMx && lines + depth > p.a.stride) depth = 0;
        const int64_t scale_at = scale == ScaleKind::Tensor ? own.expert : blocks * p.a.scale_stride + i;
        const int64_t b_scale_at = scale == ScaleKind::Tensor ? own.expert : blocks * p.b.scale_stride + j;
        a = {p.a.data + (kMx ? lines * p.a.stride + i : i * p.a.stride + lines), at(p.a.scale, scale_at),
             p.m - i, depth};
        b = {p.b.data + (kMx ? lines * p.b.stride + j : j * p.b.stride + lines), at(p.b.scale, b_scale_at),
             p.n - j, depth};
        out_offset = own.expert * p.out_expert + i * p.out_stride + j;
        out.rows = p.m - i;
    } else {
        own = ptx::find_expert_tile(p.sizes, kTile, row);
        if (own.expert < 0) return false;
        const int64_t i = own.first + own.tile * kTile;
        const bool across = kMx && kind == GemmKind::Dgrad;
        const int64_t a_scale = scale == ScaleKind::Tensor ? own.expert : kMx ? i * p.a.scale_stride : i;
        const int64_t b_scale = scale == ScaleKind::Tensor ? own.expert
                                                           : own.expert * p.b.scale_expert +
                                                                 (kMx ? (across ? j : j * p.b.scale_stride)
                                                                      : column * p.b.scale_stride);
        a = {p.a.data + i * p.a.stride, at(p.a.scale, a_scale), own.rows - own.tile * kTile, p.k};
        b = {p.b.data + own.expert * p.b.expert + (across ? j : j * p.b.stride), at(p.b.scale, b_scale),
             p.n - j, p.k};
        out_offset = i * p.out_stride + j;
        out.rows = own.rows - own.tile * kTile;
    }
    out.data = static_cast<char*>(p.out) + out_offset * (p.out_is_bf16 ? 2 : 4);
    out.columns = p.n - j;
    out.stride = p.out_stride;
    out.bias = nullptr;
    out.scale = nullptr;
    out.is_bf16 = p.out_is_bf16;
    out.bias_is_bf16 = false;
    out.accumulate = p.accumulate;
    out.paired = p.out_paired;
    return true;
}

template <GemmKind kind, ScaleKind scale>
__global__ void __launch_bounds__(kThreads) grouped_gemm_quantized_any(const Product p, int64_t row_tiles) {
    constexpr bool kMx = scale == ScaleKind::MX32;
    constexpr bool kAAcross = kMx && kind == GemmKind::Wgrad, kBAcross = kMx && kind != GemmKind::Forward;
    __shared__ __align__(128) char stage[2 * kOperandBytes];
    __shared__ float row_factors[kTile], column_factors[kTile];
    Tile a, b;
    TileOutput out;
    if (!find_tiles<kind, scale>(p, row_tiles, a, b, out)) return;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    const int64_t steps = (a.depth + kMmaDepth - 1) / kMmaDepth;
    const uint32_t a_tile = ptx::shared_address(stage), b_tile = a_tile + kOperandBytes;
    MmaSums sums, total;
    sums.clear();
    total.clear();
    Part next_a = load_part<kAAcross, kMx>(p.a, a, 0), next_b = load_part<kBAcross, kMx>(p.b, b, 0);
    for (int64_t step = 0; step < steps; ++step) {
        __syncthreads();  // all are through with the step before, and with its block's factors
        store_part<kAAcross, kMx>(next_a, p.a.e5m2, stage);
        store_part<kBAcross, kMx>(next_b, p.b.e5m2, stage + kOperandBytes);
        if (!kMx && step % kStepsOf128 == 0) {
            load_factors<kind, scale, true>(p.a, a, step / kStepsOf128, row_factors);
            load_factors<kind, scale, false>(p.b, b, step / kStepsOf128, column_factors);
        }
        __syncthreads();  // the step is whole
        if (step + 1 < steps) {
            next_a = load_part<kAAcross, kMx>(p.a, a, step + 1);
            next_b = load_part<kBAcross, kMx>(p.b, b, step + 1);
        }
#pragma unroll
        for (int q = 0; q < kMmaDepth; q += 16) {
            uint32_t a_registers[4][4], b_registers[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                load_a_fragment<kAAcross>(a_registers[i], a_tile, warp_row + i * 16, q);
#pragma unroll
            for (int j = 0; j < 2; ++j)
                load_b_fragments<kBAcross>(b_registers[j], b_tile, warp_column + j * 16, q);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const uint32_t(&pair)[4] = b_registers[j / 2];
                    ptx::mma_bf16(sums.at[i][j], a_registers[i], pair[j % 2 * 2], pair[j % 2 * 2 + 1]);
                }
            }
        }
        if (step % kStepsOf128 == kStepsOf128 - 1 || step + 1 == steps) {
            if constexpr (kMx) {
                total.add(sums);
                sums.clear();
            } else {
                promote(total, sums, row_factors, column_factors);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int row = warp_row + i * 16 + lane / 4, column = warp_column + j * 8 + lane % 4 * 2;
            out.store_pair(row, column, total.at[i][j][0], total.at[i][j][1]);
            out.store_pair(row + 8, column, total.at[i][j][2], total.at[i][j][3]);
        }
    }
}

using Kernel = void (*)(const Product, int64_t);

template <GemmKind kind>
Kernel kernel_for(ScaleKind scale) {
    if (scale == ScaleKind::Tensor) return grouped_gemm_quantized_any<kind, ScaleKind::Tensor>;
    return scale == ScaleKind::MX32 ? grouped_gemm_quantized_any<kind, ScaleKind::MX32>
                                    : grouped_gemm_quantized_any<kind, ScaleKind::Block128>;
}

Codes codes_of(const Operand& operand) {
    const View &data = operand.data, &scale = operand.scale;
    Codes codes{};
    codes.data = static_cast<const uint8_t*>(data.data);
    codes.scale = scale.data;
    codes.stride = data.stride[static_cast<size_t>(data.rank() - 2)];
    if (data.rank() == 3) codes.expert = data.stride[0];
    if (scale.rank() >= 2) codes.scale_stride = scale.stride[static_cast<size_t>(scale.rank() - 2)];
    if (scale.rank() == 3) codes.scale_expert = scale.stride[0];
    codes.e5m2 = operand.format.element == DType::F8E5M2;
    codes.aligned =
        reinterpret_cast<uintptr_t>(data.data) % 16 == 0 && codes.stride % 16 == 0 && codes.expert % 16 == 0;
    return codes;
}

}  // namespace

void grouped_gemm_quantized(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    const QuantizedProductSizes s = sizes_of(args);
    const bool wgrad = args.kind == GemmKind::Wgrad, forward = args.kind == GemmKind::Forward;
    const View& out = args.out;
    Product p{};
    p.a = codes_of(args.a);
    p.b = codes_of(args.b);
    p.out = out.data;
    p.out_stride = out.stride[static_cast<size_t>(out.rank() - 2)];
    if (wgrad) p.out_expert = out.stride[0];
    p.sizes = {args.split_sizes.data, args.split_sizes.dtype == DType::I64, s.experts, s.padded};
    p.m = wgrad ? s.out_features : s.rows;
    p.n = forward ? s.out_features : s.in_features;
    p.k = forward ? s.in_features : s.out_features;
    p.out_is_bf16 = out.dtype == DType::BF16;
    p.accumulate = args.beta != 0;
    const int64_t pair_bytes = p.out_is_bf16 ? 4 : 8;
    p.out_paired = reinterpret_cast<uintptr_t>(out.data) % static_cast<uintptr_t>(pair_bytes) == 0 &&
                   p.out_stride % 2 == 0 && p.out_expert % 2 == 0;
    if (s.experts == 0 || p.n == 0 || p.m == 0) return;
    const int64_t row_tiles = wgrad ? ceil_div(p.m, kTile) : p.m / kTile + s.experts;
    const dim3 grid = grid_for(row_tiles * ceil_div(p.n, kTile) * (wgrad ? s.experts : 1), 1);
    const ScaleKind scale = args.a.format.scale;
    const Kernel kernel = forward ? kernel_for<GemmKind::Forward>(scale)
                          : wgrad ? kernel_for<GemmKind::Wgrad>(scale)
                                  : kernel_for<GemmKind::Dgrad>(scale);
    launch("grouped_gemm_quantized", kernel, {grid, dim3(kThreads)}, exec, p, row_tiles);
}

}  // namespace moebius::ops::cuda
