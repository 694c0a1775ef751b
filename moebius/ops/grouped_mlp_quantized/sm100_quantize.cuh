// The epilogue of the gate-up product of MX codes on Blackwell: SwiGLU, the routing scale and the
// activation's quantization in both directions, from tensor memory to codes. Compiled so far, never run.
//
// A tile is 128 rows of an expert by 128 columns of the activation: of its sums, columns 0 … 127 are gates,
// 128 … 255 the ups. A warp takes 32 of the activation's columns at a time and a lane has one of its 32 rows:
// a block along a row is in one lane's registers, and one down a column, since the warp's rows begin 32 · n
// behind the expert's first, in one register of all lanes.
#pragma once

#include "moebius/ops/grouped_gemm_quantized/sm100_product.cuh"
#include "moebius/ptx/float8.h"
#include "moebius/ptx/glu.h"

namespace moebius::ops::sm100 {

template <bool kClamped>
struct QuantizeActivation {
    struct Args {
        __nv_bfloat16 *gate, *up;  // halves of C, rows c_stride apart
        int64_t c_stride;
        uint8_t *row, *column;              // codes (capacity, columns); column null: not asked for
        uint8_t *row_scale, *column_scale;  // (capacity, columns / 32); (blocks of rows, columns)
        int columns;                        // of the activation, a multiple of 32
        const float* scales;                // (capacity), null: 1
        float reciprocal;                   // of the largest code
        ptx::GluConstants constants;
    };

    // 32 columns of the pre-activation, rounded.
    using Pairs = uint32_t[16];
    __device__ __forceinline__ static void round(Pairs& pairs, const uint32_t (&words)[32]) {
#pragma unroll
        for (int i = 0; i < 16; ++i)
            pairs[i] = ptx::pack_bf16(__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1]));
    }
    __device__ __forceinline__ static void store(__nv_bfloat16* to, const Pairs& pairs) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            reinterpret_cast<uint4*>(to)[i] =
                make_uint4(pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]);
    }
    __device__ __forceinline__ static float at(const Pairs& pairs, int j) {
        return j % 2 == 0 ? ptx::low_bf16(pairs[j / 2]) : ptx::high_bf16(pairs[j / 2]);
    }
    __device__ __forceinline__ static uint32_t code_of(float amax, float reciprocal) {
        return ptx::e8m0_roundup(__float_as_uint(__fmul_rn(amax, reciprocal)));
    }
    // Codes of 32 numbers, the j-th times factor(j).
    template <class Factor>
    __device__ __forceinline__ static void store_codes(uint8_t* to, const Pairs& pairs,
                                                       const Factor& factor) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int j = 16 * half + 4 * i;
                words[i] = ptx::E4M3::encode(__fmul_rn(at(pairs, j), factor(j)),
                                             __fmul_rn(at(pairs, j + 1), factor(j + 1))) |
                           ptx::E4M3::encode(__fmul_rn(at(pairs, j + 2), factor(j + 2)),
                                             __fmul_rn(at(pairs, j + 3), factor(j + 3)))
                               << 16;
            }
            reinterpret_cast<uint4*>(to)[half] = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }

    // Columns `column` … of the activation, which exist. By the whole warp.
    __device__ __forceinline__ static void finish(const Args& args, const Place& place, float scale,
                                                  const uint32_t (&gate_words)[32],
                                                  const uint32_t (&up_words)[32], int column) {
        Pairs gate, up, activation;
        round(gate, gate_words);
        round(up, up_words);
        float amax = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            float pair[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const ptx::GluPair glu =
                    ptx::glu_pair<kClamped, false>(at(gate, 2 * i + j), at(up, 2 * i + j), args.constants);
                pair[j] = ptx::glu_forward(glu, scale);
            }
            // Rows that do not exist count as zeros in the columns' blocks.
            activation[i] = place.exists() ? ptx::pack_bf16(pair[0], pair[1]) : 0u;
#pragma unroll
            for (int j = 0; j < 2; ++j)
                amax = fmaxf(amax, fabsf(at(activation, 2 * i + j)));  // leaves NaN out
        }
        const int64_t row_at = int64_t{place.row} * args.columns + column;
        if (place.exists()) {
            store(args.gate + place.row * args.c_stride + column, gate);
            store(args.up + place.row * args.c_stride + column, up);
            const uint32_t code = code_of(amax, args.reciprocal);
            const float factor = ptx::e8m0_reciprocal(code);
            store_codes(args.row + row_at, activation, [&](int) { return factor; });
            args.row_scale[row_at / kScaleBlock] = static_cast<uint8_t>(code);
        }
        if (args.column == nullptr) return;
        float factors[32];
        uint32_t own = 0;  // of the lane's column
#pragma unroll
        for (int j = 0; j < 32; ++j) {
            const float magnitude = fmaxf(0.0f, fabsf(at(activation, j)));  // NaN: 0
            const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(magnitude));
            const uint32_t code = code_of(__uint_as_float(most), args.reciprocal);
            factors[j] = ptx::e8m0_reciprocal(code);
            if (place.lane == j) own = code;
        }
        if (place.exists()) store_codes(args.column + row_at, activation, [&](int j) { return factors[j]; });
        // The warp's block exists where its first row does.
        if (__any_sync(~0u, place.exists()))
            args.column_scale[place.row_block * args.columns + column + place.lane] =
                static_cast<uint8_t>(own);
    }

    __device__ static void run(const Args& args, const Sums& sums, const Place& place) {
        constexpr int kHalf = kTileColumns / 2, kChunks = kHalf / 32;
        const float scale = !place.exists()          ? 0.0f
                            : args.scales == nullptr ? 1.0f
                                                     : __ldg(args.scales + place.row);
        // The overlap is two chunks of gates or two of ups: what they belong to is done first.
        static_assert(kOverlap == 64);
        const bool ups = sums.overlap != 0;
        const int first = ups ? kChunks - 2 : 0;
        uint32_t held[2][32];
        sums.load(held[0], sums.overlap);
        sums.load(held[1], sums.overlap + 32);
        sums.wait(held[0]);
        ptx::tensor_hold(held[1]);
        sums.release();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int column = 32 * (first + i);
            if (place.column + column >= args.columns) continue;
            uint32_t words[32];
            sums.load(words, ups ? column : kHalf + column);
            sums.wait(words);
            uint32_t gates[32];
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                gates[j] = ups ? words[j] : held[i][j];
                words[j] = ups ? held[i][j] : words[j];
            }
            finish(args, place, scale, gates, words, place.column + column);
        }
#pragma unroll 1
        for (int i = 0; i < kChunks - 2; ++i) {
            const int column = 32 * (ups ? i : i + 2);
            if (place.column + column >= args.columns) break;
            uint32_t gates[32], words[32];
            sums.load(gates, column);
            sums.load(words, kHalf + column);
            sums.wait(gates);
            ptx::tensor_hold(words);
            finish(args, place, scale, gates, words, place.column + column);
        }
    }
};

}  // namespace moebius::ops::sm100
