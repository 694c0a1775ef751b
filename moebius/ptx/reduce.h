// Sums and maxima over warps and blocks, in an order that depends on the number of threads only. Every thread
// gets the same bits.
#pragma once

#include <cuda_runtime.h>

namespace moebius::ptx {

template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}
__device__ inline float warp_max(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
    return value;
}

// By all threads of a one-dimensional block of kThreads, a multiple of 32.
template <int kThreads, class T>
__device__ inline T block_sum(T value) {
    value = warp_sum(value);
    if constexpr (kThreads > 32) {
        __shared__ T parts[kThreads / 32];
        const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
        __syncthreads();  // the parts of the call before have been read
        if (lane == 0) parts[warp] = value;
        __syncthreads();
        value = warp_sum(lane < kThreads / 32 ? parts[lane] : T{});
    }
    return value;
}
template <int kThreads>
__device__ inline float block_max(float value) {
    value = warp_max(value);
    if constexpr (kThreads > 32) {
        __shared__ float parts[kThreads / 32];
        const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
        __syncthreads();  // the parts of the call before have been read
        if (lane == 0) parts[warp] = value;
        __syncthreads();
        value = warp_max(parts[lane % (kThreads / 32)]);
    }
    return value;
}

}  // namespace moebius::ptx
