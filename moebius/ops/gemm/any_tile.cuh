// One 128 × 128 tile of a product by a block of 256 threads: on the tensor cores of sm_80 for bf16, in plain
// fp32 otherwise. Sums run over the depth in ascending order.
//
// Operands: element (i, p), i along the tile, p along the depth, lies at data[i · stride + p], or, across, at
// data[p · stride + i]. What lies outside of extent and depth isn't read and counts as zero.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "moebius/ptx/cp_async.h"
#include "moebius/ptx/mma.h"
#include "moebius/ptx/vector.h"

namespace moebius::ops::cuda {

inline constexpr int kTile = 128, kThreads = 256;

template <class T>
struct TileOperand {
    const T* data;
    int64_t stride, extent, depth;
    bool aligned;  // every row begins on 16 bytes
};

// A tile's place in the output and what is added to it.
struct TileOutput {
    void* data;
    int64_t stride;
    int64_t rows, columns;  // of the output, from the tile's origin
    const void* bias;       // (columns) or null
    const float* scale;     // (rows) or null: factor of the bias
    bool is_bf16, bias_is_bf16, accumulate, paired;

    __device__ float bias_at(int i, int j) const {
        const float value = bias_is_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(bias)[j])
                                         : static_cast<const float*>(bias)[j];
        return scale ? scale[i] * value : value;
    }
    __device__ void store_one(int i, int j, float x) const {
        const int64_t at = i * stride + j;
        if (is_bf16) {
            auto* to = static_cast<__nv_bfloat16*>(data) + at;
            *to = __float2bfloat16_rn(accumulate ? x + __bfloat162float(*to) : x);
        } else {
            auto* to = static_cast<float*>(data) + at;
            *to = accumulate ? x + *to : x;
        }
    }
    // Elements (i, j) and (i, j + 1), j even.
    __device__ void store_pair(int i, int j, float x, float y) const {
        if (i >= rows || j >= columns) return;
        const bool both = j + 1 < columns;
        if (bias) {
            x += bias_at(i, j);
            if (both) y += bias_at(i, j + 1);
        }
        if (!paired || !both) {
            store_one(i, j, x);
            if (both) store_one(i, j + 1, y);
        } else if (is_bf16) {
            auto* to = reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(data) + i * stride + j);
            if (accumulate) {
                const float2 before = __bfloat1622float2(*to);
                x += before.x;
                y += before.y;
            }
            *to = __floats2bfloat162_rn(x, y);
        } else {
            auto* to = reinterpret_cast<float2*>(static_cast<float*>(data) + i * stride + j);
            const float2 before = accumulate ? *to : float2{0.0f, 0.0f};
            *to = float2{x + before.x, y + before.y};
        }
    }
};

__device__ inline int clamp_count(int64_t count, int most) {
    return count <= 0 ? 0 : count < most ? static_cast<int>(count) : most;
}

// ---- bf16 on the tensor cores -----------------------------------------------------------------------------
//
// Shared memory: kStages × (A tile, B tile), 8 KiB each, in chunks of 16 bytes (8 elements). Along the depth:
// [128][4 chunks], chunk c of row i at place c ^ (i / 2 % 4). Across: [32][16 chunks], chunk c of row p at
// place c ^ (p % 8). Either way, eight rows that ldmatrix reads together lie in eight different bank groups.

inline constexpr int kMmaDepth = 32, kStages = 4;
inline constexpr int kOperandBytes = kTile * kMmaDepth * 2;
inline constexpr int kMmaSharedBytes = kStages * 2 * kOperandBytes;
// The tensor core cuts off what doesn't fit a sum of fp32, it doesn't round: long sums drift. After so many
// steps of kMmaDepth the partial sums are added, with rounding, to those in plain registers.
inline constexpr int kStepsPerPromotion = 4;

// One stage's part of an operand, from `first` of the depth.
template <bool kAcross>
__device__ inline void load_mma_operand(const TileOperand<__nv_bfloat16>& from, int64_t first, char* to) {
    for (int part = 0; part < 2; ++part) {
        const int chunk = static_cast<int>(threadIdx.x) + part * kThreads;
        const int row = kAcross ? chunk / 16 : chunk / 4, column = kAcross ? chunk % 16 : chunk % 4;
        const int place = kAcross ? column ^ (row % 8) : column ^ (row / 2 % 4);
        const int64_t i = kAcross ? column * 8 : row, p = first + (kAcross ? row : column * 8);
        int count = 0;  // elements of the chunk that exist
        if (kAcross ? p < from.depth : i < from.extent) {
            count = clamp_count(kAcross ? from.extent - i : from.depth - p, 8);
        }
        const __nv_bfloat16* source = from.data + (count == 0 ? 0
                                                   : kAcross  ? p * from.stride + i
                                                              : i * from.stride + p);
        char* place_at = to + row * (kAcross ? 256 : 64) + place * 16;
        if (from.aligned) {
            ptx::cp_async_16(ptx::shared_address(place_at), source, count * 2);
        } else {
            uint32_t words[4];
            for (int w = 0; w < 4; ++w) {
                const uint32_t low = 2 * w < count ? __bfloat16_as_ushort(source[2 * w]) : 0u;
                const uint32_t high = 2 * w + 1 < count ? __bfloat16_as_ushort(source[2 * w + 1]) : 0u;
                words[w] = low | high << 16;
            }
            *reinterpret_cast<uint4*>(place_at) = {words[0], words[1], words[2], words[3]};
        }
    }
}

