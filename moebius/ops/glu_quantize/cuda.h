#pragma once

#include "moebius/ops/glu_quantize/glu_quantize.h"

namespace moebius::ops::cuda {

void scaled_glu_quantize(const ScaledGluQuantizeArgs& args, const Exec& exec);

// The two operations one after the other: forward where the above does not take the layout, and backward,
// where one kernel that holds both halves' tiles was slower than the two passes. Scratch: the result in x's
// type.
void scaled_glu_then_quantize(const ScaledGluQuantizeArgs& args, const Exec& exec);
void scaled_glu_backward_then_quantize(const ScaledGluBackwardQuantizeArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
