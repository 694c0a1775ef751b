#pragma once

#include "moebius/ops/swiglu/swiglu.h"

namespace moebius::ops::cuda {

void scaled_glu(const ScaledGluArgs& args, const Exec& exec);
void scaled_glu_backward(const ScaledGluBackwardArgs& args, const Exec& exec);

// Warps that share a row in scaled_glu_backward, a lane `vector` columns at a time. The order of dscales'
// sums, for kernels that give the same bits: a half-warp's 16 · vector columns are followed by the next
// warp's, after the last warp's come those of the other half-warps.
constexpr int scaled_glu_backward_warps(int64_t intermediate, int vector) {
    return intermediate <= 128 * vector ? 1 : 8;
}

}  // namespace moebius::ops::cuda