// Registers of A (16 × 16) at (i, p) of a stage's tile.
template <bool kAcross>
__device__ inline void load_a_fragment(uint32_t (&r)[4], uint32_t tile, int i, int p) {
    const int lane = static_cast<int>(threadIdx.x % 32), matrix = lane / 8, inner = lane % 8;
    if constexpr (kAcross) {
        const int row = p + matrix / 2 * 8 + inner, chunk = i / 8 + matrix % 2;
        ptx::load_matrices_transposed(tile + row * 256 + (chunk ^ (row % 8)) * 16, r[0], r[1], r[2], r[3]);
    } else {
        const int row = i + matrix % 2 * 8 + inner, chunk = p / 8 + matrix / 2;
        ptx::load_matrices(tile + row * 64 + (chunk ^ (row / 2 % 4)) * 16, r[0], r[1], r[2], r[3]);
    }
}
// Registers of two B (16 × 8) at columns j and j + 8: b0 b1 of the one, b0 b1 of the other.
template <bool kAcross>
__device__ inline void load_b_fragments(uint32_t (&r)[4], uint32_t tile, int j, int p) {
    const int lane = static_cast<int>(threadIdx.x % 32), matrix = lane / 8, inner = lane % 8;
    if constexpr (kAcross) {
        const int row = p + matrix % 2 * 8 + inner, chunk = j / 8 + matrix / 2;
        ptx::load_matrices_transposed(tile + row * 256 + (chunk ^ (row % 8)) * 16, r[0], r[1], r[2], r[3]);
    } else {
        const int row = j + matrix / 2 * 8 + inner, chunk = p / 8 + matrix % 2;
        ptx::load_matrices(tile + row * 64 + (chunk ^ (row / 2 % 4)) * 16, r[0], r[1], r[2], r[3]);
    }
}

// Warps stand 2 × 4; each has 64 × 32, as 4 × 4 products m16n8.
struct MmaSums {
    float at[4][4][4];

    __device__ void clear() {
        for (auto& row : at)
            for (auto& product : row)
                for (float& x : product) x = 0.0f;
    }
    __device__ void add(const MmaSums& other) {
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < 4; ++j)
                for (int x = 0; x < 4; ++x) at[i][j][x] += other.at[i][j][x];
    }
};

// kPromote: for outputs in fp32.
template <bool kAAcross, bool kBAcross, bool kPromote>
__device__ void mma_tile(const TileOperand<__nv_bfloat16>& a, const TileOperand<__nv_bfloat16>& b,
                         const TileOutput& out, char* shared) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    const int64_t steps = (a.depth + kMmaDepth - 1) / kMmaDepth;
    const auto load_stage = [&](int64_t step) {
        char* stage = shared + step % kStages * (2 * kOperandBytes);
        load_mma_operand<kAAcross>(a, step * kMmaDepth, stage);
        load_mma_operand<kBAcross>(b, step * kMmaDepth, stage + kOperandBytes);
    };
    MmaSums sums, total;
    sums.clear();
    if constexpr (kPromote) total.clear();
    for (int step = 0; step < kStages - 1; ++step) {
        if (step < steps) load_stage(step);
        ptx::cp_async_commit();
    }
    for (int64_t step = 0; step < steps; ++step) {
        // This stage has arrived for all, and all are through with the one that is loaded next.
        ptx::cp_async_wait<kStages - 2>();
        __syncthreads();
        if (step + kStages - 1 < steps) load_stage(step + kStages - 1);
        ptx::cp_async_commit();
        const uint32_t a_tile = ptx::shared_address(shared + step % kStages * (2 * kOperandBytes));
        const uint32_t b_tile = a_tile + kOperandBytes;
#pragma unroll
        for (int p = 0; p < kMmaDepth; p += 16) {
            uint32_t a_registers[4][4], b_registers[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                load_a_fragment<kAAcross>(a_registers[i], a_tile, warp_row + i * 16, p);
#pragma unroll
            for (int j = 0; j < 2; ++j)
                load_b_fragments<kBAcross>(b_registers[j], b_tile, warp_column + j * 16, p);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const uint32_t(&pair)[4] = b_registers[j / 2];
                    ptx::mma_bf16(sums.at[i][j], a_registers[i], pair[j % 2 * 2], pair[j % 2 * 2 + 1]);
                }
            }
        }
        if constexpr (kPromote) {
            if (step % kStepsPerPromotion == kStepsPerPromotion - 1) {
                total.add(sums);
                sums.clear();
            }
        }
    }
    ptx::cp_async_wait<0>();
    if constexpr (kPromote) sums.add(total);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int row = warp_row + i * 16 + lane / 4, column = warp_column + j * 8 + lane % 4 * 2;
            out.store_pair(row, column, sums.at[i][j][0], sums.at[i][j][1]);
            out.store_pair(row + 8, column, sums.at[i][j][2], sums.at[i][j][3]);
        }
    }
}

