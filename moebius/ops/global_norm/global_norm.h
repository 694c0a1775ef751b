// Sums of squares over flat buffers, in pieces that depend on sizes only, added in fp64.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

// sum_of_squares = Σ x² over `values` plus what is there (so several buffers and ranks can be added); Inf and
// NaN stay.
struct SumOfSquaresArgs {
    View values;          // any shape, contiguous, f32 or bf16
    View sum_of_squares;  // (1) f64, added to
};
void sum_of_squares(const SumOfSquaresArgs& args, const Exec& exec);
Cost cost(const SumOfSquaresArgs& args);
std::vector<VariantInfo> sum_of_squares_variants();

// norm = grad_factor · √(sum of squares); clip = grad_factor · min(1, max_norm / (norm + 1e-6)), max_norm ≤
// 0: no clipping. Norm or loss not finite: *bad = 1, clip = 0.
struct ClipFactorArgs {
    View sum_of_squares;  // (1) f64
    View grad_factor;     // (1) f32, optional (1): what the stored gradients must be multiplied by, 1 / label
                          // count
    View loss;            // (1) f32, optional: checked too
    float max_norm = 0;
    View norm, clip;  // (1) f32 out
    View bad;         // (1) i32, set, never cleared
};
void clip_factor(const ClipFactorArgs& args, const Exec& exec);
Cost cost(const ClipFactorArgs& args);
std::vector<VariantInfo> clip_factor_variants();

}  // namespace moebius::ops
