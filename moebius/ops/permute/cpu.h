#pragma once

#include "moebius/ops/permute/permute.h"

namespace moebius::ops::cpu {

void permutation(const PermutationArgs& args, const Exec& exec);
void gather_rows(const GatherRowsArgs& args, const Exec& exec);
void combine_rows(const CombineRowsArgs& args, const Exec& exec);
void permute_scalars(const PermuteScalarsArgs& args, const Exec& exec);

}  // namespace moebius::ops::cpu
