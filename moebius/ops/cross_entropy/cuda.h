#pragma once

#include "moebius/ops/cross_entropy/cross_entropy.h"

namespace moebius::ops::cuda {

void cross_entropy(const CrossEntropyArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
