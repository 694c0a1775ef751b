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

// Left operand (m, k) as f32, ready to be multiplied: rows as they lie in memory, k dense (a stride that is a
// multiple of 1 KiB is slow), or what pack_left wrote: rows cut into blocks of kDepth, or panels.
struct Left {
    const float* data = nullptr;
    int64_t row_stride = 0;
    int64_t panel_stride = 0;  // floats from one panel of tile_rows rows to the next; 0: rows
    int64_t block_stride = 0;  // of rows: floats from one block of kDepth columns to the next; 0: not cut
};
// Right operand (k, n): panels of tile_columns columns that pack_right wrote.
struct Right {
    const float* data = nullptr;
    int64_t panel_stride = 0;
};

// The operand without its first rows and columns. `row` must be a multiple of tile_rows where there are
// panels, `k` of kDepth where rows are cut, `column` of tile_columns.
Left left_at(Isa isa, Left left, int64_t row, int64_t k);
Right right_at(Isa isa, Right right, int64_t k, int64_t column);

// Floats that `packed` must hold; 64-byte aligned. T: float, BF16.
int64_t packed_left_floats(Isa isa, bool transposed, int64_t m, int64_t k);
int64_t packed_right_floats(Isa isa, int64_t k, int64_t n);

// A = a (m, k) or, transposed, a (k, m)ᵀ; `stride` between a's rows. The first becomes rows, widened, in
// blocks, at a distance that caches like; the second panels.
template <class T>
Left pack_left(Isa isa, bool transposed, int64_t m, int64_t k, const T* a, int64_t stride, float* packed);

// B = b (k, n) or, transposed, b (n, k)ᵀ: a weight as it lies.
template <class T>
Right pack_right(Isa isa, bool transposed, int64_t k, int64_t n, const T* b, int64_t stride, float* packed);

// Memory to be fetched into the second-level cache while something is multiplied: what the caller needs next.
// A hint, without effect on results.
class Ahead {
  public:
    static constexpr int64_t kPiece = 4096;  // bytes a register tile fetches
    // At most four times.
    void add(const void* data, int64_t bytes) {
        if (bytes > 0 && count_ < 4) ranges_[count_++] = {static_cast<const char*>(data), bytes};
    }
    // The next piece, or `otherwise` after the last.
    [[gnu::always_inline]] inline const char* next(const void* otherwise) {
        if (range_ == count_) return static_cast<const char*>(otherwise);
        const char* piece = ranges_[range_].data + at_;
        at_ += kPiece;
        if (at_ >= ranges_[range_].bytes) {
            at_ = 0;
            ++range_;
        }
        return piece;
    }

  private:
    struct Range {
        const char* data;
        int64_t bytes;
    };
    Range ranges_[4];
    int count_ = 0, range_ = 0;
    int64_t at_ = 0;
};

// C (m, n) = (accumulate ? C : 0) + A B.
void multiply(Isa isa, int64_t m, int64_t n, int64_t k, Left left, Right right, float* c, int64_t c_stride,
              bool accumulate, Ahead* ahead = nullptr);

// All at once, for small tiles: C = (accumulate ? C : 0) + op(A) op(B), op transposing where asked: a is then
// (k, m), b (n, k). Plain f32 rows of A are used where they lie. `scratch` (64-byte aligned) holds
// tile_scratch_floats. A, B: float, BF16.
int64_t tile_scratch_floats(Isa isa, int64_t m, int64_t n, int64_t k);
template <class A, class B>
void tile_multiply(Isa isa, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const A* a,
                   int64_t a_stride, const B* b, int64_t b_stride, float* c, int64_t c_stride,
                   bool accumulate, float* scratch);

// Rows of A that go over all of B at a time: the height of a piece of work.
int64_t block_rows(Isa isa);

// Rows as f32.
template <class T>
void widen_rows(Isa isa, int64_t rows, int64_t columns, const T* from, int64_t stride, float* to,
                int64_t to_stride);

// A row stride ≥ k, in floats, at which rows of a left operand don't fall into the same sets of a cache.
int64_t good_row_stride(int64_t k);

// Packing into a part of larger panels: k of the depth of panels that lie panel_stride floats apart, from
// `packed` on. One step of the depth is panel_rows floats of a left panel, tile_columns of a right one.
int64_t panel_rows(Isa isa);
template <class T>
void pack_left_panels(Isa isa, int64_t m, int64_t k, const T* a, int64_t stride, float* packed,
                      int64_t panel_stride);  // a (k, m), transposed
template <class T>
void pack_right_panels(Isa isa, bool transposed, int64_t k, int64_t n, const T* b, int64_t stride,
                       float* packed, int64_t panel_stride);

}  // namespace moebius::ops::cpu
