#pragma once

#include "moebius/ops/swiglu/swiglu.h"

namespace moebius::ops::cuda {

void scaled_glu(const ScaledGluArgs& args, const Exec& exec);
void scaled_glu_backward(const ScaledGluBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
