#pragma once

#include "moebius/ops/gemm/gemm.h"

namespace moebius::ops::cpu {

void gemm_packed(const GemmArgs& args, const Exec& exec);
// Plain loops in fp32, to check others against.
void gemm_naive(const GemmArgs& args, const Exec& exec);

}  // namespace moebius::ops::cpu
