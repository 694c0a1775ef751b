#pragma once

#include <string>

#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"

namespace moebius::ops::sm100 {

// On Blackwell's block-scaled tensor cores, the activation and its quantization in both directions inside the
// product that gives its argument.
void grouped_mlp_quantized(const GroupedMlpQuantizedArgs& args, const Exec& exec);

// The first reason against it, with its values, or "". Host arithmetic, no CUDA.
std::string why_not_mlp_quantized(const GroupedMlpQuantizedArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm100
