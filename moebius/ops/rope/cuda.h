#pragma once

#include "moebius/ops/rope/rope.h"

namespace moebius::ops::cuda {

// Cosines and sines of a few tokens lie in shared memory: heads of up to 512 dimensions.
inline constexpr int64_t kMostPairs = 256;

void rope(const RopeArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
