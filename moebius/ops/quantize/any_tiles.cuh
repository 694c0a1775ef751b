// A tile of 128 × 128 numbers, held by the 256 threads of a block, to codes and scales in both directions:
// what quantize and the operations that quantize what they compute have in common. Every block of every
// format lies whole within a tile. A thread holds 8 × 8 neighbours, of rows 8·(thread / 16) … and columns
// 8·(thread % 16) ….
//
// The bits are the CPU's: products and quotients are __fmul_rn and __fdiv_rn, rounded once and not
// contracted, and no flag here flushes subnormal numbers. Largest magnitudes of experts and counts are
// integer atomics, whatever whose order.
#pragma once

#include <type_traits>

#include "moebius/ops/device_types.cuh"
#include "moebius/ops/quantize/any_source.cuh"
#include "moebius/ptx/cp_async.h"
#include "moebius/ptx/float8.h"
#include "moebius/ptx/matrix.h"
#include "moebius/ptx/reduce.h"
#include "moebius/runtime/transfer.h"

namespace moebius::ops::cuda::tiles {

constexpr int kEach = 8;  // a thread's rows, and columns

// A thread's numbers, as the source's type holds them: two to a register where that is bf16.
template <class T>
class Numbers {
    static constexpr int kEachWord = std::is_same_v<T, float> ? 1 : 2;

  public:
    static constexpr int kWords = kEach / kEachWord;  // of a row

    // Rounds to T.
    __device__ void put(int i, const float (&row)[kEach]) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
            if constexpr (kEachWord == 1) {
                words_[i][w] = __float_as_uint(row[w]);
            } else {
                const float pair[2] = {row[2 * w], row[2 * w + 1]};
                words_[i][w] = ptx::pack<T, 2>(pair).word;
            }
        }
    }
    __device__ void put(int i, const Eight<T>& row) {
        const uint32_t* words = &row.parts[0].x;
#pragma unroll
        for (int w = 0; w < kWords; ++w) words_[i][w] = words[w];
    }
    __device__ float at(int i, int j) const {
        const uint32_t word = words_[i][j / kEachWord];
        if constexpr (kEachWord == 1) return __uint_as_float(word);
        return __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
    }
    __device__ void row(int i, float (&v)[kEach]) const {
#pragma unroll
        for (int j = 0; j < kEach; ++j) v[j] = at(i, j);
    }
    __device__ void column(int j, float (&v)[kEach]) const {
#pragma unroll
        for (int i = 0; i < kEach; ++i) v[i] = at(i, j);
    }
    // Largest magnitudes, NaN left out: of a row, of every column, of all.
    __device__ float row_amax(int i) const {
        uint32_t most = magnitude(words_[i][0]);
#pragma unroll
        for (int w = 1; w < kWords; ++w) most = larger(most, magnitude(words_[i][w]));
        return largest(most);
    }
    __device__ void column_amax(float (&amax)[kEach]) const {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
            uint32_t most = magnitude(words_[0][w]);
#pragma unroll
            for (int i = 1; i < kEach; ++i) most = larger(most, magnitude(words_[i][w]));
            if constexpr (kEachWord == 1) {
                amax[w] = fmaxf(0.0f, __uint_as_float(most));
            } else {
                amax[2 * w] = fmaxf(0.0f, __uint_as_float(most << 16));
                amax[2 * w + 1] = fmaxf(0.0f, __uint_as_float(most & 0xFFFF0000u));
            }
        }
    }
    __device__ float amax() const {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
            for (int w = 0; w < kWords; ++w) most = larger(most, magnitude(words_[i][w]));
        }
        return largest(most);
    }

  private:
    // Of a word's numbers, each by itself; of a NaN and a number the number.
    __device__ static uint32_t magnitude(uint32_t word) {
        return word & (kEachWord == 1 ? 0x7FFFFFFFu : 0x7FFF7FFFu);
    }
    __device__ static uint32_t larger(uint32_t a, uint32_t b) {
        if constexpr (kEachWord == 1) return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
        return ptx::max_bf16(a, b);
    }
    __device__ static float largest(uint32_t most) {
        if constexpr (kEachWord == 1) return fmaxf(0.0f, __uint_as_float(most));
        return fmaxf(fmaxf(0.0f, __uint_as_float(most << 16)), __uint_as_float(most & 0xFFFF0000u));
    }

    uint32_t words_[kEach][kWords];
};

