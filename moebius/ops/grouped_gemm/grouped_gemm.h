// Grouped matrix products: consecutive rows belong to experts 0 … E−1 as split_sizes says, each with its own
// weight.
#pragma once

#include "moebius/ops/gemm/gemm.h"

namespace moebius::ops {

// Any split_sizes ≥ 0 with a sum ≤ M is legal: empty experts, one row, all rows to one. M is a capacity: rows
// past the sum are neither read nor written. Throws Error where shapes or dtypes don't fit.
struct GroupedGemmArgs {
    GemmKind kind = GemmKind::Forward;
    View a, b;  // as in GemmArgs, W being (E, N, K); f32 or bf16
    View out;   // Forward (M, N), Dgrad (M, K), Wgrad (E, N, K); f32 or bf16, fp32 sums, one final cast
    View split_sizes;  // (E) i32 or i64, in the op's own memory space
    View bias;         // optional, Forward only: (E, N), added in fp32
    View bias_scale;   // optional, (M) f32: row factor of the bias (`scale_bias`)
    float beta =
        0;  // Wgrad: 0 writes every expert's part, an empty one's with zeros; 1 adds, an empty one's stays
};

void grouped_gemm(const GroupedGemmArgs& args, const Exec& exec);
Cost cost(const GroupedGemmArgs& args);  // for all M rows
std::vector<VariantInfo> grouped_gemm_variants();

// Gradient of the bias: dbias (E, N), f32 or bf16, = beta·dbias + Σ over the expert's rows of bias_scale · dy
// in fp32, rounded once; and, where given, dbias_scale (M) f32 = Σ_columns dy · bias.
struct GroupedBiasGradArgs {
    View dy, split_sizes;
    View bias, bias_scale;    // optional
    View dbias, dbias_scale;  // dbias_scale optional
    float beta = 0;
};
void grouped_bias_grad(const GroupedBiasGradArgs& args, const Exec& exec);
std::vector<VariantInfo> grouped_bias_grad_variants();

}  // namespace moebius::ops
