// The kinds of scales and products, one file each. Rows: Forward, Dgrad. Weights: Wgrad.
#pragma once

#include "moebius/ops/grouped_gemm_quantized/sm90.h"

namespace moebius::ops::sm90::quantized {

void block_rows(const GroupedGemmQuantizedArgs& args, const Exec& exec);
void block_weights(const GroupedGemmQuantizedArgs& args, const Exec& exec);
void tensor_rows(const GroupedGemmQuantizedArgs& args, const Exec& exec);
void tensor_weights(const GroupedGemmQuantizedArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90::quantized

// MX operands, of each kind of product: sm90_bf16, and from rings sm90_bf16_ring.
namespace moebius::ops::sm90::mx {

void forward(const GroupedGemmQuantizedArgs& args, const Exec& exec);
void dgrad(const GroupedGemmQuantizedArgs& args, const Exec& exec);
void wgrad(const GroupedGemmQuantizedArgs& args, const Exec& exec);
void ring_forward(const GroupedGemmQuantizedArgs& args, const Exec& exec);
void ring_dgrad(const GroupedGemmQuantizedArgs& args, const Exec& exec);
void ring_wgrad(const GroupedGemmQuantizedArgs& args, const Exec& exec);

}  // namespace moebius::ops::sm90::mx