// Kinds of blocks. Weight: 128 × 128.
enum class Blocks { Tensor, Line128, Weight128, Mx };

struct Side {
    uint8_t* data;  // null: not asked for
    void* scale;
    int64_t stride;  // between lines of the data
    bool aligned;    // lines of codes begin on 16 bytes, whole ones
};

struct Quantize {
    Source source;
    Side row, column;
    ScaleLayout layout;
    bool weight, e5m2, power_of_two;
    float largest, reciprocal, epsilon, overflow;
    const float *amax, *scale;   // (experts), of Tensor; one is null
    unsigned* observed;          // (experts) bits of a float, or null
    unsigned long long* counts;  // (experts, 2), or null
};

// What elements are multiplied by, and what is stored beside the codes.
struct Scale {
    float scale, inverse;
};

__device__ inline Scale scale_of(const Quantize& q, float amax) {
    if (amax < q.epsilon) amax = q.epsilon;
    const uint32_t exponent = __float_as_uint(amax) >> 23;
    if (q.power_of_two && exponent >= ptx::kLeastExponentOfAmax && exponent < 255) {
        const uint32_t field = ptx::power_of_two_below(__float_as_uint(amax), q.e5m2);
        return {__uint_as_float(field << 23), __uint_as_float((254u - field) << 23)};
    }
    float scale = 1.0f;
    if (amax > 0.0f && amax <= 0x1.fffffep127f) {
        scale = __fdiv_rn(q.largest, amax);
        if (scale > 0x1.fffffep127f) scale = q.overflow;
        if (q.power_of_two) scale = __uint_as_float(__float_as_uint(scale) & 0xFF800000u);
    }
    return {scale, __fdiv_rn(1.0f, scale)};
}
// Of an expert's whole tensor: from its amax, or as given.
__device__ inline Scale scale_of_expert(const Quantize& q, int64_t expert) {
    if (q.scale == nullptr) return scale_of(q, q.amax[expert]);
    return {q.scale[expert], __fdiv_rn(1.0f, q.scale[expert])};
}

__device__ inline uint32_t encode(const Quantize& q, float low, float high) {
    return q.e5m2 ? ptx::E5M2::encode(low, high) : ptx::E4M3::encode(low, high);
}

// Eight codes in order of their numbers.
__device__ inline uint2 encode(const Quantize& q, const float (&v)[kEach]) {
    return {encode(q, v[0], v[1]) | encode(q, v[2], v[3]) << 16, encode(q, v[4], v[5]) | encode(q, v[6], v[7])
                                                                                             << 16};
}

__device__ inline void store_codes(uint8_t* to, uint2 codes, int count, bool aligned) {
    if (aligned && count >= kEach) {
        *reinterpret_cast<uint2*>(to) = codes;
        return;
    }
    for (int i = 0; i < kEach && i < count; ++i)
        to[i] = static_cast<uint8_t>((i < 4 ? codes.x : codes.y) >> i % 4 * 8);
}

struct Counts {
    unsigned underflows = 0, saturated = 0;

    __device__ void add(const Quantize& q, const float (&values)[kEach], const float (&scaled)[kEach],
                        uint2 codes) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const uint32_t code = (i < 4 ? codes.x : codes.y) >> i % 4 * 8 & 0x7Fu;
            underflows += values[i] != 0.0f && code == 0;
            saturated += fabsf(scaled[i]) > q.largest;
        }
    }
};

// The place of a thread and of its tile.
struct Place {
    TilePlace tile;
    int group, across;    // thread / 16, thread % 16
    int64_t row, column;  // of the thread's first element, from the expert's first row
    int rows, columns;    // of the thread's that exist, 0 … 8
};

struct Shared {
    float column_amax[kTileThreads / 32][kTile];
    float column_scale[4][kTile];   // of blocks of 32 rows, or [0] alone
    uint2 codes[kTile][kTile / 8];  // transposed: [column][8 rows], at 8 rows' place ^ (column / 8)
};

