// Grouped matrix products of low-precision operands: consecutive rows belong to experts 0 … E−1 as
// split_sizes says, each with its own weight. A dense product is one of E = 1.
#pragma once

#include "moebius/ops/gemm/gemm.h"
#include "moebius/tensor/operand.h"

namespace moebius::ops {

// x (M, K), y (M, N), W (E, N, K); M a capacity: rows past Σ split_sizes are neither read nor written, empty
// experts are legal. Which direction of which tensor (layouts: tensor/operand.h):
//   Forward  a = x row-wise,     b = W row-wise       → out (M, N) = x Wᵀ
//   Dgrad    a = dy row-wise,    b = W column-wise    → out (M, K) = dy W
//   Wgrad    a = dy column-wise, b = x column-wise    → out (E, N, K) = dyᵀ x over each expert's rows
// so that every operand's blocks of scales run along the axis that is summed over. Both operands have one
// ScaleKind; E4M3 and E5M2 may meet. Sums in fp32:
//   Tensor    Σ over all of the depth, times both factors
//   Block128  Σ over each 128 of the depth, times both factors, added up
//   MX32      of operands dequantized to bf16, which is exact for all but extreme scales (docs/numerics.md);
//             by tensor cores that take the scales themselves, exact for these too
// MX32 takes compact scales. Throws Error where shapes or formats don't fit.
struct GroupedGemmQuantizedArgs {
    GemmKind kind = GemmKind::Forward;
    Operand a, b;
    View out;          // f32 or bf16, one final cast
    View split_sizes;  // (E) i32 or i64, in the op's own memory space
    float beta =
        0;  // 0: out is only written, an empty expert's Wgrad with zeros; 1: added to, before the cast
    // A variant may leave partial sums in the tensor core's own accumulators, which keep fewer bits, over the
    // whole depth. Tensor scales only, ignored elsewhere and by variants whose sums are fp32 throughout.
    bool fast_accumulation = false;
};

void grouped_gemm_quantized(const GroupedGemmQuantizedArgs& args, const Exec& exec);
Cost cost(const GroupedGemmQuantizedArgs& args);  // for all rows of the capacity
std::vector<VariantInfo> grouped_gemm_quantized_variants();

// The sizes that a call is about. In Wgrad `rows` is what transposed operands are known to hold: the capacity
// rounded down to a multiple of 128, and `padded` their columns.
struct QuantizedProductSizes {
    int64_t rows = 0, padded = 0, experts = 0, out_features = 0, in_features = 0;
};
QuantizedProductSizes sizes_of(const GroupedGemmQuantizedArgs& args);

}  // namespace moebius::ops
