// What a grouped product of FP8 codes does with its sums on Hopper: stores them in bf16 or fp32, or adds them
// to what is there.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_store.cuh"
#include "moebius/ops/grouped_gemm_quantized/sm90_product.cuh"

namespace moebius::ops::sm90::quantized {

struct StoreArgs : Weights {  // out: of Rows (1, rows, columns)
    void* data;
    int64_t row_stride;
    int floats;  // fp32, not bf16
    int add;     // to what is there; weights only
};

// Rows of experts.
struct StoreRows : PlainEpilogue {
    using Args = StoreArgs;
    __device__ static void run(const Args& args, float (&sums)[128], const Place& place) {
        if (args.floats) return run_floats(args, sums, place);
        place.wait_staging<0>();
#pragma unroll
        for (int box = 0; box < kBoxes; ++box)
            stage_rounded(place.staging + static_cast<uint32_t>(box) * kBoxBytes, sums, box, place);
        place.show_staging();
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

// The experts' weight gradients, as the bf16 product stores them or adds to what is there.
struct StoreWeights : PlainEpilogue {
    static constexpr bool kFetches = true;
    using Args = StoreArgs;
    __device__ static void fetch(const Args& args, const Place& place) {
        if (!args.add) return;
        if (args.floats) {
            sm90::StoreWeightFloats<true>::fetch(args, place);
        } else {
            sm90::StoreWeights<true>::fetch(args, place);
        }
    }
    __device__ static void run(const Args& args, float (&sums)[128], Place& place) {
        if (args.floats) {
            args.add ? sm90::StoreWeightFloats<true>::run(args, sums, place)
                     : sm90::StoreWeightFloats<false>::run(args, sums, place);
        } else {
            args.add ? sm90::StoreWeights<true>::run(args, sums, place)
                     : sm90::StoreWeights<false>::run(args, sums, place);
        }
    }
};

}  // namespace moebius::ops::sm90::quantized
