// A tile of the kernels that any_pairs.cuh describes: its place, how its numbers lie in shared memory, what a
// thread holds of it, and pairs of numbers to codes.
#pragma once

#include "moebius/ops/quantize/any_tiles.cuh"
#include "moebius/ptx/matrix.h"
#include "moebius/ptx/mbarrier.h"  // shared_address

namespace moebius::ops::cuda::pairs {

using tiles::Blocks;
using tiles::Quantize;

constexpr int kMxBlock = 32;
constexpr int kWarps = kTileThreads / 32, kWarpRows = kTile / kWarps, kSteps = kWarpRows / 2;

// The tile's numbers: 128 rows of 256 bytes a side, a side after the other, in boxes of 128 bytes whose
// chunks of 16 are turned by row, so that the second pass' matrices lie in different banks.
constexpr int kSideBytes = kTile * 2, kBoxBytes = 128;
template <int kSides>
struct SharedOf {
    static constexpr int kRowBytes = kSides * kSideBytes;
    unsigned char numbers[kTile * kRowBytes];
    uint32_t most[kWarps][kSides * kTile / 2];  // pairs of columns: largest magnitudes of a warp's rows
    float scale[kSides * kTile];                // of the columns
};
using Shared = SharedOf<2>;

// Eight columns of each side, or their largest magnitudes, in pairs.
template <int kSides>
struct EightsOf {
    uint32_t pairs[kSides][4];
};
using Eights = EightsOf<2>;

// A thread's place: its warp has rows kWarpRows · warp … of a tile, a half of it every second one.
struct Place {
    int warp, lane, half, chunk;  // chunk: eight columns
    int rows;                     // of the tile that exist
    int64_t first, column;        // the tile's first row and column
    int64_t apart;                // from a side to the other
    int64_t row_block;            // tiles of rows before this one, of all experts
    int expert, tile, tiles;      // tile, tiles: of the expert's this one, all
    int mx_blocks;                // of 32 rows before this tile's, of all experts
    __device__ int row_of(int step) const { return kWarpRows * warp + 2 * step + half; }
    __device__ bool exists(int step) const { return row_of(step) < rows; }
};

// Of tile `index` of rows. False: there are fewer.
template <bool kMx = false>
__device__ __forceinline__ bool find_place(const ExpertSizes& sizes, int64_t index, Place& at) {
    at.warp = static_cast<int>(threadIdx.x) / 32;
    at.lane = static_cast<int>(threadIdx.x) % 32;
    at.half = at.lane / 16;
    at.chunk = at.lane % 16;
    at.row_block = index;
    const ptx::ExpertTile own = ptx::find_expert_tile(sizes, kTile, index);
    if (own.expert < 0) return false;
    const int64_t row = own.tile * kTile;
    at.expert = static_cast<int>(own.expert);
    at.first = own.first + row;
    at.rows = own.rows - row < kTile ? static_cast<int>(own.rows - row) : kTile;
    at.tile = static_cast<int>(own.tile);
    at.tiles = static_cast<int>((own.rows + kTile - 1) / kTile);
    if constexpr (kMx)
        at.mx_blocks = static_cast<int>(mx_blocks_before(sizes, own.expert)) + at.tile * (kTile / kMxBlock);
    return true;
}

// Where eight columns of a row wait for the second pass; `chunk` of 16 a side. The turn is one for a
// thread's rows of the first pass.
template <int kSides>
__device__ __forceinline__ uint32_t place_of(const SharedOf<kSides>& shared, int row, int chunk) {
    const int turn = row % 64 / 16 * 2 + row % 2;
    return ptx::shared_address(shared.numbers) +
           static_cast<uint32_t>(row * SharedOf<kSides>::kRowBytes + chunk / 8 * kBoxBytes +
                                 (chunk % 8 ^ turn) * 16);
}
static_assert(kWarpRows == 16);

template <bool kE5M2>
__device__ __forceinline__ uint32_t code_pair(uint32_t pair, float scale) {
    const float low = __fmul_rn(ptx::low_bf16(pair), scale), high = __fmul_rn(ptx::high_bf16(pair), scale);
    return kE5M2 ? ptx::E5M2::encode(low, high) : ptx::E4M3::encode(low, high);
}
// Powers of two that the numbers of a pair are multiplied by, in bf16 too: exact but for products below the
// smallest code.
struct PowersOfTwo {
    uint32_t pair;
};
template <bool kE5M2>
__device__ __forceinline__ uint32_t code_pair(uint32_t pair, PowersOfTwo scale) {
    const uint32_t scaled = ptx::multiply_bf16(pair, scale.pair);
    const float low = ptx::low_bf16(scaled), high = ptx::high_bf16(scaled);
    return kE5M2 ? ptx::E5M2::encode(low, high) : ptx::E4M3::encode(low, high);
}

// The larger of either side's, of a row's eight columns: the first side's in the lower half.
__device__ __forceinline__ uint32_t most_of_sides(const Eights& magnitudes) {
    uint32_t most[2];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const uint32_t(&m)[4] = magnitudes.pairs[side];
        most[side] = ptx::max_bf16(ptx::max_bf16(m[0], m[1]), ptx::max_bf16(m[2], m[3]));
    }
    return ptx::max_bf16(__byte_perm(most[0], most[1], 0x5410), __byte_perm(most[0], most[1], 0x7632));
}

// Takes what `numbers` holds into the largest magnitudes of the thread's columns, which it returns.
template <int kSides>
__device__ __forceinline__ EightsOf<kSides> magnitudes_of(const EightsOf<kSides>& numbers,
                                                          EightsOf<kSides>& most) {
    EightsOf<kSides> magnitudes;
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            magnitudes.pairs[side][i] = numbers.pairs[side][i] & 0x7FFF7FFFu;
            most.pairs[side][i] = ptx::max_bf16(most.pairs[side][i], magnitudes.pairs[side][i]);
        }
    }
    return magnitudes;
}

template <int kSides>
__device__ __forceinline__ float largest(const EightsOf<kSides>& magnitudes) {
    uint32_t most = 0;
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
#pragma unroll
        for (int i = 0; i < 4; ++i) most = ptx::max_bf16(most, magnitudes.pairs[side][i]);
    }
    return fmaxf(ptx::low_bf16(most), ptx::high_bf16(most));
}

}  // namespace moebius::ops::cuda::pairs
