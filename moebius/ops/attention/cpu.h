#pragma once

#include "moebius/ops/attention/attention.h"

namespace moebius::ops::cpu {

void attention(const AttentionArgs& args, const Exec& exec);
void attention_backward(const AttentionBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::cpu
