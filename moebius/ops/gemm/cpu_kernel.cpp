#include "moebius/ops/gemm/cpu_kernel.h"

#include <algorithm>

#include "moebius/base/checked.h"
#include "moebius/ops/gemm/cpu_tile.h"

namespace moebius::ops::cpu {
namespace {

template <class F>
auto with_shape(Isa isa, F&& f) {
    switch (isa) {
        case Isa::Avx512:
            return f(TileShape<Isa::Avx512>{});
        case Isa::Avx2:
            return f(TileShape<Isa::Avx2>{});
        case Isa::Baseline:
            break;
    }
    return f(TileShape<Isa::Baseline>{});
}

// Runs f(integral_constant<rows>) for rows in [1, most].
template <int most, class F>
MOEBIUS_INLINE void with_rows(int64_t rows, F&& f) {
    const auto try_rows = [&](auto r) MOEBIUS_INLINE_LAMBDA {
        if (rows == r + 1) f(std::integral_constant<int, r + 1>{});
    };
    unroll_indices(try_rows, std::make_index_sequence<most>{});
}

struct MultiplyBody {
    template <Isa isa, bool panel>
    MOEBIUS_INLINE static void blocks(int64_t m, int64_t n, int64_t k, Left left, Right right, float* c,
                                      int64_t c_stride, bool accumulate, Ahead* ahead) {
        constexpr int64_t kRows = kTileRows<isa>, kColumns = kTileColumns<isa>;
        constexpr int64_t kPieceFloats = Ahead::kPiece / static_cast<int64_t>(sizeof(float));
        const int64_t a_tile = panel ? left.panel_stride : kRows * left.row_stride;
        const int64_t whole = m / kRows, rest = m % kRows;
        for (int64_t p = 0; p < k; p += kDepth) {
            const int64_t depth = std::min(kDepth, k - p);
            const bool add = accumulate || p > 0;
            const float* a = left.data;
            if constexpr (panel) {
                a += p * kPanelRows<isa>;
            } else {
                a += left.block_stride ? p / kDepth * left.block_stride : p;
            }
            for (int64_t j = 0; j < n; j += kColumns) {
                const float* b = right.data + j / kColumns * right.panel_stride + p * kColumns;
                const int64_t columns = std::min(kColumns, n - j);
                // The panel after this one, or the first of the next block, comes in meanwhile, and what the
                // caller asked for.
                const float* next =
                    j + kColumns < n ? b + right.panel_stride : right.data + (p + kDepth) * kColumns;
                for (int64_t i = 0; i < whole; ++i) {
                    register_tile<isa, kRows, panel>(
                        depth, a + i * a_tile, left.row_stride, b, c + i * kRows * c_stride + j, c_stride,
                        columns, add, next + i * kPieceFloats, ahead ? ahead->next(b) : nullptr);
                }
                if (rest == 0) continue;
                with_rows<kRows - 1>(rest, [&](auto rows) MOEBIUS_INLINE_LAMBDA {
                    register_tile<isa, rows, panel>(depth, a + whole * a_tile, left.row_stride, b,
                                                    c + whole * kRows * c_stride + j, c_stride, columns, add,
                                                    next, b);
                });
            }
        }
    }
    template <Isa isa>
    MOEBIUS_INLINE static void run(int64_t m, int64_t n, int64_t k, Left left, Right right, float* c,
                                   int64_t c_stride, bool accumulate, Ahead* ahead) {
        if (left.panel_stride) {
            blocks<isa, true>(m, n, k, left, right, c, c_stride, accumulate, ahead);
        } else {
            blocks<isa, false>(m, n, k, left, right, c, c_stride, accumulate, ahead);
        }
    }
};

struct WidenRowsBody {
    template <Isa isa, class T>
    MOEBIUS_INLINE static void run(int64_t rows, int64_t columns, const T* a, int64_t stride, float* packed,
                                   int64_t packed_stride) {
        constexpr int64_t kWidth = kVector<isa>;
        for (int64_t i = 0; i < rows; ++i) {
            const T* from = a + i * stride;
            float* to = packed + i * packed_stride;
            int64_t j = 0;
            for (; j + kWidth <= columns; j += kWidth) store_vector(to + j, load_vector<isa>(from + j));
            for (; j < columns; ++j) to[j] = to_float(from[j]);
        }
    }
};

// (k, n) into panels of kTile columns, each row of a panel padded to kRow floats.
struct PanelsBody {
    template <Isa isa, bool left, class T>
    MOEBIUS_INLINE static void panels(int64_t k, int64_t n, const T* b, int64_t stride, float* packed,
                                      int64_t panel_stride) {
        constexpr int64_t kWidth = kVector<isa>;
        constexpr int64_t kTile = left ? kTileRows<isa> : kTileColumns<isa>;
        constexpr int64_t kRow = left ? kPanelRows<isa> : kTileColumns<isa>;
        constexpr int64_t kRowsAtATime = 16;  // of b: lines of the source stay in the first-level cache
        for (int64_t p0 = 0; p0 < k; p0 += kRowsAtATime) {
            const int64_t p1 = std::min(k, p0 + kRowsAtATime);
            for (int64_t j = 0; j < n; j += kTile) {
                float* to = packed + j / kTile * panel_stride + p0 * kRow;
                const T* from = b + p0 * stride + j;
                // The last panel's spare columns are never used: they may hold what follows in memory, as
                // long as that belongs to b, which has another row below.
                const bool inside = j + kRow <= n || (p1 < k && stride >= kRow);
                if (inside) {
                    for (int64_t p = p0; p < p1; ++p, to += kRow, from += stride) {
                        unroll<kRow / kWidth>([&](auto v) MOEBIUS_INLINE_LAMBDA {
                            store_vector(to + v * kWidth, load_vector<isa>(from + v * kWidth));
                        });
                    }
                    continue;
                }
                for (int64_t p = p0; p < p1; ++p, to += kRow, from += stride) {
                    for (int64_t i = 0; i < kRow; ++i) to[i] = i < n - j ? to_float(from[i]) : 0.0f;
                }
            }
        }
    }
    template <Isa isa, class T>
    MOEBIUS_INLINE static void run(bool left, int64_t k, int64_t n, const T* b, int64_t stride, float* packed,
                                   int64_t panel_stride) {
        if (left) {
            panels<isa, true>(k, n, b, stride, packed, panel_stride);
        } else {
            panels<isa, false>(k, n, b, stride, packed, panel_stride);
        }
    }
};

// (n, k) into right panels: squares of a vector's width are transposed in registers.
struct TransposedPanelsBody {
    template <Isa isa, class T>
    MOEBIUS_INLINE static void run(int64_t k, int64_t n, const T* b, int64_t stride, float* packed,
                                   int64_t panel_stride) {
        constexpr int64_t kWidth = kVector<isa>, kColumns = kTileColumns<isa>;
        for (int64_t j = 0; j < round_up(n, kColumns); j += kWidth) {
            float* to = packed + j / kColumns * panel_stride + j % kColumns;
            const T* from = b + j * stride;
            int64_t p = 0;
            if (j + kWidth <= n) {
                for (; p + kWidth <= k; p += kWidth) {
                    Vector<isa> square[kWidth];
                    unroll<kWidth>([&](auto i) MOEBIUS_INLINE_LAMBDA {
                        square[i] = load_vector<isa>(from + i * stride + p);
                    });
                    transpose<isa>(square);
                    unroll<kWidth>([&](auto i) MOEBIUS_INLINE_LAMBDA {
                        store_vector(to + (p + i) * kColumns, square[i]);
                    });
                }
            }
            const int64_t count = std::min(n - j, kWidth);
            for (; p < k; ++p) {
                for (int64_t i = 0; i < kWidth; ++i)
                    to[p * kColumns + i] = i < count ? to_float(from[i * stride + p]) : 0.0f;
            }
        }
    }
};

}  // namespace

int64_t tile_rows(Isa isa) {
    return with_shape(isa, [](auto shape) -> int64_t { return shape.kRows; });
}
int64_t tile_columns(Isa isa) {
    return with_shape(isa, [](auto shape) -> int64_t { return 2 * shape.kVector; });
}
int64_t block_rows(Isa isa) {
    return with_shape(isa, [](auto shape) -> int64_t { return shape.kRows * shape.kBlockTiles; });
}
int64_t panel_rows(Isa isa) {
    return with_shape(isa, [](auto shape) -> int64_t { return shape.kPanelRows; });
}

int64_t good_row_stride(int64_t k) {
    // An odd number of cache lines.
    return (ceil_div(std::max<int64_t>(k, 1), 16) | 1) * 16;
}

Left left_at(Isa isa, Left left, int64_t row, int64_t k) {
    if (left.panel_stride) {
        left.data += row / tile_rows(isa) * left.panel_stride + k * panel_rows(isa);
    } else {
        left.data += row * left.row_stride + (left.block_stride ? k / kDepth * left.block_stride : k);
    }
    return left;
}
Right right_at(Isa isa, Right right, int64_t k, int64_t column) {
    const int64_t width = tile_columns(isa);
    right.data += column / width * right.panel_stride + k * width;
    return right;
}

int64_t packed_left_floats(Isa isa, bool transposed, int64_t m, int64_t k) {
    if (transposed) return ceil_div(m, tile_rows(isa)) * panel_rows(isa) * k;
    return ceil_div(k, kDepth) * m * good_row_stride(std::min(k, kDepth));
}
int64_t packed_right_floats(Isa isa, int64_t k, int64_t n) {
    return round_up(n, tile_columns(isa)) * k;
}

template <class T>
void widen_rows(Isa isa, int64_t rows, int64_t columns, const T* from, int64_t stride, float* to,
                int64_t to_stride) {
    with_isa<WidenRowsBody>(isa, rows, columns, from, stride, to, to_stride);
}

template <class T>
void pack_left_panels(Isa isa, int64_t m, int64_t k, const T* a, int64_t stride, float* packed,
                      int64_t panel_stride) {
    with_isa<PanelsBody>(isa, true, k, m, a, stride, packed, panel_stride);
}

template <class T>
void pack_right_panels(Isa isa, bool transposed, int64_t k, int64_t n, const T* b, int64_t stride,
                       float* packed, int64_t panel_stride) {
    if (transposed) {
        with_isa<TransposedPanelsBody>(isa, k, n, b, stride, packed, panel_stride);
    } else {
        with_isa<PanelsBody>(isa, false, k, n, b, stride, packed, panel_stride);
    }
}

template <class T>
Left pack_left(Isa isa, bool transposed, int64_t m, int64_t k, const T* a, int64_t stride, float* packed) {
    if (transposed) {
        const int64_t panel_stride = panel_rows(isa) * k;
        pack_left_panels(isa, m, k, a, stride, packed, panel_stride);
        return {packed, 0, panel_stride};
    }
    const int64_t row_stride = good_row_stride(std::min(k, kDepth));
    for (int64_t p = 0; p < k; p += kDepth) {
        with_isa<WidenRowsBody>(isa, m, std::min(kDepth, k - p), a + p, stride,
                                packed + p / kDepth * m * row_stride, row_stride);
    }
    return {packed, row_stride, 0, m * row_stride};
}

template <class T>
Right pack_right(Isa isa, bool transposed, int64_t k, int64_t n, const T* b, int64_t stride, float* packed) {
    const int64_t panel_stride = tile_columns(isa) * k;
    pack_right_panels(isa, transposed, k, n, b, stride, packed, panel_stride);
    return {packed, panel_stride};
}

void multiply(Isa isa, int64_t m, int64_t n, int64_t k, Left left, Right right, float* c, int64_t c_stride,
              bool accumulate, Ahead* ahead) {
    if (k == 0 && !accumulate) {
        for (int64_t i = 0; i < m; ++i) std::fill_n(c + i * c_stride, n, 0.0f);
    }
    const int64_t block = block_rows(isa);
    for (int64_t i = 0; i < m; i += block) {
        with_isa<MultiplyBody>(isa, std::min(block, m - i), n, k, left_at(isa, left, i, 0), right,
                               c + i * c_stride, c_stride, accumulate, ahead);
    }
}

int64_t tile_scratch_floats(Isa isa, int64_t m, int64_t n, int64_t k) {
    const int64_t left = std::max(packed_left_floats(isa, false, m, k), packed_left_floats(isa, true, m, k));
    return round_up(left, 16) + packed_right_floats(isa, k, n);
}

template <class A, class B>
void tile_multiply(Isa isa, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const A* a,
                   int64_t a_stride, const B* b, int64_t b_stride, float* c, int64_t c_stride,
                   bool accumulate, float* scratch) {
    const Right right = pack_right(isa, transpose_b, k, n, b, b_stride, scratch);
    float* left_scratch = scratch + round_up(packed_right_floats(isa, k, n), 16);
    Left left;
    if constexpr (std::is_same_v<A, float>) {
        if (!transpose_a) left = {a, a_stride};
    }
    if (left.data == nullptr) left = pack_left(isa, transpose_a, m, k, a, a_stride, left_scratch);
    multiply(isa, m, n, k, left, right, c, c_stride, accumulate);
}

#define MOEBIUS_INSTANTIATE_PACKING(T)                                                                   \
    template void widen_rows<T>(Isa, int64_t, int64_t, const T*, int64_t, float*, int64_t);              \
    template void pack_left_panels<T>(Isa, int64_t, int64_t, const T*, int64_t, float*, int64_t);        \
    template void pack_right_panels<T>(Isa, bool, int64_t, int64_t, const T*, int64_t, float*, int64_t); \
    template Left pack_left<T>(Isa, bool, int64_t, int64_t, const T*, int64_t, float*);                  \
    template Right pack_right<T>(Isa, bool, int64_t, int64_t, const T*, int64_t, float*);
#define MOEBIUS_INSTANTIATE_TILE(A, B)                                                               \
    template void tile_multiply<A, B>(Isa, bool, bool, int64_t, int64_t, int64_t, const A*, int64_t, \
                                      const B*, int64_t, float*, int64_t, bool, float*);
MOEBIUS_INSTANTIATE_PACKING(float)
MOEBIUS_INSTANTIATE_PACKING(BF16)
MOEBIUS_INSTANTIATE_TILE(float, float)
MOEBIUS_INSTANTIATE_TILE(float, BF16)
MOEBIUS_INSTANTIATE_TILE(BF16, float)
MOEBIUS_INSTANTIATE_TILE(BF16, BF16)

}  // namespace moebius::ops::cpu
