#pragma once

#include "moebius/ops/aux_loss/aux_loss.h"

namespace moebius::ops::cuda {

void aux_loss(const AuxLossArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
