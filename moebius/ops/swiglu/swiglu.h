// ScaledSwiGLU and its siblings: gated activations times a row factor (the routing weight).
//   a = gate, u = up:  y = s · a·σ(a) · u
//   clamped QuickGeGLU: y = s · a'·σ(α a') · (u' + offset), a' = min(a, limit), u' = clamp(u, −limit, limit)
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

enum class GluKind { SwiGlu, ClampedQuickGeGlu };

struct GluOptions {
    GluKind kind = GluKind::SwiGlu;
    int64_t interleave = 0;  // 0: gate first, then up; b: columns in blocks [gate b | up b | gate b | …]
    float limit =
        7.0f;  // ClampedQuickGeGlu; gradients are zero outside the clamps, the bound counts as inside
    float alpha = 1.702f;
    float offset = 1.0f;
};

// Arithmetic in fp32, one final cast. Rows past the sum of split_sizes (if given) are neither read nor
// written.
struct ScaledGluArgs {
    GluOptions options;
    View x;            // (M, 2I)
    View scales;       // (M) f32, optional (1)
    View split_sizes;  // optional
    View y;            // (M, I)
};
void scaled_glu(const ScaledGluArgs& args, const Exec& exec);
Cost cost(const ScaledGluArgs& args);
std::vector<VariantInfo> scaled_glu_variants();

struct ScaledGluBackwardArgs {
    GluOptions options;
    View x, scales, split_sizes;  // as in forward
    View dy;                      // (M, I)
    View dx;                      // (M, 2I); may be x itself
    View dscales;                 // (M) f32, optional: Σ_columns dy · (y / s), without the factor s
    View y;                       // (M, I), optional: the activation once more, as forward writes it
};
void scaled_glu_backward(const ScaledGluBackwardArgs& args, const Exec& exec);
Cost cost(const ScaledGluBackwardArgs& args);
std::vector<VariantInfo> scaled_glu_backward_variants();

}  // namespace moebius::ops
