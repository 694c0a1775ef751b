// What a grouped product of FP8 codes does with its sums on Hopper: stores them in bf16 or fp32, or adds them
// to what is there.
#pragma once

#include "moebius/ops/grouped_gemm_quantized/sm90_product.cuh"

namespace moebius::ops::sm90::quantized {

// Columns 32·block … in fp32.
__device__ __forceinline__ void stage_floats(uint32_t to, const float (&sums)[128], int block,
                                             const Place& place) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // two chunks: 8 columns
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = 16 * place.warp + 8 * half + place.lane / 4;
            const int chunk = (2 * i + place.lane % 4 / 2) ^ (place.lane / 4);
            const float* d = &sums[16 * block + 4 * i + 2 * half];
            ptx::store_shared(to + static_cast<uint32_t>(row * 128 + chunk * 16 + place.lane % 2 * 8), d[0],
                              d[1]);
        }
    }
}

// Copies a bf16 box's first `rows` rows and `columns` columns (multiple of 8) to global memory, for tiles
// that TMA would store past the expert's end.
__device__ __forceinline__ void copy_staged(uint32_t from, __nv_bfloat16* to, int64_t row_stride, int rows,
                                            int columns, int thread) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = i * 16 + thread / 8, chunk = thread % 8;
        if (row < rows && chunk * 8 < columns) {
            const uint4 value =
                ptx::load_shared(from + static_cast<uint32_t>(row * 128 + (chunk ^ row % 8) * 16));
            *reinterpret_cast<uint4*>(to + row * row_stride + chunk * 8) = value;
        }
    }
}

struct StoreArgs {
    CUtensorMap out;  // (experts or 1, rows, columns), boxes of 64 rows × 128 bytes
    void* data;
    int64_t row_stride;
    int rows, columns;  // rows: of an expert's weight
    int floats;         // fp32, not bf16
    int add;            // to what is there; fp32 weights only
};

// Rows of experts.
struct StoreRows : PlainEpilogue {
    using Args = StoreArgs;
    __device__ static void run(const Args& args, float (&sums)[128], const Place& place) {
        if (args.floats) return run_floats(args, sums, place);
        place.begin_staging();
#pragma unroll
        for (int box = 0; box < kBoxes; ++box)
            stage_rounded(place.staging + static_cast<uint32_t>(box) * kBoxBytes, sums, box, place);
        place.end_staging();
        const bool whole = place.row_end - place.row >= kGroupRows;
        if (whole && place.thread != 0) return;
        for (int box = 0; box < kBoxes; ++box) {
            const int column = place.column + 64 * box;
            if (column >= args.columns) break;
            const uint32_t from = place.staging + static_cast<uint32_t>(box) * kBoxBytes;
            if (whole) {
                ptx::tma_store(&args.out, from, column, place.row, 0);
            } else {
                copy_staged(from,
                            static_cast<__nv_bfloat16*>(args.data) + place.row * args.row_stride + column,
                            args.row_stride, place.row_end - place.row, args.columns - column, place.thread);
            }
        }
        if (whole) ptx::tma_commit();
    }

    // Straight from registers: four threads write 32 bytes of a row.
    __device__ static void run_floats(const Args& args, float (&sums)[128], const Place& place) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = place.row + 16 * place.warp + 8 * half + place.lane / 4;
            if (row >= place.row_end) continue;
            const int column = place.column + 2 * (place.lane % 4);
            float* to = static_cast<float*>(args.data) + row * args.row_stride + column;
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                const float* d = &sums[4 * j + 2 * half];
                if (column + 8 * j < args.columns)
                    *reinterpret_cast<float2*>(to + 8 * j) = make_float2(d[0], d[1]);
            }
        }
    }
};

// The experts' weight gradients. TMA adds in L2, to each element once: the order of additions is that of the
// launches.
struct StoreWeights : PlainEpilogue {
    using Args = StoreArgs;
    __device__ static void run(const Args& args, float (&sums)[128], const Place& place) {
        if (!args.floats) return run_rounded(args, sums, place);
        if (args.add && place.empty) return;
        constexpr int kColumns = 32;
#pragma unroll
        for (int round = 0; round < 2; ++round) {
            if (place.column + round * kBoxes * kColumns >= args.columns) break;
            place.begin_staging();
#pragma unroll
            for (int box = 0; box < kBoxes; ++box) {
                stage_floats(place.staging + static_cast<uint32_t>(box) * kBoxBytes, sums,
                             round * kBoxes + box, place);
            }
            place.end_staging();
            if (place.thread != 0) continue;
            for (int box = 0; box < kBoxes; ++box) {
                const int column = place.column + (round * kBoxes + box) * kColumns;
                const uint32_t from = place.staging + static_cast<uint32_t>(box) * kBoxBytes;
                if (column >= args.columns) break;
                if (args.add) {
                    ptx::tma_add(&args.out, from, column, place.row, place.expert);
                } else {
                    ptx::tma_store(&args.out, from, column, place.row, place.expert);
                }
            }
            ptx::tma_commit();
        }
    }

    __device__ static void run_rounded(const Args& args, float (&sums)[128], const Place& place) {
        place.begin_staging();
#pragma unroll
        for (int box = 0; box < kBoxes; ++box)
            stage_rounded(place.staging + static_cast<uint32_t>(box) * kBoxBytes, sums, box, place);
        place.end_staging();
        if (place.thread != 0) return;
        for (int box = 0; box < kBoxes; ++box) {
            const int column = place.column + 64 * box;
            if (column >= args.columns) break;
            ptx::tma_store(&args.out, place.staging + static_cast<uint32_t>(box) * kBoxBytes, column,
                           place.row, place.expert);
        }
        ptx::tma_commit();
    }
};

}  // namespace moebius::ops::sm90::quantized