// ---- Row-wise --------------------------------------------------------------------------------------------

__device__ inline void store_mx_row_code(const Quantize& q, const Place& at, int i, uint32_t code) {
    auto* scale = static_cast<uint8_t*>(q.row.scale);
    const int64_t tiles = (q.source.columns + 127) / 128, block = at.column / 32, row = at.row + i;
    if (q.layout == ScaleLayout::Compact) {
        if (i < at.rows && block * 32 < q.source.columns)
            scale[(at.tile.own.first + row) * ((q.source.columns + 31) / 32) + block] =
                static_cast<uint8_t>(code);
    } else if (q.layout == ScaleLayout::Padded) {
        scale[(at.tile.row_blocks * 128 + row % 128) * tiles * 4 + block] = static_cast<uint8_t>(code);
    } else {
        scale[(at.tile.row_blocks * tiles + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 +
              block % 4] = static_cast<uint8_t>(code);
    }
}

// Scales of the thread's rows. The lanes that share rows (kLanes: those of a block) divide them among
// themselves: each finds the largest magnitude of kOwn rows, makes their scales, and all get them from there.
template <Blocks kBlocks, class T>
__device__ void find_row_scales(const Quantize& q, const Place& at, const Numbers<T>& numbers,
                                float (&factor)[kEach]) {
    constexpr int kLanes = kBlocks == Blocks::Mx ? 4 : 16, kOwn = kBlocks == Blocks::Mx ? 2 : 1;
    float most[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) most[i] = numbers.row_amax(i);
    int own = 0, step = kLanes / 2;
#pragma unroll
    for (int left = kEach / 2; left >= kOwn; left /= 2, step /= 2) {
        const bool upper = (at.across & step) != 0;
        if (upper) own += left;
#pragma unroll
        for (int i = 0; i < left; ++i) {
            const float given = upper ? most[i] : most[i + left], kept = upper ? most[i + left] : most[i];
            most[i] = fmaxf(kept, __shfl_xor_sync(~0u, given, step));
        }
    }
    if constexpr (kBlocks != Blocks::Mx) most[0] = fmaxf(most[0], __shfl_xor_sync(~0u, most[0], step));
    float scales[kOwn];
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
        if constexpr (kBlocks == Blocks::Mx) {
            const uint32_t code = ptx::e8m0_roundup(__float_as_uint(__fmul_rn(most[n], q.reciprocal)));
            scales[n] = ptx::e8m0_reciprocal(code);
            store_mx_row_code(q, at, own + n, code);
        } else {
            const Scale scale = scale_of(q, most[n]);
            scales[n] = scale.scale;
            if (at.across % 2 == 0 && own < at.rows) {
                static_cast<float*>(q.row.scale)[at.tile.column / 128 * ((q.source.rows + 3) / 4 * 4) +
                                                 at.tile.own.first + at.row + own] = scale.inverse;
            }
        }
    }
    const int first_lane = at.group % 2 * 16 + at.across / kLanes * kLanes,
              lanes_each = kLanes * kOwn / kEach;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
        factor[i] = __shfl_sync(~0u, scales[i % kOwn], first_lane + i / kOwn * lanes_each);
}

template <Blocks kBlocks, class T>
__device__ void write_rows(const Quantize& q, const Place& at, const Numbers<T>& numbers, float scale,
                           Counts& counts) {
    const int64_t first = at.tile.own.first + at.row;
    float factor[kEach];
    if constexpr (kBlocks == Blocks::Line128 || kBlocks == Blocks::Mx) {
        find_row_scales<kBlocks>(q, at, numbers, factor);
    } else {
#pragma unroll
        for (int i = 0; i < kEach; ++i) factor[i] = scale;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        float v[kEach], scaled[kEach];
        numbers.row(i, v);
#pragma unroll
        for (int j = 0; j < kEach; ++j) scaled[j] = __fmul_rn(v[j], factor[i]);
        const uint2 codes = encode(q, scaled);
        if (q.counts != nullptr) counts.add(q, v, scaled, codes);
        if (i < at.rows)
            store_codes(q.row.data + (first + i) * q.row.stride + at.column, codes, at.columns,
                        q.row.aligned);
    }
}

