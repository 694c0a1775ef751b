// Token copies sorted by expert, and back. Stable: inside an expert, rows keep the order of (token, slot).
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

// Where each copy goes. M = T · k.
struct PermutationArgs {
    View topk_indices;  // (T, k) i32, each in [0, E)
    View row_of;        // (T, k) i32 out: the row of token t's copy in slot s
    View source;        // (M) i32 out: the copy t · k + s that row m holds
    View split_sizes;   // (E) i32 out
};
void permutation(const PermutationArgs& args, const Exec& exec);
Cost cost(const PermutationArgs& args);
std::vector<VariantInfo> permutation_variants();

// out[m] = x[source[m] / k] (· weights[source[m]]), for rows below Σ split_sizes. 64-bit offsets.
struct GatherRowsArgs {
    View x;            // (T, H)
    View source;       // (M) i32
    int64_t topk = 1;  // k
    View weights;      // (T, k) f32, optional
    View split_sizes;  // optional: rows past the sum are neither read nor written
    View out;          // (M, H)
    // With weights and `dot_with` (M, H): dots[source[m]] = <x[source[m] / k], dot_with[m]>, the weights'
    // gradient.
    View dot_with, dots;  // dots (T, k) f32
};
void gather_rows(const GatherRowsArgs& args, const Exec& exec);
Cost cost(const GatherRowsArgs& args);
std::vector<VariantInfo> gather_rows_variants();

// out[t] = Σ_s (weights[t, s] ·) y[row_of[t, s]], fp32 sums in slot order, one final cast.
struct CombineRowsArgs {
    View y;        // (M, H)
    View row_of;   // (T, k) i32
    View weights;  // (T, k) f32, optional
    View out;      // (T, H)
};
void combine_rows(const CombineRowsArgs& args, const Exec& exec);
Cost cost(const CombineRowsArgs& args);
std::vector<VariantInfo> combine_rows_variants();

// out[m] = values[source[m]] (scalars that travel with copies), or back: out[source[m]] = values[m].
struct PermuteScalarsArgs {
    View values;  // (T, k) f32 forward, (M) f32 back
    View source;  // (M) i32
    View out;     // (M) f32 forward, (T, k) f32 back
    bool back = false;
};
void permute_scalars(const PermuteScalarsArgs& args, const Exec& exec);
Cost cost(const PermuteScalarsArgs& args);
std::vector<VariantInfo> permute_scalars_variants();

}  // namespace moebius::ops
