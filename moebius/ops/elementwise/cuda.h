#pragma once

#include "moebius/ops/elementwise/elementwise.h"

namespace moebius::ops::cuda {

void convert(const ConvertArgs& args, const Exec& exec);
void add(const AddArgs& args, const Exec& exec);
void jitter(const JitterArgs& args, const Exec& exec);
void sum_into(const SumArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
