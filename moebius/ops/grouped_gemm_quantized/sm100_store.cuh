// What a grouped product does with its sums on Blackwell: writes them, or adds them to what is there.
#pragma once

#include "moebius/ops/grouped_gemm_quantized/sm100_product.cuh"

namespace moebius::ops::sm100 {

// Rows of the output, 16 bytes at a time: a lane writes 64 or 128 of its row. With kAdd the sum of both is
// rounded once. `columns` is a multiple of 8, rows begin on 16 bytes.
template <bool kBf16, bool kAdd>
struct Store {
    struct Args {
        void* data;
        int64_t row_stride, expert_stride;  // in elements; expert_stride: of Wgrad, else 0
        int columns;
    };
    static constexpr int kWords = kBf16 ? 4 : 8;  // of eight columns

    __device__ __forceinline__ static void put(const Args& args, const Place& place,
                                               const uint32_t (&words)[32], int column) {
        if (!place.exists()) return;
        const int64_t at = place.expert * args.expert_stride + place.row * args.row_stride + column;
        auto* to = static_cast<char*>(args.data) + at * (kBf16 ? 2 : 4);
#pragma unroll
        for (int part = 0; part < 4; ++part) {  // eight columns
            if (column + 8 * part >= args.columns) break;
#pragma unroll
            for (int half = 0; half < kWords / 4; ++half) {
                auto* chunk = reinterpret_cast<uint4*>(to) + (part * kWords / 4 + half);
                const uint4 there = kAdd ? *chunk : make_uint4(0, 0, 0, 0);
                const uint32_t old[4] = {there.x, there.y, there.z, there.w};
                uint32_t value[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    if constexpr (kBf16) {
                        float low = __uint_as_float(words[8 * part + 2 * i]);
                        float high = __uint_as_float(words[8 * part + 2 * i + 1]);
                        if (kAdd) {
                            low = __fadd_rn(ptx::low_bf16(old[i]), low);
                            high = __fadd_rn(ptx::high_bf16(old[i]), high);
                        }
                        value[i] = ptx::pack_bf16(low, high);
                    } else {
                        const float sum = __uint_as_float(words[8 * part + 4 * half + i]);
                        value[i] = kAdd ? __float_as_uint(__fadd_rn(__uint_as_float(old[i]), sum))
                                        : words[8 * part + 4 * half + i];
                    }
                }
                *chunk = make_uint4(value[0], value[1], value[2], value[3]);
            }
        }
    }

    __device__ static void run(const Args& args, const Sums& sums, const Place& place) {
        {
            uint32_t first[32], second[32];
            static_assert(kOverlap == 64);
            sums.load(first, sums.overlap);
            sums.load(second, sums.overlap + 32);
            sums.wait(first);
            ptx::tensor_hold(second);
            sums.release();
            put(args, place, first, place.column + sums.overlap);
            put(args, place, second, place.column + sums.overlap + 32);
        }
        const int rest = sums.overlap == 0 ? kOverlap : 0;
#pragma unroll 1
        for (int column = rest; column < rest + kTileColumns - kOverlap; column += 32) {
            if (place.column + column >= args.columns) break;
            uint32_t words[32];
            sums.load(words, column);
            sums.wait(words);
            put(args, place, words, place.column + column);
        }
    }

    // A sum without terms.
    __device__ static void empty(const Args& args, const Place& place) {
        if constexpr (kAdd) return;
        const uint32_t zeros[32] = {};
        for (int column = place.column; column < place.column + kTileColumns; column += 32)
            put(args, place, zeros, column);
    }
};

}  // namespace moebius::ops::sm100
