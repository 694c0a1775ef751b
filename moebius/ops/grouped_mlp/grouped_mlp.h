// The experts' MLP in one op: GroupedLinear(gate_up) → ScaledSwiGLU → GroupedLinear(down), forward and
// backward. The activation of all rows is never written: a block of rows goes through both products while it
// is in cache. Rounds to the activations' dtype wherever the unfused chain stores, and sums in the same
// order: equal to it bit for bit.
//
// Scratch on the CPU, whatever the splits: 64 MiB for packed operands (or one expert's weights and 1,024 of
// its rows in fp32, if that is more), and per thread 128 rows of 2·max(H, 2I) + 3·I floats. Backward keeps dC
// and the activation of as many rows as fit in 64 MiB at a time; with bf16 gradients, where that cuts an
// expert's rows, up to two experts' gradients in fp32.
#pragma once

#include "moebius/ops/swiglu/swiglu.h"

namespace moebius::ops {

struct GroupedMlpArgs {
    GluOptions options;
    View x;            // (M, H)
    View gate_up;      // (E, 2I, H)
    View down;         // (E, H, I)
    View scales;       // (M) f32, optional
    View split_sizes;  // (E)
    View c;            // (M, 2I) out, optional: the pre-activation, kept for backward
    View y;            // (M, H) out
};
void grouped_mlp(const GroupedMlpArgs& args, const Exec& exec);
Cost cost(const GroupedMlpArgs& args);
std::vector<VariantInfo> grouped_mlp_variants();

struct GroupedMlpBackwardArgs {
    GluOptions options;
    View x, c, gate_up, down, scales, split_sizes;  // as in forward
    View dy;                                        // (M, H)
    View dx;                                        // (M, H) out
    View dgate_up, ddown;                           // (E, 2I, H), (E, H, I), f32 or bf16: beta·itself +
                                                    // gradient in fp32, rounded once
    View dscales;                                   // (M) f32 out, optional
    float beta_gate_up = 0, beta_down = 0;          // as GroupedGemmArgs::beta
    // dC may be written over C: each element is read before its gradient takes its place. What c then holds
    // is not said.
    bool overwrite_c = false;
};
void grouped_mlp_backward(const GroupedMlpBackwardArgs& args, const Exec& exec);
Cost cost(const GroupedMlpBackwardArgs& args);
std::vector<VariantInfo> grouped_mlp_backward_variants();

}  // namespace moebius::ops
