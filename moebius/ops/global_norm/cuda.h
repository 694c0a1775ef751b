#pragma once

#include "moebius/ops/global_norm/global_norm.h"

namespace moebius::ops::cuda {

void sum_of_squares(const SumOfSquaresArgs& args, const Exec& exec);
void clip_factor(const ClipFactorArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
