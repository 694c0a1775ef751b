#pragma once

#include "moebius/ops/quantize/quantize.h"

namespace moebius::ops::cuda {

void quantize(const QuantizeArgs& args, const Exec& exec);
void quantize_pairs(const QuantizeArgs& args, const Exec& exec);  // tiles of two times 128 columns
void tensor_amax(const TensorAmaxArgs& args, const Exec& exec);
void dequantize(const DequantizeArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
