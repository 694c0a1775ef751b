#pragma once

#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"

namespace moebius::ops::composed {

// Products, and between them the activation in one pass from the pre-activation to codes; on any device.
void grouped_mlp_quantized(const GroupedMlpQuantizedArgs& args, const Exec& exec);
void grouped_mlp_quantized_backward(const GroupedMlpQuantizedBackwardArgs& args, const Exec& exec);

// Forward's second product, for variants that do the rest themselves.
void down_product(const GroupedMlpQuantizedArgs& args, const Exec& exec);

}  // namespace moebius::ops::composed
