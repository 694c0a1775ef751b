// bf16 in global memory, eight numbers at a time, as finishing warps read and write it.
#pragma once

#include <cuda_bf16.h>

#include "moebius/tensor/view.h"

namespace moebius::ops::sm90 {

// Eight bf16, 16 bytes of global memory.
struct Eight {
    uint32_t pairs[4];

    Eight() = default;
    __device__ __forceinline__ Eight(const uint4& v) : pairs{v.x, v.y, v.z, v.w} {}
    __device__ __forceinline__ void store(__nv_bfloat16* to) const {
        *reinterpret_cast<uint4*>(to) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
    }
};

// bf16 rows that the finishing warps read or write.
struct Matrix {
    __nv_bfloat16* data = nullptr;
    int64_t stride = 0;

    Matrix() = default;
    explicit Matrix(const View& view)
        : data(static_cast<__nv_bfloat16*>(view.data)), stride(view.stride[0]) {}
    __device__ __forceinline__ __nv_bfloat16* at(int row, int column) const {
        return data + row * stride + column;
    }
};

}  // namespace moebius::ops::sm90
