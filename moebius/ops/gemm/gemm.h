// Dense matrix products of a linear layer, y = x Wᵀ, and its two gradients.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

enum class GemmKind {
    Forward,  // a = x (M, K),  b = W (N, K)  → out (M, N) = x Wᵀ
    Dgrad,    // a = dy (M, N), b = W (N, K)  → out (M, K) = dy W
    Wgrad,    // a = dy (M, N), b = x (M, K)  → out (N, K) = dyᵀ x
};

struct GemmArgs {
    GemmKind kind = GemmKind::Forward;
    View a, b;  // f32 or bf16 each; rows may be strided, columns are dense
    View out;   // f32 or bf16; sums in fp32, one final cast. beta = 1 adds to what is there, before the cast
    float beta = 0;  // 0: out is only written (may hold NaN); 1: accumulated into
};

void gemm(const GemmArgs& args, const Exec& exec);
// The algorithm that a library's variant takes for these shapes, strides and addresses (null ones count as
// aligned), in words for `moebius info`; "" where no library is asked. Launches nothing.
std::string gemm_choice(const GemmArgs& args, const Exec& exec);
Cost cost(const GemmArgs& args);
std::vector<VariantInfo> gemm_variants();

}  // namespace moebius::ops
