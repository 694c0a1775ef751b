// What the finishing epilogues of the experts' MLP share.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_launch.cuh"
#include "moebius/ptx/glu.h"
#include "moebius/ptx/load.h"

namespace moebius::ops::sm90 {

// The scales of a tile's 64 rows, two a lane.
class RowScales {
  public:
    // `scales` (capacity), null: 1.
    __device__ __forceinline__ RowScales(const float* scales, const StagedTile& tile) {
        if (scales == nullptr) return;
        if (tile.lane < tile.rows) low_ = scales[tile.row + tile.lane];
        if (tile.lane + 32 < tile.rows) high_ = scales[tile.row + tile.lane + 32];
    }
    // By a whole warp, whose rows are all below 32, or none.
    __device__ __forceinline__ float of(int row) const {
        return __shfl_sync(~0u, row < 32 ? low_ : high_, row % 32);
    }

  private:
    float low_ = 1.0f, high_ = 1.0f;
};

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
