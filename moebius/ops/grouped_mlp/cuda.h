#pragma once

#include "moebius/ops/grouped_mlp/grouped_mlp.h"

namespace moebius::ops::cuda {

// The chain's ops one after the other, on any card.
void grouped_mlp(const GroupedMlpArgs& args, const Exec& exec);
void grouped_mlp_backward(const GroupedMlpBackwardArgs& args, const Exec& exec);

// The last part of backward: the weights' gradients and dx, from dC (M, 2I) and the activation (M, I).
void gradients_from_dc(const GroupedMlpBackwardArgs& args, const View& dc, const View& activation,
                       const Exec& exec);

}  // namespace moebius::ops::cuda