// ---- Column-wise -----------------------------------------------------------------------------------------

__device__ inline void store_mx_column_code(const Quantize& q, const Place& at, int block, int column,
                                            uint32_t code) {
    auto* scale = static_cast<uint8_t*>(q.column.scale);
    const int64_t c = at.tile.column + column, j = at.tile.row / 32 + block;  // block of the expert's
    const int64_t tiles = (q.source.columns + 127) / 128;
    const auto byte = static_cast<uint8_t>(code);
    if (q.layout == ScaleLayout::Compact) {
        if (at.tile.row + 32 * block < at.tile.own.rows && c < q.source.columns)
            scale[(at.tile.mx_blocks + j) * q.source.columns + c] = byte;
    } else if (q.layout == ScaleLayout::Padded) {
        scale[(at.tile.row_blocks * 4 + block) * tiles * 128 + c] = byte;
    } else {
        // The expert's matrix begins before its first tile of rows, which is not this one.
        const int64_t before = at.tile.row_blocks - at.tile.row / 128,
                      across = (at.tile.own.rows + 127) / 128;
        scale[before * tiles * 512 + (c / 128 * across + j / 4) * 512 + c % 32 * 16 + c % 128 / 32 * 4 +
              j % 4] = byte;
    }
}

// Fills shared.column_scale: what a thread's column is multiplied by.
template <Blocks kBlocks, class T>
__device__ void find_column_scales(const Quantize& q, const Place& at, const Numbers<T>& numbers,
                                   Shared& shared) {
    float most[kEach];
    numbers.column_amax(most);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const float amax = fmaxf(most[j], __shfl_xor_sync(~0u, most[j], 16));
        if (at.group % 2 == 0) shared.column_amax[at.group / 2][at.across * kEach + j] = amax;
    }
    __syncthreads();  // the columns' amax of every sixteen rows
    constexpr int kBlocksDown = kBlocks == Blocks::Mx ? 4 : 1, kWarpsEach = 8 / kBlocksDown;
    for (int n = static_cast<int>(threadIdx.x); n < kBlocksDown * kTile; n += kTileThreads) {
        const int block = n / kTile, column = n % kTile;
        float amax = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarpsEach; ++w)
            amax = fmaxf(amax, shared.column_amax[block * kWarpsEach + w][column]);
        if constexpr (kBlocks == Blocks::Mx) {
            const uint32_t code = ptx::e8m0_roundup(__float_as_uint(__fmul_rn(amax, q.reciprocal)));
            shared.column_scale[block][column] = ptx::e8m0_reciprocal(code);
            store_mx_column_code(q, at, block, column, code);
        } else {
            const Scale own = scale_of(q, amax);
            shared.column_scale[0][column] = own.scale;
            if (at.tile.column + column < q.source.columns) {
                static_cast<float*>(
                    q.column.scale)[at.tile.row_blocks * q.source.columns + at.tile.column + column] =
                    own.inverse;
            }
        }
    }
    __syncthreads();  // the columns' scales
}

// Codes that lie transposed, from shared memory: 16 bytes of a column a thread.
__device__ inline void store_transposed(const Quantize& q, const Place& at, const Shared& shared) {
    const int64_t rows_left = at.tile.own.rows - at.tile.row;
    // Of activations the padding too: its codes are those of zeros.
    const int rows = !q.weight || rows_left > kTile ? kTile : static_cast<int>(rows_left);
    const int64_t origin = q.weight ? at.tile.own.expert * q.source.columns * q.column.stride + at.tile.row
                                    : at.tile.row_blocks * 128;
    for (int n = static_cast<int>(threadIdx.x); n < kTile * 8; n += kTileThreads) {
        const int column = n / 8, pair = n % 8, turn = column / 8;
        if (at.tile.column + column >= q.source.columns) return;
        // The pair stands as a whole at pair ^ (turn / 2), its halves exchanged where `turn` is odd.
        const uint2 low = shared.codes[column][2 * pair ^ turn],
                    high = shared.codes[column][(2 * pair + 1) ^ turn];
        uint8_t* to = q.column.data + origin + (at.tile.column + column) * q.column.stride + pair * 16;
        if (q.column.aligned && pair * 16 + 16 <= rows) {
            *reinterpret_cast<uint4*>(to) = {low.x, low.y, high.x, high.y};
        } else {
            store_codes(to, low, rows - pair * 16, false);
            store_codes(to + kEach, high, rows - pair * 16 - kEach, false);
        }
    }
}

