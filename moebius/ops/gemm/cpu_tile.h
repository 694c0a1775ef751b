// The register tile: the one loop in which nearly all of a CPU training step is spent. Included by
// cpu_kernel.cpp alone.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "moebius/base/bf16.h"
#include "moebius/runtime/isa.h"

namespace moebius::ops::cpu {

// Shape of the tile: kRows × 2 vectors of accumulators, so that they, two vectors of B and a broadcast
// element of A fill the registers (32, 16, 16). A row of a left panel is padded to kPanelRows floats.
// kBlockTiles tiles of A, kDepth deep, go over all of B at a time and stay in the second-level cache
// meanwhile.
template <Isa>
struct TileShape {
    static constexpr int kVector = 4, kRows = 4, kPanelRows = 4, kBlockTiles = 24;
    using Float = float __attribute__((vector_size(16)));
    using Word = uint32_t __attribute__((vector_size(16)));
    using Half = uint16_t __attribute__((vector_size(8)));
};
template <>
struct TileShape<Isa::Avx2> {
    static constexpr int kVector = 8, kRows = 6, kPanelRows = 8, kBlockTiles = 16;
    using Float = float __attribute__((vector_size(32)));
    using Word = uint32_t __attribute__((vector_size(32)));
    using Half = uint16_t __attribute__((vector_size(16)));
};
template <>
struct TileShape<Isa::Avx512> {
    static constexpr int kVector = 16, kRows = 14, kPanelRows = 16, kBlockTiles = 8;
    using Float = float __attribute__((vector_size(64)));
    using Word = uint32_t __attribute__((vector_size(64)));
    using Half = uint16_t __attribute__((vector_size(32)));
};
template <Isa isa>
inline constexpr int kVector = TileShape<isa>::kVector;
template <Isa isa>
inline constexpr int kTileRows = TileShape<isa>::kRows;
template <Isa isa>
inline constexpr int kPanelRows = TileShape<isa>::kPanelRows;
template <Isa isa>
inline constexpr int kTileColumns = 2 * kVector<isa>;

template <Isa isa>
using Vector = typename TileShape<isa>::Float;

template <Isa isa>
MOEBIUS_INLINE Vector<isa> load_vector(const float* source) {
    Vector<isa> value;
    std::memcpy(&value, source, sizeof value);
    return value;
}
template <Isa isa>
MOEBIUS_INLINE Vector<isa> load_vector(const BF16* source) {
    using Types = TileShape<isa>;
    typename Types::Half half;
    std::memcpy(&half, source, sizeof half);
    return reinterpret_cast<Vector<isa>>(__builtin_convertvector(half, typename Types::Word) << 16);
}
template <class V>
MOEBIUS_INLINE void store_vector(float* destination, V value) {
    std::memcpy(destination, &value, sizeof value);
}

// Under a sanitizer every access is checked: unrolled, the tiles below would take the compiler minutes.
#ifdef MOEBIUS_SANITIZED
inline constexpr bool kPlainLoops = true;
#else
inline constexpr bool kPlainLoops = false;
#endif

// f(integral_constant 0), … f(integral_constant count − 1): a loop that is surely unrolled, so that arrays
// indexed by it live in registers.
template <class F, size_t... index>
MOEBIUS_INLINE void unroll_indices(F&& f, std::index_sequence<index...>) {
    (f(std::integral_constant<int, static_cast<int>(index)>{}), ...);
}
template <int count, class F>
MOEBIUS_INLINE void unroll(F&& f) {
    if constexpr (kPlainLoops) {
        for (int index = 0; index < count; ++index) f(index);
    } else {
        unroll_indices(f, std::make_index_sequence<count>{});
    }
}
#define MOEBIUS_INLINE_LAMBDA __attribute__((always_inline))

// The accumulators into C (rows, columns ≤ kTileColumns).
template <Isa isa, int rows>
MOEBIUS_INLINE void store_tile(const Vector<isa> (&sum)[rows][2], float* c, int64_t c_stride, int64_t columns,
                               bool accumulate) {
    constexpr int kWidth = kVector<isa>;
    if (columns == kTileColumns<isa>) {
        unroll<rows>([&](auto r) MOEBIUS_INLINE_LAMBDA {
            float* row = c + r * c_stride;
            if (accumulate) {
                store_vector(row, load_vector<isa>(row) + sum[r][0]);
                store_vector(row + kWidth, load_vector<isa>(row + kWidth) + sum[r][1]);
            } else {
                store_vector(row, sum[r][0]);
                store_vector(row + kWidth, sum[r][1]);
            }
        });
        return;
    }
    float edge[rows][kTileColumns<isa>];
    unroll<rows>([&](auto r) MOEBIUS_INLINE_LAMBDA {
        store_vector(edge[r], sum[r][0]);
        store_vector(edge[r] + kWidth, sum[r][1]);
    });
    for (int r = 0; r < rows; ++r) {
        float* row = c + r * c_stride;
        for (int64_t j = 0; j < columns; ++j) row[j] = accumulate ? row[j] + edge[r][j] : edge[r][j];
    }
}

// C (rows, columns) = (accumulate ? C : 0) + A B for `rows` of A and one panel of B, k deep. A by rows,
// row_stride apart, or, `panel`, interleaved in a left panel.
template <Isa isa, int rows, bool panel>
MOEBIUS_INLINE void register_tile(int64_t k, const float* a, int64_t row_stride, const float* b, float* c,
                                  int64_t c_stride, int64_t columns, bool accumulate, const void* fetch,
                                  const void* fetch_too) {
    constexpr int kWidth = kVector<isa>;
    const char* fetched = static_cast<const char*>(fetch);
    const char* fetched_too = static_cast<const char*>(fetch_too);
    // One pointer for three rows: base, base + stride, base + 2·stride are addresses of one instruction.
    constexpr int kGroups = panel ? 1 : (rows + 2) / 3;
    constexpr int kUnroll = 4;
    Vector<isa> sum[rows][2];
    const float* group[kGroups];
    unroll<rows>([&](auto r) MOEBIUS_INLINE_LAMBDA {
        sum[r][0] = sum[r][1] = Vector<isa>{};
        __builtin_prefetch(c + r * c_stride, 1);
        __builtin_prefetch(c + r * c_stride + kWidth, 1);
    });
    unroll<kGroups>([&](auto g) MOEBIUS_INLINE_LAMBDA { group[g] = a + 3 * g * row_stride; });
    const auto step = [&](int64_t p) MOEBIUS_INLINE_LAMBDA {
        const Vector<isa> low = load_vector<isa>(b + p * 2 * kWidth);
        const Vector<isa> high = load_vector<isa>(b + p * 2 * kWidth + kWidth);
        unroll<rows>([&](auto r) MOEBIUS_INLINE_LAMBDA {
            float x;
            if constexpr (panel) {
                x = group[0][p * kPanelRows<isa> + r];
            } else {
                x = group[r / 3][(r % 3) * row_stride + p];
            }
            const Vector<isa> wide = x - Vector<isa>{};
            sum[r][0] += wide * low;
            sum[r][1] += wide * high;
        });
    };
    const auto advance = [&](int64_t count) MOEBIUS_INLINE_LAMBDA {
        b += count * 2 * kWidth;
        unroll<kGroups>([&](auto g)
                            MOEBIUS_INLINE_LAMBDA { group[g] += count * (panel ? kPanelRows<isa> : 1); });
    };
    for (; k >= kUnroll; k -= kUnroll) {
        __builtin_prefetch(fetched, 0, 2);
        __builtin_prefetch(fetched_too, 0, 2);
        fetched += 64;
        fetched_too += 64;
        unroll<kUnroll>([&](auto p) MOEBIUS_INLINE_LAMBDA { step(p); });
        advance(kUnroll);
    }
    for (; k > 0; --k) {
        step(0);
        advance(1);
    }
    store_tile<isa, rows>(sum, c, c_stride, columns, accumulate);
}

// v[i][j] → v[j][i] by log2 rounds of interleaving the halves.
template <Isa isa, size_t... lane>
MOEBIUS_INLINE void interleave(Vector<isa> a, Vector<isa> b, Vector<isa>& low, Vector<isa>& high,
                               std::index_sequence<lane...>) {
    constexpr int kWidth = kVector<isa>;
    low = __builtin_shufflevector(a, b, (lane % 2 * kWidth + lane / 2)...);
    high = __builtin_shufflevector(a, b, (lane % 2 * kWidth + kWidth / 2 + lane / 2)...);
}
template <Isa isa>
MOEBIUS_INLINE void transpose(Vector<isa> (&v)[kVector<isa>]) {
    constexpr int kWidth = kVector<isa>;
    constexpr int kRounds = kWidth == 16 ? 4 : kWidth == 8 ? 3 : 2;
    unroll<kRounds>([&](auto) MOEBIUS_INLINE_LAMBDA {
        Vector<isa> next[kWidth];
        unroll<kWidth / 2>([&](auto i) MOEBIUS_INLINE_LAMBDA {
            interleave<isa>(v[i], v[i + kWidth / 2], next[2 * i], next[2 * i + 1],
                            std::make_index_sequence<kWidth>{});
        });
        unroll<kWidth>([&](auto i) MOEBIUS_INLINE_LAMBDA { v[i] = next[i]; });
    });
}

}  // namespace moebius::ops::cpu
