// What a grouped product does with its sums on Hopper: stores them, or adds them to what is there.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_product.cuh"
#include "moebius/ptx/load.h"

namespace moebius::ops::sm90 {

// bf16 rows of experts in global memory.
struct Rows {
    CUtensorMap map;  // (1, capacity, columns), boxes of 64 × 64
    __nv_bfloat16* data;
    int64_t row_stride;
    int columns;
};

// Copies a box's first `rows` rows and `columns` columns (multiple of 8) to global memory, for tiles that TMA
// would store past the expert's end.
__device__ __forceinline__ void copy_staged(uint32_t from, __nv_bfloat16* to, int64_t row_stride, int rows,
                                            int columns, int thread) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = i * 16 + thread / 8, chunk = thread % 8;
        if (row < rows && chunk * 8 < columns) {
            const uint4 value = ptx::load_shared(from + static_cast<uint32_t>(row) * kRowBytes +
                                                 static_cast<uint32_t>(chunk ^ (row % 8)) * 16);
            *reinterpret_cast<uint4*>(to + row * row_stride + chunk * 8) = value;
        }
    }
}

// Forward, Dgrad.
struct StoreRows : PlainEpilogue {
    using Args = Rows;
    __device__ static void run(const Args& args, float (&sums)[128], Place& place) {
        place.wait_staging<0>();
#pragma unroll
        for (int block = 0; block < kBoxes; ++block) {
            StagedBlock pairs;
            round_block(pairs, sums, block);
            stage_block(place.box(block), pairs, place);
        }
        place.show_staging();
        const bool whole = place.row_end - place.row >= kGroupRows;
#pragma unroll
        for (int block = 0; block < kBoxes; ++block) {
            const int column = place.column + 64 * block;
            if (column >= args.columns) break;
            if (!whole) {
                copy_staged(place.box(block), args.data + place.row * args.row_stride + column,
                            args.row_stride, place.row_end - place.row, args.columns - column, place.thread);
            } else if (place.thread == 0) {
                ptx::tma_store(&args.map, place.box(block), column, place.row, 0);
            }
        }
        if (place.thread == 0) ptx::tma_commit();
    }
};

// Gradients of the experts' weights.
struct Weights {
    CUtensorMap out;  // (experts, rows, columns), boxes of 64 rows × 128 bytes
    int rows, columns;
};

// bf16 gradients of the experts' weights, written, or added in fp32 to what is there before the one rounding.
// What is there comes to the staging by TMA while the tile is multiplied; nobody else reads or writes it.
template <bool kAdd>
struct StoreWeights : PlainEpilogue {
    static constexpr bool kFetches = kAdd;
    using Args = Weights;
    __device__ static void fetch(const Args& args, const Place& place) {
        place.fetch_boxes(args.out, 64, args.columns);
    }
    __device__ static void run(const Args& args, float (&sums)[128], Place& place) {
        if constexpr (kAdd) {
            if (place.empty) return;
            place.wait_fetched();
        } else {
            place.wait_staging<0>();
        }
#pragma unroll
        for (int block = 0; block < kBoxes; ++block) {
            StagedBlock pairs;
            if constexpr (kAdd) {
                load_block(place.box(block), pairs, place);
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    const float* sum = &sums[32 * block + 2 * i];
                    pairs[i] = ptx::pack_bf16(__fadd_rn(ptx::low_bf16(pairs[i]), sum[0]),
                                              __fadd_rn(ptx::high_bf16(pairs[i]), sum[1]));
                }
            } else {
                round_block(pairs, sums, block);
            }
            stage_block(place.box(block), pairs, place);
        }
        place.show_staging();
        if (place.thread != 0) return;
#pragma unroll
        for (int block = 0; block < kBoxes; ++block) {
            const int column = place.column + 64 * block;
            if (column >= args.columns) break;
            ptx::tma_store(&args.out, place.box(block), column, place.row, place.expert);
        }
        ptx::tma_commit();
    }
};

// fp32 gradients of the experts' weights, written or added to what is there. A warpgroup's tile is twice its
// staging: two boxes a pass, four passes. Of what is there the first two passes' boxes come to the staging by
// TMA while the tile is multiplied; to the others TMA adds in L2, which is slower than to read and write.
// Each element is added to once: the order of additions is that of the launches.
template <bool kAdd>
struct StoreWeightFloats : PlainEpilogue {
    static constexpr bool kFetches = kAdd;
    static constexpr int kWidth = 32, kPassBoxes = 2, kPasses = kTileColumns / (kWidth * kPassBoxes);
    using Args = Weights;
    __device__ static void fetch(const Args& args, const Place& place) {
        place.fetch_boxes(args.out, kWidth, args.columns);
    }

    // Columns kWidth · `block` … of the sums.
    __device__ __forceinline__ static void stage(uint32_t box, const float (&sums)[128], int block, bool add,
                                                 const Place& place) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // two chunks: 8 columns
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = 16 * place.warp + 8 * half + place.lane / 4;
                const int chunk = (2 * i + place.lane % 4 / 2) ^ (place.lane / 4);
                const uint32_t to = box + static_cast<uint32_t>(row * 128 + chunk * 16 + place.lane % 2 * 8);
                const float* d = &sums[16 * block + 4 * i + 2 * half];
                float2 value{d[0], d[1]};
                if (add) {
                    const float2 there = ptx::load_shared_floats(to);
                    value = {__fadd_rn(there.x, value.x), __fadd_rn(there.y, value.y)};
                }
                ptx::store_shared(to, value.x, value.y);
            }
        }
    }

    __device__ __forceinline__ static void send(const Args& args, const Place& place, int pass, bool add) {
#pragma unroll
        for (int i = 0; i < kPassBoxes; ++i) {
            const int block = kPassBoxes * pass + i, column = place.column + kWidth * block;
            if (column >= args.columns) break;
            const uint32_t from = place.box(block % kBoxes);
            if (add) {
                ptx::tma_add(&args.out, from, column, place.row, place.expert);
            } else {
                ptx::tma_store(&args.out, from, column, place.row, place.expert);
            }
        }
        ptx::tma_commit();
    }

    __device__ static void run(const Args& args, float (&sums)[128], Place& place) {
        if (kAdd && place.empty) return;
        if constexpr (kAdd) {
            place.wait_fetched();
        } else {
            place.wait_staging<0>();
        }
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            if (place.column + kWidth * kPassBoxes * pass >= args.columns) break;
            const bool fetched = kAdd && pass < 2;
            if (pass >= 2) place.wait_staging<1>();  // the pass before the last
#pragma unroll
            for (int i = 0; i < kPassBoxes; ++i) {
                const int block = kPassBoxes * pass + i;
                stage(place.box(block % kBoxes), sums, block, fetched, place);
            }
            place.show_staging();
            if (place.thread == 0) send(args, place, pass, kAdd && !fetched);
        }
    }
};

// fp32 rows of experts, straight from registers: four threads write 32 bytes of a row.
struct StoreRowFloats : PlainEpilogue {
    struct Args {
        float* data;
        int64_t row_stride;
        int columns;
    };
    __device__ static void run(const Args& args, float (&sums)[128], Place& place) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = place.row + 16 * place.warp + 8 * half + place.lane / 4;
            if (row >= place.row_end) continue;
            const int column = place.column + 2 * (place.lane % 4);
            float* to = args.data + row * args.row_stride + column;
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                const float* d = &sums[4 * j + 2 * half];
                if (column + 8 * j < args.columns)
                    *reinterpret_cast<float2*>(to + 8 * j) = make_float2(d[0], d[1]);
            }
        }
    }
};

}  // namespace moebius::ops::sm90
