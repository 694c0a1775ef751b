// Rows of a table by token id, and the table's gradient, summed in token order.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

struct EmbeddingArgs {
    View ids;    // (T) i32, each in [0, V); one outside sets *bad and reads as row 0
    View table;  // (V, H)
    View out;    // (T, H)
    View bad;    // (1) i32, optional: set to 1, never cleared
};
void embedding(const EmbeddingArgs& args, const Exec& exec);
Cost cost(const EmbeddingArgs& args);
std::vector<VariantInfo> embedding_variants();

struct EmbeddingBackwardArgs {
    View ids;                  // (T) i32
    View dout;                 // (T, H)
    View dtable;               // (V, H) f32 or bf16: beta·itself + gradient, rounded once
    int64_t padding_idx = -1;  // this row gets no gradient
    float beta = 0;
};
void embedding_backward(const EmbeddingBackwardArgs& args, const Exec& exec);
Cost cost(const EmbeddingBackwardArgs& args);
std::vector<VariantInfo> embedding_backward_variants();

}  // namespace moebius::ops
