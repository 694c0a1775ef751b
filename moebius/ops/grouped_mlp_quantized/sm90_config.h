// What the Hopper kernels of grouped_mlp_quantized can do: host arithmetic, no CUDA.
#pragma once

#include <string>

#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"

namespace moebius::ops::sm90 {

// The first reason against the fused kernel, with its values, or "".
std::string why_not_mlp_quantized(const GroupedMlpQuantizedArgs& args, const Exec& exec);
// The same of the one with an expert's scale that is known before (DelayedScaling).
std::string why_not_mlp_quantized_given(const GroupedMlpQuantizedArgs& args, const Exec& exec);
// The same of the one whose scale is that of the activation's own amax (Float8CurrentScaling).
std::string why_not_mlp_quantized_amax(const GroupedMlpQuantizedArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90
