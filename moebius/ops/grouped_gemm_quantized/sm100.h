#pragma once

#include <string>

#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"

namespace moebius::ops::sm100 {

// MX operands on Blackwell's block-scaled tensor cores.
void grouped_gemm_quantized(const GroupedGemmQuantizedArgs& args, const Exec& exec);

// The first reason against it, or "". Host arithmetic, no CUDA.
std::string why_not(const GroupedGemmQuantizedArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm100