// ---- plain fp32 -------------------------------------------------------------------------------------------

inline constexpr int kFmaDepth = 16;

struct FmaShared {
    float a[2][kFmaDepth][kTile], b[2][kFmaDepth][kTile];
};

// Eight neighbours of which the first `count` exist.
template <class T>
__device__ inline void load_eight(float (&r)[8], const T* from, int count, bool aligned) {
    if (count == 8 && aligned) {
        ptx::load_floats<8>(from, r);
    } else {
        for (int i = 0; i < 8; ++i) r[i] = i < count ? ptx::load_float(from + i) : 0.0f;
    }
}

// A thread's eight elements of a step: neighbours along the row that lies dense in memory.
template <bool kAcross, class T>
__device__ inline void load_fma_operand(float (&r)[8], const TileOperand<T>& from, int64_t first) {
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t i = kAcross ? thread % 16 * 8 : thread % kTile;
    const int64_t p = first + (kAcross ? thread / 16 : thread / kTile * 8);
    int count = 0;
    if (kAcross ? p < from.depth : i < from.extent) {
        count = clamp_count(kAcross ? from.extent - i : from.depth - p, 8);
    }
    load_eight(r,
               from.data + (count == 0 ? 0
                            : kAcross  ? p * from.stride + i
                                       : i * from.stride + p),
               count, from.aligned);
}
template <bool kAcross>
__device__ inline void store_fma_operand(const float (&r)[8], float (&to)[kFmaDepth][kTile]) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int x = 0; x < 8; ++x) {
        if constexpr (kAcross) {
            to[thread / 16][thread % 16 * 8 + x] = r[x];
        } else {
            to[thread / kTile * 8 + x][thread % kTile] = r[x];
        }
    }
}

// Threads stand 16 × 16; each has rows 4·y … and 64 + 4·y …, columns likewise.
template <bool kAAcross, bool kBAcross, class A, class B>
__device__ void fma_tile(const TileOperand<A>& a, const TileOperand<B>& b, const TileOutput& out,
                         FmaShared& shared) {
    const int y = static_cast<int>(threadIdx.x / 16) * 4, x = static_cast<int>(threadIdx.x % 16) * 4;
    const int64_t steps = (a.depth + kFmaDepth - 1) / kFmaDepth;
    float sums[8][8] = {};
    float next_a[8], next_b[8];
    load_fma_operand<kAAcross>(next_a, a, 0);
    load_fma_operand<kBAcross>(next_b, b, 0);
    for (int64_t step = 0; step < steps; ++step) {
        const int stage = static_cast<int>(step % 2);
        store_fma_operand<kAAcross>(next_a, shared.a[stage]);
        store_fma_operand<kBAcross>(next_b, shared.b[stage]);
        // The stage is whole. Who gets here has read the other stage, so it may be written after.
        __syncthreads();
        if (step + 1 < steps) {
            load_fma_operand<kAAcross>(next_a, a, (step + 1) * kFmaDepth);
            load_fma_operand<kBAcross>(next_b, b, (step + 1) * kFmaDepth);
        }
#pragma unroll
        for (int p = 0; p < kFmaDepth; ++p) {
            float left[8], right[8];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float4 l = *reinterpret_cast<const float4*>(&shared.a[stage][p][half * 64 + y]);
                const float4 r = *reinterpret_cast<const float4*>(&shared.b[stage][p][half * 64 + x]);
                left[half * 4] = l.x, left[half * 4 + 1] = l.y, left[half * 4 + 2] = l.z,
                            left[half * 4 + 3] = l.w;
                right[half * 4] = r.x, right[half * 4 + 1] = r.y, right[half * 4 + 2] = r.z,
                             right[half * 4 + 3] = r.w;
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
#pragma unroll
                for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; j += 2)
            out.store_pair(i / 4 * 64 + y + i % 4, j / 4 * 64 + x + j % 4, sums[i][j], sums[i][j + 1]);
    }
}

}  // namespace moebius::ops::cuda
