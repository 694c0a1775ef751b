#pragma once

#include "moebius/ops/rms_norm/rms_norm.h"

namespace moebius::ops::cuda {

void rms_norm(const RmsNormArgs& args, const Exec& exec);
void rms_norm_backward(const RmsNormBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
