// bf16 tiles of attention in shared memory and their products on the tensor cores of sm_80.
//
// A tile: rows of kWidth elements (a head's, zeros past head_dim), in chunks of 16 bytes; chunk c of row r
// lies at place c ^ (r % 8), or c ^ (r / 2 % 4) where a row has only four. Eight rows that are read together
// lie in eight different bank groups.
#pragma once

#include "moebius/ops/attention/any_args.cuh"
#include "moebius/ptx/cp_async.h"
#include "moebius/ptx/mma.h"

namespace moebius::ops::cuda {

inline constexpr int kMmaThreads = 128;  // four warps, each with 16 rows of a tile of 64
inline constexpr int kWarpRows = 16, kBlockRows = 64;

template <int kWidth>
__device__ inline uint32_t chunk_address(uint32_t tile, int row, int chunk) {
    const int place = kWidth >= 64 ? chunk ^ (row % 8) : chunk ^ (row / 2 % 4);
    return tile + static_cast<uint32_t>(row * kWidth * 2 + place * 16);
}

// Rows [0, kRows) of one head from token `first`; those past `count` are zeros and not read.
template <int kWidth, int kRows>
__device__ inline void load_tile(uint32_t tile, const Heads<const __nv_bfloat16>& from, int64_t first,
                                 int64_t head, int64_t count, int head_dim) {
    constexpr int kChunks = kWidth / 8;
    const __nv_bfloat16* base = from.at(first, head);
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kMmaThreads) {
        const int row = i / kChunks, chunk = i % kChunks;
        const int left = head_dim - chunk * 8;
        const int some = row >= count || left <= 0 ? 0 : left < 8 ? left : 8;
        const __nv_bfloat16* source = some == 0 ? from.data : base + row * from.token + chunk * 8;
        const uint32_t to = chunk_address<kWidth>(tile, row, chunk);
        if (from.aligned) {
            ptx::cp_async_16(to, source, some * 2);
        } else {
            uint32_t words[4];
            for (int w = 0; w < 4; ++w) {
                const uint32_t low = 2 * w < some ? __bfloat16_as_ushort(source[2 * w]) : 0u;
                const uint32_t high = 2 * w + 1 < some ? __bfloat16_as_ushort(source[2 * w + 1]) : 0u;
                words[w] = low | high << 16;
            }
            ptx::store_shared_16(to, words);
        }
    }
}

// A (16 × 16) at row i, depth p of a tile.
template <int kWidth>
__device__ inline void load_a(uint32_t (&r)[4], uint32_t tile, int i, int p) {
    const int lane = static_cast<int>(threadIdx.x % 32), matrix = lane / 8;
    ptx::load_matrices(chunk_address<kWidth>(tile, i + matrix % 2 * 8 + lane % 8, p / 8 + matrix / 2), r[0],
                       r[1], r[2], r[3]);
}
// Two B (16 × 8) whose columns are rows j and j + 8 of the tile, the depth along them.
template <int kWidth>
__device__ inline void load_b_along(uint32_t (&r)[4], uint32_t tile, int j, int p) {
    const int lane = static_cast<int>(threadIdx.x % 32), matrix = lane / 8;
    ptx::load_matrices(chunk_address<kWidth>(tile, j + matrix / 2 * 8 + lane % 8, p / 8 + matrix % 2), r[0],
                       r[1], r[2], r[3]);
}
// Two B (16 × 8) at columns j and j + 8 of the tile, the depth down its rows.
template <int kWidth>
__device__ inline void load_b_across(uint32_t (&r)[4], uint32_t tile, int j, int p) {
    const int lane = static_cast<int>(threadIdx.x % 32), matrix = lane / 8;
    ptx::load_matrices_transposed(
        chunk_address<kWidth>(tile, p + matrix % 2 * 8 + lane % 8, j / 8 + matrix / 2), r[0], r[1], r[2],
        r[3]);
}

template <int kCount>
__device__ inline void clear(float (&sums)[kCount][4]) {
#pragma unroll
    for (int j = 0; j < kCount; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) sums[j][x] = 0.0f;
}

// A warp's 16 rows, from row i, of a tile times the rows of another: scores (16, kColumns).
template <int kWidth, int kColumns>
__device__ inline void multiply_rows(float (&scores)[kColumns / 8][4], uint32_t left, int i, uint32_t right) {
    clear(scores);
#pragma unroll
    for (int p = 0; p < kWidth; p += 16) {
        uint32_t a[4];
        load_a<kWidth>(a, left, i, p);
#pragma unroll
        for (int j = 0; j < kColumns; j += 16) {
            uint32_t b[4];
            load_b_along<kWidth>(b, right, j, p);
            ptx::mma_bf16(scores[j / 8], a, b[0], b[1]);
            ptx::mma_bf16(scores[j / 8 + 1], a, b[2], b[3]);
        }
    }
}

// Sums (16, 16·kSteps) as the left operand of the next product.
template <int kSteps>
__device__ inline void as_left(uint32_t (&a)[kSteps][4], const float (&x)[2 * kSteps][4]) {
#pragma unroll
    for (int p = 0; p < kSteps; ++p) {
        a[p][0] = ptx::pack_bf16(x[2 * p][0], x[2 * p][1]);
        a[p][1] = ptx::pack_bf16(x[2 * p][2], x[2 * p][3]);
        a[p][2] = ptx::pack_bf16(x[2 * p + 1][0], x[2 * p + 1][1]);
        a[p][3] = ptx::pack_bf16(x[2 * p + 1][2], x[2 * p + 1][3]);
    }
}

// out (16, kColumns) += left (16, 16·kSteps) · columns [j, j + kColumns) of a tile of as many rows.
template <int kWidth, int kColumns, int kSteps>
__device__ inline void add_product(float (&out)[kColumns / 8][4], const uint32_t (&left)[kSteps][4],
                                   uint32_t tile, int j) {
#pragma unroll
    for (int p = 0; p < kSteps; ++p) {
#pragma unroll
        for (int c = 0; c < kColumns; c += 16) {
            uint32_t b[4];
            load_b_across<kWidth>(b, tile, j + c, p * 16);
            ptx::mma_bf16(out[c / 8], left[p], b[0], b[1]);
            ptx::mma_bf16(out[c / 8 + 1], left[p], b[2], b[3]);
        }
    }
}

// Elements (row, column) and the next of a head's row.
__device__ inline void store_pair(__nv_bfloat16* row, int column, int head_dim, bool paired, float x,
                                  float y) {
    if (column + 1 < head_dim && paired) {
        *reinterpret_cast<__nv_bfloat162*>(row + column) = __floats2bfloat162_rn(x, y);
    } else {
        if (column < head_dim) row[column] = __float2bfloat16_rn(x);
        if (column + 1 < head_dim) row[column + 1] = __float2bfloat16_rn(y);
    }
}

// A warp's sums (16, kColumns) times `factor` to rows `first` + 0 … 15 of a sequence, from column `column`.
template <int kColumns>
__device__ inline void store_rows(const float (&sums)[kColumns / 8][4], const Heads<__nv_bfloat16>& to,
                                  const SequenceTile& tile, int64_t first, int64_t head, int column,
                                  int head_dim, float factor) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t row = first + half * 8 + lane / 4;
        if (row >= tile.length) continue;
        __nv_bfloat16* at = to.at(tile.begin + row, head);
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
            store_pair(at, column + j * 8 + lane % 4 * 2, head_dim, to.paired, sums[j][2 * half] * factor,
                       sums[j][2 * half + 1] * factor);
        }
    }
}

}  // namespace moebius::ops::cuda
