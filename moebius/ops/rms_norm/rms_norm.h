// RMSNorm, y = x · rsqrt(mean(x²) + eps) · w, in fp32 with one final cast; the residual sum before it in the
// same pass.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

struct RmsNormArgs {
    View x;         // (T, H)
    View residual;  // (T, H), optional: the norm is of x + residual (rounded to the dtype of `sum`)
    View weight;    // (H)
    View sum;       // (T, H) out, with residual: x + residual
    View y;         // (T, H) out, optional where rstd is given: who quantizes the norm makes y from it
    View rstd;      // (T) f32 out, optional
    float eps = 1e-5f;
};
void rms_norm(const RmsNormArgs& args, const Exec& exec);
Cost cost(const RmsNormArgs& args);
std::vector<VariantInfo> rms_norm_variants();

struct RmsNormBackwardArgs {
    View x, weight, rstd;  // x: what was normalised (forward's `sum` where there was a residual)
    View dy;               // (T, H)
    View dresidual;        // (T, H), optional: added to dx (the gradient that by-passes the norm)
    View dx;               // (T, H) out; may be dy or dresidual
    View dweight;          // (H) f32 or bf16: beta·itself + gradient in fp32, rounded once; summed in an
                           // order that depends on shapes only
    float beta = 0;
};
void rms_norm_backward(const RmsNormBackwardArgs& args, const Exec& exec);
Cost cost(const RmsNormBackwardArgs& args);
std::vector<VariantInfo> rms_norm_backward_variants();

}  // namespace moebius::ops
