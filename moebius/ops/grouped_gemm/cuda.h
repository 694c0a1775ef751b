#pragma once

#include "moebius/ops/grouped_gemm/grouped_gemm.h"

namespace moebius::ops::cuda {

void grouped_gemm(const GroupedGemmArgs& args, const Exec& exec);
void grouped_bias_grad(const GroupedBiasGradArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
