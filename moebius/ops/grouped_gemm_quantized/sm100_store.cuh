// What a grouped product does with its sums on Blackwell: writes them, or adds them to what is there.
#pragma once

#include "moebius/ops/grouped_gemm_quantized/sm100_product.cuh"

namespace moebius::ops::sm100 {

// A lane has a row of sums, but memory likes rows whole: 128 bytes of each of a warp's rows go through its
// staging, and eight lanes write a row's. With kAdd the sum of both is rounded once, so sums wait in fp32.
// `columns` is a multiple of 8, rows begin on 16 bytes.
template <bool kBf16, bool kAdd>
struct Store {
    struct Args {
        void* data;
        int64_t row_stride, expert_stride;  // in elements; expert_stride: of Wgrad, else 0
        int columns;
    };
    static constexpr bool kFloats = !kBf16 || kAdd;         // in the staging
    static constexpr int kEach = kFloats ? 4 : 8;           // columns in 16 bytes of it
    static constexpr int kUnit = kStagingRow / 16 * kEach;  // columns at a time

    // kEach sums to the element `at`.
    __device__ __forceinline__ static void write(const Args& args, int64_t at, const uint4& value) {
        auto* to = static_cast<char*>(args.data) + at * (kBf16 ? 2 : 4);
        const float sums[4] = {__uint_as_float(value.x), __uint_as_float(value.y), __uint_as_float(value.z),
                               __uint_as_float(value.w)};
        if constexpr (!kAdd) {
            *reinterpret_cast<uint4*>(to) = value;
        } else if constexpr (kBf16) {
            uint2& there = *reinterpret_cast<uint2*>(to);
            there = {ptx::pack_bf16(__fadd_rn(ptx::low_bf16(there.x), sums[0]),
                                    __fadd_rn(ptx::high_bf16(there.x), sums[1])),
                     ptx::pack_bf16(__fadd_rn(ptx::low_bf16(there.y), sums[2]),
                                    __fadd_rn(ptx::high_bf16(there.y), sums[3]))};
        } else {
            uint4& there = *reinterpret_cast<uint4*>(to);
            there = {__float_as_uint(__fadd_rn(__uint_as_float(there.x), sums[0])),
                     __float_as_uint(__fadd_rn(__uint_as_float(there.y), sums[1])),
                     __float_as_uint(__fadd_rn(__uint_as_float(there.z), sums[2])),
                     __float_as_uint(__fadd_rn(__uint_as_float(there.w), sums[3]))};
        }
    }

    // Columns `column` … of the warp's rows, where they exist: value(row of 32, 16 bytes of eight).
    template <class Value>
    __device__ __forceinline__ static void write_rows(const Args& args, const Place& place, int column,
                                                      const Value& value) {
        const int part = place.lane % 8, first = place.row - place.lane;
        column += part * kEach;
        if (column >= args.columns) return;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int row = 4 * i + place.lane / 8;
            if (first + row >= place.row_end) break;
            write(args, place.expert * args.expert_stride + (first + row) * args.row_stride + column,
                  value(row, part));
        }
    }

    // By the whole warp: 128 bytes of each lane's row.
    __device__ __forceinline__ static void put(const Args& args, const Sums& sums, const Place& place,
                                               const uint32_t (&words)[32], int column) {
        __syncwarp();  // all have read what was there
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            ptx::store_shared(sums.staging_at(place.lane, i),
                              make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]));
        }
        __syncwarp();  // the rows are there
        write_rows(args, place, column,
                   [&](int row, int part) { return ptx::load_shared(sums.staging_at(row, part)); });
    }

    // 64 columns.
    __device__ __forceinline__ static void put(const Args& args, const Sums& sums, const Place& place,
                                               const uint32_t (&low)[32], const uint32_t (&high)[32],
                                               int column) {
        if constexpr (kFloats) {
            put(args, sums, place, low, column);
            put(args, sums, place, high, column + 32);
        } else {
            uint32_t pairs[32];
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                pairs[i] = ptx::pack_bf16(__uint_as_float(low[2 * i]), __uint_as_float(low[2 * i + 1]));
                pairs[16 + i] =
                    ptx::pack_bf16(__uint_as_float(high[2 * i]), __uint_as_float(high[2 * i + 1]));
            }
            put(args, sums, place, pairs, column);
        }
    }

    __device__ static void run(const Args& args, const Sums& sums, const Place& place) {
        constexpr int kColumns = 64, kParts = kTileColumns / kColumns;
        static_assert(kOverlap == kColumns);
        // The part that the next tile waits for is the first here.
        const int overlap = sums.overlap / kColumns;
#pragma unroll 1
        for (int i = 0; i < kParts; ++i) {
            const int column = (overlap + i) % kParts * kColumns;
            const bool exists = place.column + column < args.columns;
            uint32_t low[32], high[32];
            if (exists) {
                sums.load(low, column);
                sums.load(high, column + 32);
                sums.wait(low);
                ptx::tensor_hold(high);
            }
            if (i == 0) sums.release();
            if (exists) put(args, sums, place, low, high, place.column + column);
        }
    }

    // A sum without terms.
    __device__ static void empty(const Args& args, const Place& place) {
        if constexpr (!kAdd) {
            for (int column = place.column; column < place.column + kTileColumns; column += kUnit)
                write_rows(args, place, column, [](int, int) { return make_uint4(0, 0, 0, 0); });
        }
    }
};

}  // namespace moebius::ops::sm100
