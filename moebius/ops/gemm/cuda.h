#pragma once

#include "moebius/ops/gemm/gemm.h"

namespace moebius::ops::cuda {

void gemm(const GemmArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
