#pragma once

#include "moebius/ops/glu_quantize/glu_quantize.h"

namespace moebius::ops::cpu {

void scaled_glu_quantize(const ScaledGluQuantizeArgs& args, const Exec& exec);
void scaled_glu_backward_quantize(const ScaledGluBackwardQuantizeArgs& args, const Exec& exec);

}  // namespace moebius::ops::cpu
