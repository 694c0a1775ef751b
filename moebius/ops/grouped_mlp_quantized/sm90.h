#pragma once

#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"

namespace moebius::ops::sm90 {

// The activation and its quantization in both directions inside the product that gives its argument.
void grouped_mlp_quantized(const GroupedMlpQuantizedArgs& args, const Exec& exec);
// The same with an expert's scale that is known before.
void grouped_mlp_quantized_given(const GroupedMlpQuantizedArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90
