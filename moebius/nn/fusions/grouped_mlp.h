// GroupedLinear → ScaledSwiGLU → GroupedLinear as one op, forward and backward.
#pragma once

#include "moebius/nn/sequential.h"

namespace moebius::nn {

FusionPattern grouped_mlp_fusion();

}  // namespace moebius::nn
