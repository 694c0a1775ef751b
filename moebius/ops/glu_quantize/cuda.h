#pragma once

#include "moebius/ops/glu_quantize/glu_quantize.h"

namespace moebius::ops::cuda {

void scaled_glu_quantize(const ScaledGluQuantizeArgs& args, const Exec& exec);

// Tiles of two times 128 columns.
void scaled_glu_quantize_pairs(const ScaledGluQuantizeArgs& args, const Exec& exec);
void scaled_glu_backward_quantize_pairs(const ScaledGluBackwardQuantizeArgs& args, const Exec& exec);

// Backward's activation by the forward operation, if it is asked for: before x is overwritten.
void make_activation_again(const ScaledGluBackwardQuantizeArgs& args, const Exec& exec);

// The two operations one after the other, where the above do not take the layout. Scratch: the result in x's
// type.
void scaled_glu_then_quantize(const ScaledGluQuantizeArgs& args, const Exec& exec);
void scaled_glu_backward_then_quantize(const ScaledGluBackwardQuantizeArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
