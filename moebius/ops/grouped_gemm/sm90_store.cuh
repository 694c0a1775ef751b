// What a grouped product does with its sums on Hopper: stores them, or adds them to what is there.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_product.cuh"

namespace moebius::ops::sm90 {

// A 64 × 64 block of bf16 in the staging, as TMA reads it with the 128-byte swizzle: 16-byte chunk c of row r
// lies at 128·r + 16·(c ^ r % 8).

// A thread's part of a 64 × 64 block, in pairs of columns: [2 · (column / 8) + row / 8 % 2], as wgmma gives
// it.
using StagedBlock = uint32_t[16];

// Columns 64·block … of a warpgroup's sums, rounded; `block` is a constant after unrolling.
__device__ __forceinline__ void round_block(StagedBlock& pairs, const float (&sums)[128], int block) {
#pragma unroll
    for (int i = 0; i < 16; ++i)
        pairs[i] = ptx::pack_bf16(sums[32 * block + 2 * i], sums[32 * block + 2 * i + 1]);
}

__device__ __forceinline__ void stage_block(uint32_t to, const StagedBlock& pairs, const Place& place) {
    const int row = 16 * place.warp + place.lane % 16;
    const uint32_t row_address = to + static_cast<uint32_t>(row) * kRowBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // two chunks: 16 columns
        const uint32_t chunk = static_cast<uint32_t>((2 * i + place.lane / 16) ^ (place.lane % 8));
        ptx::store_matrices(row_address + chunk * 16, pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2],
                            pairs[4 * i + 3]);
    }
}

// Copies the block's first `rows` rows and `columns` columns (multiple of 8) to global memory, for tiles that
// TMA would store past the expert's end.
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

// bf16 rows of experts in global memory, to which blocks go.
struct Rows {
    CUtensorMap map;  // (1, capacity, columns), boxes of 64 × 64
    __nv_bfloat16* data;
    int64_t row_stride;
    int columns;
};

// Rows row … of the group, columns column …: whole by TMA, or what exists of them. By the whole group.
__device__ __forceinline__ void store_block(const Rows& rows, const StagedBlock& pairs, int column,
                                            Place& place) {
    const uint32_t staged = place.begin_pass();
    stage_block(staged, pairs, place);
    place.end_pass();
    if (place.row_end - place.row >= kGroupRows) {
        if (place.thread == 0) ptx::tma_store(&rows.map, staged, column, place.row, 0);
    } else {
        copy_staged(staged, rows.data + place.row * rows.row_stride + column, rows.row_stride,
                    place.row_end - place.row, rows.columns - column, place.thread);
    }
    // An empty group where nothing was stored: begin_pass counts groups.
    if (place.thread == 0) ptx::tma_commit();
}

// Forward, Dgrad.
struct StoreRows {
    using Args = Rows;
    __device__ static int rows(const Args&) { return 0; }  // not asked: rows are the experts'
    __device__ static void run(const Args& args, float (&sums)[128], Place& place) {
#pragma unroll
        for (int block = 0; block < kTileColumns / 64; ++block) {
            const int column = place.column + 64 * block;
            if (column >= args.columns) break;
            StagedBlock pairs;
            round_block(pairs, sums, block);
            store_block(args, pairs, column, place);
        }
    }
};

// bf16 gradients of the experts' weights.
struct StoreWeights {
    struct Args {
        CUtensorMap out;  // (experts, rows, columns), boxes of 64 × 64
        int rows, columns;
    };
    __device__ static int rows(const Args& args) { return args.rows; }
    __device__ static void run(const Args& args, float (&sums)[128], Place& place) {
#pragma unroll
        for (int block = 0; block < kTileColumns / 64; ++block) {
            const int column = place.column + 64 * block;
            if (column >= args.columns) break;
            const uint32_t to = place.begin_pass();
            StagedBlock pairs;
            round_block(pairs, sums, block);
            stage_block(to, pairs, place);
            place.end_pass();
            if (place.thread == 0) {
                ptx::tma_store(&args.out, to, column, place.row, place.expert);
                ptx::tma_commit();
            }
        }
    }
};

