#pragma once

#include "moebius/ops/grouped_gemm/grouped_gemm.h"

namespace moebius::ops::sm90 {

// Clusters as sm90_config.h chooses them.
void grouped_gemm(const GroupedGemmArgs& args, const Exec& exec);
// Blocks alone; two that share the weights' tile; two that share the rows' tile.
void grouped_gemm_single(const GroupedGemmArgs& args, const Exec& exec);
void grouped_gemm_row_pairs(const GroupedGemmArgs& args, const Exec& exec);
void grouped_gemm_column_pairs(const GroupedGemmArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90
