// Scales of 32 in the tiles of any_pairs.cuh. A row's block is four lanes' columns, one down the columns the
// rows of a pair of warps, and both directions' codes lie in the rows' order: a thread makes the column-wise
// codes of the numbers that it left in shared memory itself. So nothing but the columns' largest magnitudes
// passes between warps, and the pairs of a block never wait for each other.
#pragma once

#include "moebius/ops/quantize/any_pairs_tile.cuh"
#include "moebius/ptx/sync.h"

namespace moebius::ops::cuda::pairs {

static_assert(kWarpRows * 2 == kMxBlock, "two warps");

// Finds the scales of a thread's rows, one row after the other.
class MxRows {
  public:
    // Of every two lanes the first finds the first side's scale, the second the second's.
    __device__ __forceinline__ MxRows(const Quantize& q, const Place& at) {
        const int64_t across = q.source.columns / kMxBlock;
        const int64_t block = (at.column + at.chunk % 2 * at.apart) / kMxBlock + at.chunk / 4;
        const int row = at.row_of(0);
        auto* scale = static_cast<uint8_t*>(q.row.scale);
        if (q.layout == ScaleLayout::Swizzled) {
            to_ = scale + (at.row_block * (across / 4) + block / 4) * 512 + row % 32 * 16 + row / 32 * 4 +
                  block % 4;
        } else {
            const int64_t first = q.layout == ScaleLayout::Compact ? at.first : at.row_block * kTile;
            to_ = scale + (first + row) * across + block;
        }
    }
    // By whole warps.
    template <bool kE5M2>
    __device__ __forceinline__ void find(const Quantize& q, const Place& at, bool exists,
                                         const Eights& magnitudes, PowersOfTwo (&scale)[2]) const {
        uint32_t both = most_of_sides(magnitudes);
        both = ptx::max_bf16(both, __shfl_xor_sync(~0u, both, 1));
        both = ptx::max_bf16(both, __shfl_xor_sync(~0u, both, 2));
        both = ptx::max_bf16(both, 0u);  // of NaN alone
        const bool second = at.chunk % 2 != 0;
        const uint32_t code = ptx::e8m0_of_bf16(second ? both >> 16 : both & 0xFFFFu, kE5M2);
        const uint32_t own = ptx::e8m0_reciprocal_bf16(code) * 0x10001u;
        const uint32_t other = __shfl_xor_sync(~0u, own, 1);
        scale[0].pair = second ? other : own;
        scale[1].pair = second ? own : other;
        // Padding has the scales of zeros.
        if (at.chunk % 4 < 2 && (exists || q.layout != ScaleLayout::Compact))
            *to_ = static_cast<uint8_t>(code);
    }
    __device__ __forceinline__ void advance(const Quantize& q) {
        to_ += 2 * (q.layout == ScaleLayout::Swizzled ? 16 : static_cast<int>(q.source.columns) / kMxBlock);
    }