template <Blocks kBlocks, class T>
__device__ void write_columns(const Quantize& q, const Place& at, const Numbers<T>& numbers, float scale,
                              Shared& shared, Counts& counts) {
    constexpr bool kFound = kBlocks == Blocks::Line128 || kBlocks == Blocks::Mx;
    if constexpr (kFound) find_column_scales<kBlocks>(q, at, numbers, shared);
    float factor[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int block = kBlocks == Blocks::Mx ? at.group / 4 : 0;
        factor[j] = kFound ? shared.column_scale[block][at.across * kEach + j] : scale;
    }
    const bool counting = q.counts != nullptr && q.row.data == nullptr;
    if constexpr (kBlocks == Blocks::Mx) {
        const int64_t first = at.tile.own.first + at.row;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            float v[kEach], scaled[kEach];
            numbers.row(i, v);
#pragma unroll
            for (int j = 0; j < kEach; ++j) scaled[j] = __fmul_rn(v[j], factor[j]);
            const uint2 codes = encode(q, scaled);
            if (counting) counts.add(q, v, scaled, codes);
            if (i < at.rows)
                store_codes(q.column.data + (first + i) * q.column.stride + at.column, codes, at.columns,
                            q.column.aligned);
        }
    } else {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
            float down[kEach], scaled[kEach];
            numbers.column(j, down);
#pragma unroll
            for (int i = 0; i < kEach; ++i) scaled[i] = __fmul_rn(down[i], factor[j]);
            const uint2 codes = encode(q, scaled);
            if (counting) counts.add(q, down, scaled, codes);
            shared.codes[at.across * kEach + j][at.group ^ at.across] = codes;
        }
        __syncthreads();  // the tile's codes
        store_transposed(q, at, shared);
    }
}

// ---- The kernel ------------------------------------------------------------------------------------------

// The tile's one scale, of Tensor and Weight128; 1 / scale stored.
template <Blocks kBlocks, class T>
__device__ float tile_scale(const Quantize& q, const Place& at, const Numbers<T>& numbers) {
    if constexpr (kBlocks == Blocks::Tensor) {
        return scale_of_expert(q, at.tile.own.expert).scale;
    } else if constexpr (kBlocks == Blocks::Weight128) {
        const Scale own = scale_of(q, ptx::block_max<kTileThreads>(numbers.amax()));
        if (threadIdx.x == 0) {
            const int64_t down = (q.source.rows + 127) / 128, across = (q.source.columns + 127) / 128;
            const int64_t origin = at.tile.own.expert * down * across, i = at.tile.row / 128,
                          j = at.tile.column / 128;
            if (q.row.data != nullptr)
                static_cast<float*>(q.row.scale)[origin + i * across + j] = own.inverse;
            if (q.column.data != nullptr)
                static_cast<float*>(q.column.scale)[origin + j * down + i] = own.inverse;
        }
        return own.scale;
    } else {
        return 1.0f;
    }
}

// Scales beside the codes of Tensor operands, also of experts without rows.
__device__ inline void store_tensor_scales(const Quantize& q) {
    for (int64_t e = threadIdx.x; e < q.source.sizes.experts; e += kTileThreads) {
        const float inverse = scale_of_expert(q, e).inverse;
        if (q.row.data != nullptr) static_cast<float*>(q.row.scale)[e] = inverse;
        if (q.column.data != nullptr) static_cast<float*>(q.column.scale)[e] = inverse;
    }
}

// ---- A tile ----------------------------------------------------------------------------------------------

