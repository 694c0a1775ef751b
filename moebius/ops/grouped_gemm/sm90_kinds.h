// The three kinds of product, one file each.
#pragma once

#include "moebius/ops/grouped_gemm/sm90_config.h"

namespace moebius::ops::sm90 {

void grouped_forward(const GroupedGemmArgs& args, const Exec& exec);
void grouped_dgrad(const GroupedGemmArgs& args, const Exec& exec);
void grouped_wgrad(const GroupedGemmArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90