  private:
    uint8_t* to_;
};

// Scales of as many columns side by side as `bytes` has, of the 32 rows of a pair of warps; `bytes` is free
// to go on.
template <int kBytes>
__device__ __forceinline__ void store_mx_column_codes(const Quantize& q, const Place& at, int64_t column,
                                                      const uint32_t (&words)[kBytes / 4]) {
    auto* scale = static_cast<uint8_t*>(q.column.scale);
    const int block = at.warp / 2;
    if (q.layout == ScaleLayout::Swizzled) {
        // The expert's matrix begins before its first tile of rows, which may not be this one.
        const int64_t before = (at.row_block - at.tile) * (q.source.columns / kTile);
        uint8_t* to = scale + (before + column / kTile * at.tiles + at.tile) * 512 + column % 32 * 16 +
                      column % kTile / 32 * 4 + block;
#pragma unroll
        for (int i = 0; i < kBytes; ++i) to[i * 16] = static_cast<uint8_t>(words[i / 4] >> i % 4 * 8);
        return;
    }
    const bool compact = q.layout == ScaleLayout::Compact;
    if (compact && kMxBlock * block >= at.rows) return;
    const int64_t row = (compact ? int64_t{at.mx_blocks} : at.row_block * (kTile / kMxBlock)) + block;
    uint8_t* to = scale + row * q.source.columns + column;
    if constexpr (kBytes == 8) {
        *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
    } else {
        *reinterpret_cast<uint32_t*>(to) = words[0];
    }
}

// By pairs of warps, after their rows: what each number of a thread's columns is multiplied by. A lane finds
// the scales of half of its columns, of two sides those of one.
template <bool kE5M2, int kSides>
__device__ __forceinline__ void find_mx_columns(const Quantize& q, const Place& at,
                                                const EightsOf<kSides>& most, SharedOf<kSides>& shared,
                                                PowersOfTwo (&scale)[kSides][4]) {
    constexpr int kOwn = 2 * kSides;  // pairs of columns
    const bool upper = at.half != 0;
    uint32_t own[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const uint32_t first = most.pairs[0][i], second = most.pairs[(kOwn + i) / 4][(kOwn + i) % 4];
        own[i] = ptx::max_bf16(upper ? second : first, __shfl_xor_sync(~0u, upper ? first : second, 16));
    }
    const int pair_of_warps = 1 + at.warp / 2;
    uint32_t* to = &shared.most[at.warp][at.lane * kOwn];
    const uint32_t* from = &shared.most[at.warp ^ 1][at.lane * kOwn];
    ptx::named_barrier_wait(pair_of_warps, 64);  // the tile's before have been read
#pragma unroll
    for (int i = 0; i < kOwn; ++i) to[i] = own[i];
    ptx::named_barrier_wait(pair_of_warps, 64);  // both warps' largest magnitudes
    uint32_t codes[kOwn / 2] = {};
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const uint32_t both = ptx::max_bf16(own[i], from[i]);
        const uint32_t low = ptx::e8m0_of_bf16(both & 0xFFFFu, kE5M2),
                       high = ptx::e8m0_of_bf16(both >> 16, kE5M2);
        codes[i / 2] |= (low | high << 8) << i % 2 * 16;
        own[i] = ptx::e8m0_reciprocal_bf16(low) | ptx::e8m0_reciprocal_bf16(high) << 16;
        const uint32_t other = __shfl_xor_sync(~0u, own[i], 16);
        scale[0][i].pair = upper ? other : own[i];
        scale[(kOwn + i) / 4][(kOwn + i) % 4].pair = upper ? own[i] : other;
    }
    if (at.warp % 2 != 0) return;
    const int64_t column = at.column + 8 * at.chunk + at.half * (kSides == 2 ? at.apart : 4);
    store_mx_column_codes<2 * kOwn>(q, at, column, codes);
}

template <bool kE5M2, int kSides>
__device__ __forceinline__ void write_mx_columns(const Quantize& q, const Place& at,
                                                 const EightsOf<kSides>& most, SharedOf<kSides>& shared) {
    constexpr int kTogether = 2;  // steps that are read before one is written
    static_assert(kSteps % kTogether == 0);
    PowersOfTwo scale[kSides][4];
    find_mx_columns<kE5M2>(q, at, most, shared, scale);
    const int row = at.row_of(0);
    uint32_t place = place_of(shared, row, at.chunk);
    uint8_t* to = q.column.data + (at.first + row) * q.column.stride + at.column + 8 * at.chunk;
#pragma unroll
    for (int begin = 0; begin < kSteps; begin += kTogether) {
        uint4 numbers[kTogether][kSides];
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
#pragma unroll
            for (int side = 0; side < kSides; ++side)
                numbers[n][side] = ptx::load_shared(place + side * 2 * kBoxBytes);
            place += 2 * SharedOf<kSides>::kRowBytes;
        }
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
#pragma unroll
            for (int side = 0; side < kSides; ++side) {
                const uint32_t* pairs = &numbers[n][side].x;
                uint32_t codes[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) codes[i] = code_pair<kE5M2>(pairs[i], scale[side][i]);
                if (at.exists(begin + n)) {
                    *reinterpret_cast<uint2*>(to + side * at.apart) = {codes[0] | codes[1] << 16,
                                                                       codes[2] | codes[3] << 16};
                }
            }
            to += 2 * q.column.stride;
        }
    }
}

}  // namespace moebius::ops::cuda::pairs
