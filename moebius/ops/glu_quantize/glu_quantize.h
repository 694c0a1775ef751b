// Gated activations to eight-bit floats: ScaledSwiGLU and its siblings, forward and backward, whose result
// leaves as codes and scales in both directions. Equal bit for bit to scaled_glu, or scaled_glu_backward,
// followed by quantize on the same device: what these store is rounded to x's type on the way. On the CPU,
// and on a GPU by all variants but the composed ones, the result is never in memory in high precision.
#pragma once

#include "moebius/ops/quantize/quantize.h"
#include "moebius/ops/swiglu/swiglu.h"

namespace moebius::ops {

struct ScaledGluQuantizeArgs {
    GluOptions options;
    View x;                     // (M, 2I) f32 or bf16
    View scales;                // (M) f32, optional (1)
    View split_sizes;           // (E)
    QuantizeTarget activation;  // (M, I) of E experts, out
};
void scaled_glu_quantize(const ScaledGluQuantizeArgs& args, const Exec& exec);
Cost cost(const ScaledGluQuantizeArgs& args);
std::vector<VariantInfo> scaled_glu_quantize_variants();

struct ScaledGluBackwardQuantizeArgs {
    GluOptions options;
    View x, scales, split_sizes;  // as in forward
    View dy;                      // (M, I) of x's type
    QuantizeTarget dx;            // (M, 2I) of E experts, out
    // (M, I) column-wise, out, optional: what forward made, again. Tensor scales are given or their amax is.
    QuantizeTarget activation;
    View dscales;              // (M) f32, optional
    bool overwrite_x = false;  // x may be used as scratch: what it then holds is not said
};
void scaled_glu_backward_quantize(const ScaledGluBackwardQuantizeArgs& args, const Exec& exec);
Cost cost(const ScaledGluBackwardQuantizeArgs& args);
std::vector<VariantInfo> scaled_glu_backward_quantize_variants();

// Whether the largest magnitude of what is quantized has to be found first: Tensor scales that nothing gives.
bool finds_amax(const QuantizeTarget& target);

}  // namespace moebius::ops
