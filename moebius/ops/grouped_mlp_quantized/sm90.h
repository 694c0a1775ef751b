#pragma once

#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"

namespace moebius::ops::sm90 {

// The activation and its quantization in both directions inside the product that gives its argument.
void grouped_mlp_quantized(const GroupedMlpQuantizedArgs& args, const Exec& exec);
// The same with an expert's scale that is known before.
void grouped_mlp_quantized_given(const GroupedMlpQuantizedArgs& args, const Exec& exec);
// The activation and an expert's largest magnitude inside the product, its codes by a kernel after it.
// Scratch: the activation in bf16, in y where it fits.
void grouped_mlp_quantized_amax(const GroupedMlpQuantizedArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90
