#pragma once

#include "moebius/ops/delayed_scaling/delayed_scaling.h"

namespace moebius::ops::cuda {

void delayed_scaling(const DelayedScalingArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
