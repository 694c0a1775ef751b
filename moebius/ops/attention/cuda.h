#pragma once

#include "moebius/ops/attention/attention.h"

namespace moebius::ops::cuda {

inline constexpr int64_t kMostHeadDim = 256;

void attention(const AttentionArgs& args, const Exec& exec);
void attention_backward(const AttentionBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
