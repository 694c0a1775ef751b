#pragma once

#include "moebius/ops/grouped_gemm/grouped_gemm.h"

namespace moebius::ops::sm90 {

void grouped_gemm(const GroupedGemmArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90
