#pragma once

#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"

namespace moebius::ops::composed {

// Products, and between them the activation in one pass from the pre-activation to codes; on any device.
void grouped_mlp_quantized(const GroupedMlpQuantizedArgs& args, const Exec& exec);
void grouped_mlp_quantized_backward(const GroupedMlpQuantizedBackwardArgs& args, const Exec& exec);

// Parts of these, for variants that do the rest themselves. Forward's second product; in backward all that
// comes after dC, and before it ddown.
void down_product(const GroupedMlpQuantizedArgs& args, const Exec& exec);
void down_gradient(const GroupedMlpQuantizedBackwardArgs& args, const Exec& exec);
void gradients_from_dc(const GroupedMlpQuantizedBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::composed