// A thread's part of the tile; `columns` is how many the whole tensor has.
__device__ inline Place place_of(const TilePlace& tile, int64_t columns) {
    Place at;
    at.tile = tile;
    at.group = static_cast<int>(threadIdx.x) / 16;
    at.across = static_cast<int>(threadIdx.x) % 16;
    at.row = tile.row + at.group * kEach;
    at.column = tile.column + at.across * kEach;
    at.rows = clamp_to_eight(tile.own.rows - at.row);
    at.columns = clamp_to_eight(columns - at.column);
    return at;
}

// Tiles side by side on their way from the source: a tile is asked for while the one before is worked on, and
// lies in shared memory until then. A thread reads only what it asked for itself. kNorm: with the source's
// rstd and norm_weight.
template <class T, bool kNorm>
class TilesAhead {
    static constexpr int kParts = Eight<T>::kParts;

  public:
    struct Memory {
        uint4 slots[kEach * kParts][kTileThreads];
        int64_t rows[kTile];  // where the tile's rows lie among the values; -1: nowhere
        float rstd[kNorm ? kTile : 1];
    };

    // By the whole block; `tile` is the first.
    __device__ TilesAhead(const Source& source, const TilePlace& tile, Memory& memory)
        : source_(source), memory_(memory) {
        if (threadIdx.x < kTile) {
            const int64_t row = tile.row + threadIdx.x;
            const bool exists = row < tile.own.rows;
            const int64_t from = exists ? source_row(source, tile.own.first + row) : -1;
            memory.rows[threadIdx.x] = from;
            if constexpr (kNorm) memory.rstd[threadIdx.x] = exists ? source.rstd[from] : 0.0f;
        }
        __syncthreads();  // rows
    }
    // The tile whose first column is `column`. What was asked for before has been taken.
    __device__ void ask(int64_t column) const {
        const int columns = columns_of(column);
        if (!whole(columns)) return;
        const uint32_t to = ptx::shared_address(&memory_.slots[0][threadIdx.x]);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int64_t row = row_of(i);
            const T* from = address(row < 0 ? 0 : row, columns > 0 ? column : 0);
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                ptx::cp_async_16(to + (i * kParts + part) * kTileThreads * static_cast<int>(sizeof(uint4)),
                                 from + part * (kEach / kParts), row >= 0 && columns > 0 ? 16 : 0);
            }
        }
        ptx::cp_async_commit();
    }
    // The tile that was asked for last.
    __device__ void take(int64_t column, Numbers<T>& numbers) const {
        const int columns = columns_of(column);
        const bool stored = whole(columns);
        float weight[kEach];
        if constexpr (kNorm) load_weight(column + across(), columns, weight);
        if (stored) ptx::cp_async_wait<0>();
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            Eight<T> row;
            if (stored) {
#pragma unroll
                for (int part = 0; part < kParts; ++part)
                    row.parts[part] = memory_.slots[i * kParts + part][threadIdx.x];
            } else {
                const int64_t at = row_of(i);
                row.load(address(at < 0 ? 0 : at, column), at < 0 ? 0 : columns, false);
            }
            if constexpr (kNorm) {
                float value[kEach];
                row.get(value);
                const float rstd = memory_.rstd[static_cast<int>(threadIdx.x) / 16 * kEach + i];
#pragma unroll
                for (int j = 0; j < kEach; ++j) value[j] = __fmul_rn(__fmul_rn(value[j], rstd), weight[j]);
                numbers.put(i, value);
            } else {
                numbers.put(i, row);
            }
        }
    }

  private:
    __device__ int columns_of(int64_t column) const {
        return clamp_to_eight(source_.columns - column - across());
    }
    __device__ void load_weight(int64_t column, int columns, float (&weight)[kEach]) const {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
            if (j >= columns) {
                weight[j] = 0.0f;
            } else if (source_.norm_weight_is_float) {
                weight[j] = static_cast<const float*>(source_.norm_weight)[column + j];
            } else {
                weight[j] =
                    __bfloat162float(static_cast<const __nv_bfloat16*>(source_.norm_weight)[column + j]);
            }
        }
    }
    __device__ bool whole(int columns) const {
        return source_.aligned && columns % kEach == 0;
    }
    __device__ int64_t row_of(int i) const {
        return memory_.rows[static_cast<int>(threadIdx.x) / 16 * kEach + i];
    }
    __device__ static int across() {
        return static_cast<int>(threadIdx.x) % 16 * kEach;
    }
    __device__ const T* address(int64_t row, int64_t column) const {
        return static_cast<const T*>(source_.values) + row * source_.stride + column + across();
    }

    const Source& source_;
    Memory& memory_;
};

