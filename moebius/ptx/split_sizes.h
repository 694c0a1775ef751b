// Which rows are whose: split_sizes read on the device, by whole warps. Sizes below zero count as zero, rows
// past `capacity` don't exist.
#pragma once

#include <cuda_runtime.h>

namespace moebius::ptx {

struct SplitSizes {
    const void* data;  // (experts) int32 or int64
    bool is_i64;
    int64_t experts, capacity;

    __device__ int64_t operator[](int64_t expert) const {
        const int64_t size = is_i64 ? static_cast<const int64_t*>(data)[expert]
                                    : int64_t{static_cast<const int32_t*>(data)[expert]};
        return size < 0 ? 0 : size < capacity ? size : capacity;
    }
};

// Sequences packed one after the other: cu_seqlens in the place of split_sizes.
struct SequenceSizes {
    const int32_t* cu_seqlens;  // (experts + 1), from 0
    int64_t experts, capacity;  // sequences; tokens

    __device__ int64_t operator[](int64_t sequence) const {
        const int64_t size = int64_t{cu_seqlens[sequence + 1]} - cu_seqlens[sequence];
        return size < 0 ? 0 : size < capacity ? size : capacity;
    }
};

struct ExpertTile {
    int64_t expert = -1;          // −1: there are fewer tiles
    int64_t first = 0, rows = 0;  // of the expert
    int64_t tile = 0;             // of the expert's
};

__device__ inline int64_t inclusive_scan_warp(int64_t value) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int step = 1; step < 32; step *= 2) {
        const int64_t before = __shfl_up_sync(~0u, value, step);
        if (lane >= step) value += before;
    }
    return value;
}

// The experts' rows are cut into tiles of `tile_rows`, an expert's last one may be short: tile `index` of
// all. Called by whole warps of a one-dimensional block.
template <class Sizes>
__device__ inline ExpertTile find_expert_tile(const Sizes& sizes, int64_t tile_rows, int64_t index) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int64_t rows_before = 0, tiles_before = 0;
    for (int64_t base = 0; base < sizes.experts; base += 32) {
        const int64_t size = base + lane < sizes.experts ? sizes[base + lane] : 0;
        const int64_t end = rows_before + inclusive_scan_warp(size);
        const int64_t first = end - size < sizes.capacity ? end - size : sizes.capacity;
        const int64_t rows = (end < sizes.capacity ? end : sizes.capacity) - first;
        const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
        const int64_t tiles_end = tiles_before + inclusive_scan_warp(tiles);
        const unsigned past = __ballot_sync(~0u, tiles_end > index);
        if (past != 0) {
            const int found = __ffs(static_cast<int>(past)) - 1;
            return {base + found, __shfl_sync(~0u, first, found), __shfl_sync(~0u, rows, found),
                    index - __shfl_sync(~0u, tiles_end - tiles, found)};
        }
        rows_before = __shfl_sync(~0u, end, 31);
        tiles_before = __shfl_sync(~0u, tiles_end, 31);
    }
    return {};
}

// One expert's rows (tile 0). Called by whole warps.
__device__ inline ExpertTile find_expert(const SplitSizes& sizes, int64_t expert) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int64_t before = 0;
    for (int64_t e = lane; e < expert; e += 32) before += sizes[e];
    before = __shfl_sync(~0u, inclusive_scan_warp(before), 31);
    const int64_t first = before < sizes.capacity ? before : sizes.capacity;
    const int64_t end = first + sizes[expert];
    return {expert, first, (end < sizes.capacity ? end : sizes.capacity) - first, 0};
}

}  // namespace moebius::ptx
