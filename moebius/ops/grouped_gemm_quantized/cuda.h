#pragma once

#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"

namespace moebius::ops::cuda {

void grouped_gemm_quantized(const GroupedGemmQuantizedArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
