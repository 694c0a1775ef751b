// How many rows of a capacity are in use.
#pragma once

#include "moebius/ptx/reduce.h"
#include "moebius/ptx/split_sizes.h"

namespace moebius::ptx {

// Σ sizes, at most the capacity; all of it without sizes. Called by whole warps of a block of one or
// two dimensions; every lane gets it.
__device__ inline long long rows_in_use(const SplitSizes& sizes) {
    if (sizes.data == nullptr) return sizes.capacity;
    long long rows = 0;
    for (long long e = (threadIdx.y * blockDim.x + threadIdx.x) % 32; e < sizes.experts; e += 32)
        rows += sizes[e];
    rows = warp_sum(rows);
    return rows < sizes.capacity ? rows : sizes.capacity;
}

}  // namespace moebius::ptx
