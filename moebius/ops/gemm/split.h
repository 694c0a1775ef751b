// fp32 matrices for the tensor cores: x = high + middle + low in bf16, exactly.
#pragma once

#include "moebius/runtime/exec.h"
#include "moebius/tensor/view.h"

namespace moebius::ops::cuda {

// x (R, C) f32, rows may be strided; high, middle, low (R, C) bf16, of one stride between rows. 3 × 8 bits of
// the significand are fp32's 24; what is left below bf16's smallest number is dropped. Where x is Inf or NaN,
// high is, and the others are zero.
void split_f32(const View& x, const View& high, const View& middle, const View& low, const Exec& exec);

}  // namespace moebius::ops::cuda
