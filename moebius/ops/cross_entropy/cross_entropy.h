// Softmax cross-entropy of next tokens, loss and gradient in one pass over a block of logits.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

struct CrossEntropyArgs {
    View logits;      // (T, V) f32 or bf16, read as fp32
    View targets;     // (T) i32; −100 is ignored; another value outside [0, V) sets *bad and is ignored
    View token_loss;  // (T) f32 out: −log p(target), 0 where ignored
    View dlogits;     // (T, V), optional, may be logits: grad_scale · (softmax − onehot), 0 where ignored
    View grad_scale;  // (1) f32, with dlogits
    View bad;         // (1) i32, optional
};
void cross_entropy(const CrossEntropyArgs& args, const Exec& exec);
Cost cost(const CrossEntropyArgs& args);
std::vector<VariantInfo> cross_entropy_variants();

}  // namespace moebius::ops
