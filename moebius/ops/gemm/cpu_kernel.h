// The matrix kernel of the CPU: packing and a register-blocked product, single-threaded, for gemm,
// grouped_gemm, grouped_mlp and attention to build on.
//
// Operands are f32 or bf16, arithmetic is fp32. C = beta·C + A B with A (m, k), B (k, n). The inner dimension
// is cut into blocks of kDepth from its start: C becomes ((beta·C + p₀) + p₁) + …, pᵢ being the product over
// block i, summed in ascending k. So an element's bits depend on its row of A, its column of B and the
// instruction set, and on nothing else: not on m, n, tiles or threads. A product of pieces cut at multiples
// of kDepth, the second accumulated onto the first, gives the bits of the whole.
#pragma once

#include <cstdint>

#include "moebius/base/bf16.h"
#include "moebius/runtime/isa.h"

namespace moebius::ops::cpu {

inline constexpr int64_t kDepth = 256;

// Rows of a register tile (AVX-512: 14, AVX2: 6, baseline: 4), and columns (32, 16, 8).
int64_t tile_rows(Isa isa);
int64_t tile_columns(Isa isa);

// Left operand (m, k), f32, ready to be multiplied. Either rows as they lie in memory (k dense; a row stride
// that is a multiple of 1 KiB is slow), or panels that pack_left wrote.
struct Left {
    const float* data = nullptr;
    int64_t row_stride = 0;  // 0: panels of tile_rows rows, k of them one after the other
};
inline Left left_rows(const float* data, int64_t row_stride) {
    return {data, row_stride};
}
// Rows [row, …) of a packed or plain left operand; of panels, `row` must be a multiple of tile_rows.
// Columns [k, …): `depth` is the k that it was packed with.
Left left_at(Isa isa, Left left, int64_t row, int64_t k, int64_t depth);

// Floats that `packed` must hold.
int64_t packed_left_floats(Isa isa, int64_t m, int64_t k);
int64_t packed_right_floats(Isa isa, int64_t k, int64_t n);

// A = a (m, k) or, transposed, a (k, m)ᵀ; `stride` between a's rows. T: float, BF16.
template <class T>
Left pack_left(Isa isa, bool transposed, int64_t m, int64_t k, const T* a, int64_t stride, float* packed);

// B = b (k, n) or, transposed, b (n, k)ᵀ: a weight as it lies. Panels of tile_columns columns, each k deep.
// `packed` is aligned to 64 bytes. T: float, BF16.
template <class T>
void pack_right(Isa isa, bool transposed, int64_t k, int64_t n, const T* b, int64_t stride, float* packed);

// C (m, n) = (accumulate ? C : 0) + A B. `right`: what pack_right wrote for the same n, `depth` being the k
// that it was packed with (≥ k: a multiplication may use the first k of it; pass right + first·tile_columns
// to start further down).
void multiply(Isa isa, int64_t m, int64_t n, int64_t k, Left left, const float* right, int64_t depth,
              float* c, int64_t c_stride, bool accumulate);

// All at once, for small tiles: C = (accumulate ? C : 0) + op(A) op(B). Plain f32 rows of A are used where
// they lie. `scratch` (64-byte aligned) holds tile_scratch_floats. A, B: float, BF16.
int64_t tile_scratch_floats(Isa isa, int64_t m, int64_t n, int64_t k);
template <class A, class B>
void tile_multiply(Isa isa, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const A* a,
                   int64_t a_stride, const B* b, int64_t b_stride, float* c, int64_t c_stride,
                   bool accumulate, float* scratch);

}  // namespace moebius::ops::cpu