// By the whole block; `numbers` are zeros where nothing is. `shared` is free again after a barrier.
template <Blocks kBlocks, class T>
__device__ void write_tile(const Quantize& q, const Place& at, const Numbers<T>& numbers, Shared& shared,
                           Counts& counts) {
    const float scale = tile_scale<kBlocks>(q, at, numbers);
    if (q.row.data != nullptr) write_rows<kBlocks>(q, at, numbers, scale, counts);
    if (q.column.data != nullptr) write_columns<kBlocks>(q, at, numbers, scale, shared, counts);
}

// By the whole block. Magnitudes are ordered as their bits are.
__device__ inline void observe(unsigned* observed, int64_t expert, float amax) {
    amax = ptx::block_max<kTileThreads>(amax);
    if (threadIdx.x == 0) atomicMax(observed + expert, __float_as_uint(amax));
}
__device__ inline void add_counts(const Quantize& q, int64_t expert, const Counts& counts) {
    const unsigned underflows = ptx::block_sum<kTileThreads>(counts.underflows);
    const unsigned saturated = ptx::block_sum<kTileThreads>(counts.saturated);
    if (threadIdx.x == 0) {
        atomicAdd(q.counts + 2 * expert, static_cast<unsigned long long>(underflows));
        atomicAdd(q.counts + 2 * expert + 1, static_cast<unsigned long long>(saturated));
    }
}

// ---- Host ------------------------------------------------------------------------------------------------

inline Side side_of(const Operand& operand) {
    if (!operand) return {};
    const View& data = operand.data;
    const int64_t stride = data.stride[static_cast<size_t>(data.rank() - 2)];
    return {static_cast<uint8_t*>(data.data), operand.scale.data, stride,
            reinterpret_cast<uintptr_t>(data.data) % 16 == 0 && stride % 16 == 0};
}

inline Blocks blocks_of(const Format& format, bool weight) {
    if (format.scale == ScaleKind::Tensor) return Blocks::Tensor;
    if (format.scale == ScaleKind::MX32) return Blocks::Mx;
    return weight ? Blocks::Weight128 : Blocks::Line128;
}

// All of it but the source; observed and counts start at zero. `source`: the type that is quantized.
inline Quantize quantize_of(const QuantizeTarget& target, const View& amax, DType source, bool weight,
                            const Exec& exec) {
    const Operand& any = target.row ? target.row : target.column;
    const QuantizeRule& rule = target.rule;
    Quantize q{};
    q.row = side_of(target.row);
    q.column = side_of(target.column);
    q.layout = any.layout;
    q.weight = weight;
    q.e5m2 = any.format.element == DType::F8E5M2;
    q.power_of_two = any.format.power_of_two;
    q.largest = largest_finite(any.format.element);
    q.reciprocal = 1.0f / q.largest;
    q.epsilon = rule.amax_epsilon;
    q.overflow = source == DType::BF16 && any.format.scale == ScaleKind::Block128 ? to_float(BF16{0x7F7F})
                                                                                  : 0x1.fffffep127f;
    q.amax = device_data<float>(rule.amax ? rule.amax : amax);
    q.scale = device_data<float>(rule.scale);
    if (rule.observed_amax) {
        q.observed = reinterpret_cast<unsigned*>(rule.observed_amax.as<float>());
        zero(q.observed, static_cast<size_t>(rule.observed_amax.bytes()), exec);
    }
    if (rule.counts) {
        q.counts = reinterpret_cast<unsigned long long*>(rule.counts.as<int64_t>());
        zero(q.counts, static_cast<size_t>(rule.counts.bytes()), exec);
    }
    return q;
}

}  // namespace moebius::ops::cuda::tiles
