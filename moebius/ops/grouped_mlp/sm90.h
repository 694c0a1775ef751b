#pragma once

#include "moebius/ops/grouped_mlp/grouped_mlp.h"

namespace moebius::ops::sm90 {

void grouped_mlp(const GroupedMlpArgs& args, const Exec& exec);
void grouped_mlp_backward(const GroupedMlpBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90
