// Tensors to eight-bit floats with scales, and back. What is rounded how: docs/numerics.md; where codes and
// scales lie: tensor/operand.h. Every backend gives the same bits: IEEE products and quotients of fp32, each
// rounded once, nothing contracted, nothing flushed to zero.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/operand.h"

namespace moebius::ops {

// What is read: M rows of K, or of a weight (E, N, K). Rows are split among experts as split_sizes say
// (absent: one expert's); rows past the sum are neither read nor is anything written for them.
struct QuantizeSource {
    View values;       // (M, K), or (E, N, K) for a weight; f32 or bf16, columns dense
    View split_sizes;  // (E) i32 or i64, in the op's own memory space; not for a weight
    // Optional (M) i32: row m is values' row row_index[m] / topk, values being (tokens, K). As gather_rows'
    // source.
    View row_index;
    int64_t topk = 1;
    // Optional, both or neither: the numbers are RMSNorm's output, of row r of `values` values · rstd[r] ·
    // norm_weight, rounded to their type as rms_norm rounds its y. Not for a weight.
    View rstd;         // f32, one a row of `values`
    View norm_weight;  // (K) f32 or bf16
};
MatrixShape matrix_of(const QuantizeSource& source);

// Fills `row`, `column` or both from one read of the source. Both have one element type, kind of scales,
// layout.
//   Block128  scale = largest / amax of the block, or the power of two below; stored 1 / scale
//   Tensor    the same from an expert's `amax`, or with its `scale` as given
//   MX32      code = amax · (1/largest) rounded up to a power of two
// amax of a block leaves NaN out. Codes: x · scale to nearest even, saturating; a NaN stays one. In
// transposed data rows up to an expert's next multiple of 128 become zero codes; so does the padding of
// padded and swizzled scales.
struct QuantizeArgs {
    QuantizeSource source;
    Operand row, column;     // out
    float amax_epsilon = 0;  // Tensor, Block128: an amax below counts as this
    View amax, scale;        // (E) f32, in; Tensor only, one of the two
    // Optional, of each expert, from the row-wise codes where there are some, else from the column-wise ones.
    View observed_amax;  // (E) f32, out: largest magnitude, NaN left out
    View counts;         // (E, 2) i64, out: numbers not zero whose code is; numbers beyond the largest code's
};
void quantize(const QuantizeArgs& args, const Exec& exec);
Cost cost(const QuantizeArgs& args);
std::vector<VariantInfo> quantize_variants();

// For ops that quantize what they compute: what they fill, and how. The meaning is QuantizeArgs'.
struct QuantizeRule {
    float amax_epsilon = 0;
    // (E) f32, in; Tensor only, one of the two at most. Absent: from each expert's own amax, found first.
    View scale, amax;
    View observed_amax;  // (E) f32, out, optional
    View counts;         // (E, 2) i64, out, optional
};
struct QuantizeTarget {
    Operand row, column;
    QuantizeRule rule;
};
// Aborts unless the target has what QuantizeArgs asks for, for a tensor of these sizes. `what` is named.
void check_target(const char* what, const QuantizeTarget& target, const MatrixShape& matrix);
double bytes_of(const QuantizeTarget& target);
// Why kernels that work in tiles of two times 128 columns (any_pairs.cuh) don't write this; empty: they do.
std::string why_not_pairs(const QuantizeTarget& target);
QuantizeTarget target_of(const QuantizeArgs& args);

// amax (E) f32 = each expert's largest magnitude, NaN left out; 0 of an expert without rows.
struct TensorAmaxArgs {
    QuantizeSource source;
    View amax;  // out
};
void tensor_amax(const TensorAmaxArgs& args, const Exec& exec);
Cost cost(const TensorAmaxArgs& args);
std::vector<VariantInfo> tensor_amax_variants();

// out = codes · scales, one product in fp32, rounded to out's type.
struct DequantizeArgs {
    Operand from;
    Direction direction = Direction::Row;  // that `from` is of
    View split_sizes;                      // as in QuantizeSource
    View out;                              // (M, K) or (E, N, K), f32 or bf16, dense
};
void dequantize(const DequantizeArgs& args, const Exec& exec);
Cost cost(const DequantizeArgs& args);
std::vector<VariantInfo> dequantize_variants();

}  // namespace moebius::ops
