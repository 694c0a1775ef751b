// Attention by cuDNN, through its frontend's graphs: bf16, packed sequences, a backward whose results repeat.
// no_cudnn.cpp stands in for it in builds without.
#pragma once

#include "moebius/ops/attention/packed_pieces.h"

namespace moebius::ops::cudnn {

// "" if the library runs these arguments here; else why not: it is not installed, or it has no plan for them.
std::string unavailable(const AttentionArgs& args, const Exec& exec);
std::string unavailable(const AttentionBackwardArgs& args, bool ordered, const Exec& exec);

void attention(const AttentionArgs& args, const Exec& exec);
void attention_backward(const AttentionBackwardArgs& args, const Exec& exec);
// The same with dq summed as its parts come: no buffer for the gradients of scores, and other bits in each
// run.
void attention_backward_unordered(const AttentionBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::cudnn
