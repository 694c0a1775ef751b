#pragma once

#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"

namespace moebius::ops::cpu {

// Expert by expert: operands dequantized into scratch (f32; MX32: bf16), then the ordinary product.
void grouped_gemm_quantized(const GroupedGemmQuantizedArgs& args, const Exec& exec);

}  // namespace moebius::ops::cpu