// The same, added in fp32 to what is there before the one rounding: TMA's own addition in bf16 would round
// the product first. Nobody else reads or writes a tile's elements.
struct AddToWeights {
    struct Args {
        CUtensorMap out;  // (experts, rows, columns), boxes of 64 × 64
        const __nv_bfloat16* data;
        int64_t expert_stride, row_stride;
        int rows, columns;
    };
    __device__ static int rows(const Args& args) { return args.rows; }

    // A thread's part of a block of what is there, as wgmma gives sums; zeros where nothing is.
    __device__ __forceinline__ static void load(const Args& args, StagedBlock& there, int column,
                                                const Place& place) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = place.row + 16 * place.warp + 8 * half + place.lane / 4;
            const __nv_bfloat16* from = args.data + place.expert * args.expert_stride +
                                        row * args.row_stride + column + 2 * (place.lane % 4);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const bool exists = row < args.rows && column + 8 * i < args.columns;
                there[2 * i + half] = exists ? *reinterpret_cast<const uint32_t*>(from + 8 * i) : 0u;
            }
        }
    }

    __device__ static void run(const Args& args, float (&sums)[128], Place& place) {
        if (place.empty) return;
        StagedBlock there;
        load(args, there, place.column, place);
#pragma unroll
        for (int block = 0; block < kTileColumns / 64; ++block) {
            const int column = place.column + 64 * block;
            if (column >= args.columns) break;
            StagedBlock next;
            if (block + 1 < kTileColumns / 64) load(args, next, column + 64, place);
            StagedBlock pairs;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const float* sum = &sums[32 * block + 2 * i];
                pairs[i] =
                    ptx::pack_bf16(ptx::low_bf16(there[i]) + sum[0], ptx::high_bf16(there[i]) + sum[1]);
            }
            const uint32_t to = place.begin_pass();
            stage_block(to, pairs, place);
            place.end_pass();
            if (place.thread == 0) {
                ptx::tma_store(&args.out, to, column, place.row, place.expert);
                ptx::tma_commit();
            }
            if (block + 1 < kTileColumns / 64) {
#pragma unroll
                for (int i = 0; i < 16; ++i) there[i] = next[i];
            }
        }
    }
};

// fp32 gradients of the experts' weights, written or added to what is there. TMA adds in L2, to each element
// once: the order of additions is that of the launches.
struct StoreWeightFloats {
    struct Args {
        CUtensorMap out;  // (experts, rows, columns), boxes of 64 × 32
        int rows, columns;
        int add;
    };
    __device__ static int rows(const Args& args) { return args.rows; }
    __device__ static void run(const Args& args, float (&sums)[128], Place& place) {
        if (args.add && place.empty) return;
        constexpr int kColumns = 32;
#pragma unroll
        for (int block = 0; block < kTileColumns / kColumns; ++block) {
            const int column = place.column + kColumns * block;
            if (column >= args.columns) break;
            const uint32_t to = place.begin_pass();
#pragma unroll
            for (int i = 0; i < 4; ++i) {  // two chunks: 8 columns
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = 16 * place.warp + 8 * half + place.lane / 4;
                    const int chunk = (2 * i + place.lane % 4 / 2) ^ (place.lane / 4);
                    const float* d = &sums[16 * block + 4 * i + 2 * half];
                    ptx::store_shared(to + static_cast<uint32_t>(row * 128 + chunk * 16 + place.lane % 2 * 8),
                                      d[0], d[1]);
                }
            }
            place.end_pass();
            if (place.thread == 0) {
                if (args.add) {
                    ptx::tma_add(&args.out, to, column, place.row, place.expert);
                } else {
                    ptx::tma_store(&args.out, to, column, place.row, place.expert);
                }
                ptx::tma_commit();
            }
        }
    }
};

// fp32 rows of experts, straight from registers: four threads write 32 bytes of a row.
struct StoreRowFloats {
    struct Args {
        float* data;
        int64_t row_stride;
        int columns;
    };
    __device__ static int rows(const Args&) { return 0; }  // not asked: rows are the experts'
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
