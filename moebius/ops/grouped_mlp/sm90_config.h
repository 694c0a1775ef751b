// What the Hopper kernels of grouped_mlp can do: host arithmetic, no CUDA.
#pragma once

#include <string>

#include "moebius/ops/grouped_mlp/grouped_mlp.h"

namespace moebius::ops::sm90 {

// The first reason against the fused kernels, with its values, or "".
std::string why_not_mlp(const GroupedMlpArgs& args, const Exec& exec);
std::string why_not_mlp_backward(const GroupedMlpBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90
