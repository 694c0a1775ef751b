// The experts' MLP on eight-bit operands, forward and backward: GroupedLinear(gate_up) → ScaledSwiGLU →
// GroupedLinear(down), whose activation and whose gradient of the pre-activation leave the op that makes them
// as codes and scales in both directions. Rounds to the type of c wherever the unfused chain stores and sums
// in the same order: equal to it bit for bit on one device.
//
// M rows (a capacity) of E experts as split_sizes say, H hidden, I intermediate. Operands of one ScaleKind,
// layouts as in tensor/operand.h, MX32's scales compact.
#pragma once

#include "moebius/ops/glu_quantize/glu_quantize.h"

namespace moebius::ops {

// With Tensor scales that activation.rule does not give, the scale is known only after the last tile of the
// first product: each variant then has a kernel more, which makes the codes, of C or of the activation.
struct GroupedMlpQuantizedArgs {
    GluOptions options;
    Operand x;              // (M, H) row-wise
    Operand gate_up, down;  // (E, 2I, H), (E, H, I) row-wise
    View scales;            // (M) f32, optional
    View split_sizes;       // (E)
    // (M, I) out: row-wise, which the second product reads; column-wise for who keeps what backward else
    // makes again.
    QuantizeTarget activation;
    View c;                          // (M, 2I) out, f32 or bf16: the pre-activation
    View y;                          // (M, H) out, of c's type
    bool fast_accumulation = false;  // as GroupedGemmQuantizedArgs'
};
void grouped_mlp_quantized(const GroupedMlpQuantizedArgs& args, const Exec& exec);
Cost cost(const GroupedMlpQuantizedArgs& args);
std::vector<VariantInfo> grouped_mlp_quantized_variants();

// Scratch: the gradient of the activation (M, I) in c's type; on a GPU that of the pre-activation (M, 2I) too
// where scaled_glu_backward_quantize is composed, unless it may be written over C. Without gate_up it ends
// with dC, ddown and dscales, so that whoever goes on from dC need not hold gate_up's codes until then: x, dx
// and dgate_up are then empty. Without ddown too it ends with dC, the activation if it is asked for and
// dscales: dy_column is then empty.
struct GroupedMlpQuantizedBackwardArgs {
    GluOptions options;
    Operand x;              // (M, H) column-wise, as forward had it
    Operand gate_up, down;  // column-wise
    Operand dy, dy_column;  // (M, H) row-wise and column-wise
    View c, scales, split_sizes;
    QuantizeTarget dc;  // (M, 2I) out, both directions
    // (M, I) column-wise, out: what forward's second product read row-wise, made again from c. Tensor scales
    // are forward's: they are given or their amax is.
    QuantizeTarget activation;
    View dx;               // (M, H) out, of c's type
    View dgate_up, ddown;  // (E, 2I, H), (E, H, I), f32 or bf16: beta·itself + gradient
    View dscales;          // (M) f32 out, optional
    float beta_gate_up = 0, beta_down = 0;
    bool fast_dgrad = false, fast_wgrad = false;  // as GroupedGemmQuantizedArgs::fast_accumulation
    bool overwrite_c = false;                     // c may be used as scratch: what it then holds is not said
};
void grouped_mlp_quantized_backward(const GroupedMlpQuantizedBackwardArgs& args, const Exec& exec);
Cost cost(const GroupedMlpQuantizedBackwardArgs& args);
std::vector<VariantInfo> grouped_mlp_quantized_backward_variants();

}  // namespace moebius::ops
