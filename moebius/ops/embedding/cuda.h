#pragma once

#include "moebius/ops/embedding/embedding.h"

namespace moebius::ops::cuda {

void embedding(const EmbeddingArgs& args, const Exec& exec);
void embedding_backward(const EmbeddingBackwardArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
