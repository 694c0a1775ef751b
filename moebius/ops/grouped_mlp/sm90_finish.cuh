// What the finishing epilogues of the experts' MLP share.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_launch.cuh"
#include "moebius/ops/grouped_mlp/sm90_matrix.cuh"
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

}  // namespace moebius::ops::sm90
