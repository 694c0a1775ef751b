#pragma once

#include "moebius/ops/selection_bias/selection_bias.h"

namespace moebius::ops::cuda {

void selection_bias(const SelectionBiasArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
