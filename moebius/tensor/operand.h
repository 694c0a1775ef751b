// What a matrix product reads of a low-precision tensor: codes and scales in one direction, and where they
// lie. docs/numerics.md has the layouts as a table; operand_shapes is the only place that computes them.
#pragma once

#include "moebius/tensor/view.h"

namespace moebius {

enum class ScaleKind : uint8_t {
    None,      // bf16 or f32, no scales
    Tensor,    // one f32 an expert
    Block128,  // f32; 1 × 128 or 128 × 1 of activations and gradients, 128 × 128 of weights
    MX32,      // E8M0; 1 × 32 or 32 × 1
};
// Where MX32's scales lie. Padded: rows and blocks of a row in multiples of 128 and 4; Swizzled: those in the
// tensor cores' order. Padding is zero; each expert has a matrix of its own.
enum class ScaleLayout : uint8_t { Compact, Padded, Swizzled };
// Row: blocks along a row, for products that sum over columns. Column: blocks down the rows, for products
// that sum over rows.
enum class Direction : uint8_t { Row, Column };

std::string_view name(ScaleKind kind);

struct Format {
    DType element = DType::BF16;
    ScaleKind scale = ScaleKind::None;
    int block_rows = 0, block_columns = 0;  // of the tensor as it was given; 0: all of an expert's
    bool power_of_two = false;              // f32 scales are; E8M0 always is

    bool operator==(const Format&) const = default;
};

// Largest finite element of a float8 type.
float largest_finite(DType element);

// Scales beside the data are what codes are multiplied by to get numbers back.
struct Operand {
    View data;
    View scale;
    Format format;
    // The data lies transposed: its last axis runs down the rows of the tensor. Column-wise Tensor and
    // Block128 operands do, since eight-bit tensor-core products read along the axis that they sum over.
    bool transposed = false;
    ScaleLayout layout = ScaleLayout::Compact;

    explicit operator bool() const { return static_cast<bool>(data); }
};

// The tensor that is quantized. Activations and gradients: `rows` a capacity, split among experts as
// split_sizes say. A weight: (experts, rows, columns).
struct MatrixShape {
    int64_t rows = 0, columns = 0, experts = 1;
    bool weight = false;
};

// An expert's rows in transposed data start at a multiple of this, and so do those of padded scales.
inline constexpr int64_t kRowBlock = 128;
// An upper bound of Σ ⌈nₑ/block⌉ · block over experts with Σ nₑ ≤ rows.
int64_t padded_rows(int64_t rows, int64_t experts, int64_t block = kRowBlock);

Format make_format(DType element, ScaleKind scale, Direction direction, bool weight, bool power_of_two);

struct OperandShapes {
    Shape data, scale;
    DType scale_dtype = DType::F32;
    bool transposed = false;
};
// Row, M rows, K columns, E experts, Mp = padded_rows(M, E):
//   Block128  data (M, K), scale (⌈K/128⌉, M up to a multiple of 4)
//   Tensor    data (M, K), scale (E)
//   MX32      data (M, K), scale (M, ⌈K/32⌉); padded (Mp, ⌈K/32⌉ up to a multiple of 4)
// Column:
//   Block128  data (K, Mp): expert e's rows from 128 · Σ_{i<e} ⌈nᵢ/128⌉ on, the rest of its last block zero;
//             scale (Mp/128, K)
//   Tensor    data (K, Mp) likewise, scale (E)
//   MX32      data (M, K), scale (rows of blocks, K), expert e's from Σ_{i<e} ⌈nᵢ/32⌉ on; padded (Mp/32, K up
//   to a
//             multiple of 128), from 4 · Σ_{i<e} ⌈nᵢ/128⌉ on
// A weight (E, N, K): Block128 scale (E, ⌈N/128⌉, ⌈K/128⌉), and both transposed column-wise; Tensor data (E,
// N, K), column-wise (E, K, N); MX32 as above with n = N, in three axes where compact or padded. Swizzled
// scales: (tiles of 128 rows · ⌈K/128⌉ · 512 bytes), tile t of all row tiles from t · ⌈K/128⌉ · 512 on
// row-wise; column-wise expert e's from ⌈K/128⌉ · 512 · (row tiles before) on, its column tiles ⌈nₑ/128⌉ ·
// 512 apart.
OperandShapes operand_shapes(const Format& format, Direction direction, const MatrixShape& matrix,
                             ScaleLayout layout = ScaleLayout::Compact);

// Aborts unless data and scale have these shapes, element types and dense memory. `what` is named.
void check_operand(const char* what, const Operand& operand, Direction direction, const MatrixShape& matrix);

// Place of the scale of row i, block j in a matrix of swizzled scales `row_blocks` blocks wide (as ⌈blocks/4⌉
// tiles).
constexpr int64_t swizzled_place(int64_t i, int64_t j, int64_t tiles_across) {
    return (i / 128 * tiles_across + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
}

}  // namespace moebius
