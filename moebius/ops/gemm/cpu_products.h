// Products of many rows on all threads, built on the matrix kernel: what gemm, grouped_gemm and grouped_mlp
// share. Consecutive rows belong to groups (experts; a dense product has one).
#pragma once

#include <vector>

#include "moebius/ops/gemm/cpu_kernel.h"
#include "moebius/runtime/exec.h"
#include "moebius/tensor/view.h"

namespace moebius::ops::cpu {

// A matrix in memory, f32 or bf16; the columns are dense.
struct Matrix {
    void* data = nullptr;
    DType dtype = DType::F32;
    int64_t stride = 0;

    Matrix() = default;
    Matrix(void* data, DType dtype, int64_t stride) : data(data), dtype(dtype), stride(stride) {}
    explicit Matrix(const View& view) : Matrix(view.data, view.dtype, view.stride[view.rank() - 2]) {}
    Matrix at(int64_t row, int64_t column) const;
};

struct RowGroup {
    int64_t first = 0, rows = 0;
    Matrix weight;
    const void* bias = nullptr;
};

// out (rows, n) = beta·out + a (rows, k) · weight, the group's; weight (n, k) transposed, or (k, n).
struct RowProducts {
    Matrix a, out;
    int64_t n = 0, k = 0;
    bool transposed = false;  // weights are (n, k)
    std::vector<RowGroup> groups;
    DType bias_dtype = DType::F32;
    const float* bias_scale = nullptr;  // of a row
    bool accumulate = false;
};
void run_products(const RowProducts& products, const Exec& exec);

// out (m, n), the group's, = beta·out + a (rows, m)ᵀ b (rows, n). The sum over rows is cut into slices of
// kSliceRows from the group's first row: out becomes ((beta·out + s₀) + s₁) + …, and each sᵢ is a product in
// the sense of the kernel. So rows may be given in several calls, cut at multiples of kSliceRows. A group
// without rows is written, with zeros, unless `accumulate`.
inline constexpr int64_t kSliceRows = 4 * kDepth;
struct DepthGroup {
    int64_t rows = 0;
    Matrix a, b, out;
    bool accumulate = false;
};
struct DepthProducts {
    int64_t m = 0, n = 0;
    std::vector<DepthGroup> groups;
};
void run_products(const DepthProducts& products, const Exec& exec);

// The parts of the above.

// Scratch that a call may take for packed operands, in floats (64 MiB), unless one unit needs more.
inline constexpr int64_t kPackedBudget = int64_t{16} << 20;
// Bytes of a scratch of so many floats: at least a huge page, which the pool then asks for.
size_t scratch_bytes(int64_t floats);

Left pack_left(Isa isa, int64_t m, int64_t k, const Matrix& a, float* packed);
void pack_left_panels(Isa isa, int64_t m, int64_t k, const Matrix& a, float* packed, int64_t panel_stride);
void pack_right_panels(Isa isa, bool transposed, int64_t k, int64_t n, const Matrix& b, float* packed,
                       int64_t panel_stride);
// Packs right operands, each in pieces. `packed` holds packed_right_floats(k, n).
struct WeightPacking {
    Matrix weight;  // (n, k) transposed, or (k, n)
    bool transposed = false;
    int64_t k = 0, n = 0;
    float* packed = nullptr;

    Right right(Isa isa) const { return {packed, tile_columns(isa) * k}; }
};
void pack_weights(const std::vector<WeightPacking>& weights, const Exec& exec);
// multiply, over columns in blocks whose sums stay in the second-level cache.
void multiply_wide(Isa isa, int64_t m, int64_t n, int64_t k, Left left, Right right, float* c,
                   int64_t c_stride, bool accumulate, Ahead* ahead = nullptr);
// Rows of a matrix into `ahead`, if little lies between them.
void add_ahead(Ahead& ahead, const Matrix& a, int64_t rows, int64_t columns);
// out = the sums, plus scale · bias where given, rounded to out's dtype.
void finish_rows(Isa isa, int64_t rows, int64_t n, const float* sums, int64_t stride, const Matrix& out,
                 const void* bias = nullptr, DType bias_dtype = DType::F32, const float* scale = nullptr);

// Finds the item that piece belongs to: `ends` ascending; sets `local` to the piece's number within it.
size_t find_item(const std::vector<int64_t>& ends, int64_t piece, int64_t& local);

}  // namespace moebius::ops::cpu
