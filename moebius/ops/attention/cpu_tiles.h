// What attention's forward and backward share: the band of visible keys, tiles of scores with queries in the
// vector lanes, and loads of rows as fp32. Included by attention's cpu files alone.
//
// A tile holds scores transposed, (keys, queries): the softmax of a query then runs down a lane, without sums
// across a vector. What belongs to queries and is summed over keys (the output, dq) stays transposed as well,
// (head_dim, queries): a tile is then a right operand as it lies.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "moebius/base/checked.h"
#include "moebius/ops/attention/attention.h"
#include "moebius/ops/cpu_math.h"
#include "moebius/ops/gemm/cpu_kernel.h"

namespace moebius::ops::cpu {

// Queries of a tile: a multiple of tile_columns.
inline constexpr int64_t kQueries = 96;
// Below every score, and finite, so that its difference to itself is 0 and not NaN.
inline constexpr float kLowest = -3e38f;

// Keys of a tile: whole register tiles.
inline int64_t keys_of_tile(Isa isa) {
    return round_up(96, tile_rows(isa));
}

// For a lambda in a body: without it, GCC may leave the lambda out of line, compiled for the baseline.
#define MOEBIUS_ATTENTION_LAMBDA __attribute__((always_inline))

// A half-open range.
struct Range {
    int64_t begin = 0, end = 0;
    bool empty() const { return begin >= end; }
    int64_t size() const { return end - begin; }
};
MOEBIUS_INLINE Range intersection(Range a, Range b) {
    return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// Which keys a query sees: the last `window` up to its own. All positions count from the sequence's start.
struct Band {
    int64_t window;
    // Keys that any of the queries sees, and that each of them sees.
    Range keys_of(Range queries) const {
        return {std::max<int64_t>(0, queries.begin - window + 1), queries.end};
    }
    Range keys_common_to(Range queries) const {
        return {std::max<int64_t>(0, queries.end - window), queries.begin + 1};
    }
    // Queries that see any of the keys.
    Range queries_of(Range keys) const { return {keys.begin, keys.end + window - 1}; }
    // Each query sees each key.
    bool dense(Range queries, Range keys) const {
        const Range common = keys_common_to(queries);
        return common.begin <= keys.begin && keys.end <= common.end;
    }
};
inline Band band_of(const AttentionShape& shape, int64_t length) {
    return {shape.window > 0 ? std::min(shape.window, length) : length};
}

// The sequences that hold any token.
struct Sequence {
    int64_t begin, length;
};
std::vector<Sequence> sequences_of(const AttentionShape& shape, int64_t tokens);

// Pointer to a token's head.
template <class T>
T* head_at(const View& view, int64_t token, int64_t head) {
    return view.as<T>() + token * view.stride[0] + head * view.stride[1];
}

// Rows of a (tokens, head) slice as fp32 times `factor`; rows from `count` to `padded` are zero.
struct LoadRowsBody {
    template <Isa, class T>
    MOEBIUS_INLINE static void run(const T* from, int64_t from_stride, float* to, int64_t to_stride,
                                   int64_t count, int64_t padded, int64_t width, float factor) {
        for (int64_t row = 0; row < count; ++row) {
            const T* source = from + row * from_stride;
            for (int64_t j = 0; j < width; j += kLanes) {
                const int64_t some = std::min(kLanes, width - j);
                store(to + row * to_stride + j, load_some(source + j, some) * factor);
            }
        }
        for (int64_t row = count; row < padded; ++row) {
            for (int64_t j = 0; j < width; j += kLanes) store(to + row * to_stride + j, F16{});
        }
    }
};

// A scale of scores as two factors: queries times a power of two are exact, so that products of bf16 are too,
// and a factor from 1 to 2 is left for the sums.
struct SplitScale {
    float power, rest;

    explicit SplitScale(float scale) {
        int exponent = 0;
        rest = 2 * std::frexp(scale, &exponent);
        power = std::ldexp(1.0f, exponent - 1);
    }
};

// The way back: rows of scratch times factors[row · step], to dtype T.
struct StoreRowsBody {
    template <Isa, class T>
    MOEBIUS_INLINE static void run(const float* from, int64_t from_stride, T* to, int64_t to_stride,
                                   int64_t count, int64_t width, const float* factors, int64_t step) {
        for (int64_t row = 0; row < count; ++row) {
            for (int64_t j = 0; j < width; j += kLanes) {
                const int64_t some = std::min(kLanes, width - j);
                store_some(to + row * to_stride + j, load(from + row * from_stride + j) * factors[row * step],
                           some);
            }
        }
    }
};

// e^x for x ≤ 0 or just above (a score less its maximum or its log-sum): without the general function's care
// for overflow, and NaN may be lost. Below e^−87 it stays there.
MOEBIUS_INLINE F16 exp_below_one(F16 x) {
    const F16 kShift = broadcast(0x1.8p23f);
    x = maximum(x, broadcast(-87.0f));
    const F16 scaled = x * 1.44269504f + kShift;
    const F16 n = scaled - kShift;
    const F16 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    F16 p = broadcast(1.0f / 5040.0f);
    p = p * r + (1.0f / 720.0f);
    p = p * r + (1.0f / 120.0f);
    p = p * r + (1.0f / 24.0f);
    p = p * r + (1.0f / 6.0f);
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * reinterpret_cast<F16>((reinterpret_cast<I16>(scaled) - (0x4B400000 - 127)) << 23);
}

// Lanes of queries [query, query + 16) that see `key`.
MOEBIUS_INLINE I16 visible(int64_t query, int64_t key, int64_t window) {
    const I16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const auto distance = static_cast<int32_t>(query - key);
    const I16 back = lane + distance;
    return ~(back >> 31) & ((back - static_cast<int32_t>(window)) >> 31);
}

// Panels of tile_columns queries, as a right operand has them: where the scores of queries lie, sixteen lanes
// from `lanes` on, for row 0 of `rows`. Of the baseline's narrower panels, two make the lanes.
template <Isa isa>
inline constexpr int64_t kPanel = isa == Isa::Avx512 ? 32
                                  : isa == Isa::Avx2 ? 16
                                                     : 8;
template <Isa isa>
MOEBIUS_INLINE int64_t panel_offset(int64_t lanes, int64_t rows) {
    return lanes / kPanel<isa> * rows * kPanel<isa> + lanes % kPanel<isa>;
}
template <Isa isa>
MOEBIUS_INLINE F16 load_panel(const float* at, int64_t rows) {
    if constexpr (kPanel<isa> >= kLanes) {
        return load(at);
    } else {
        float lanes[kLanes];
        std::memcpy(lanes, at, sizeof lanes / 2);
        std::memcpy(lanes + kLanes / 2, at + rows * kPanel<isa>, sizeof lanes / 2);
        return load(lanes);
    }
}
template <Isa isa>
MOEBIUS_INLINE void store_panel(float* at, int64_t rows, F16 value) {
    if constexpr (kPanel<isa> >= kLanes) {
        store(at, value);
    } else {
        float lanes[kLanes];
        store(lanes, value);
        std::memcpy(at, lanes, sizeof lanes / 2);
        std::memcpy(at + rows * kPanel<isa>, lanes + kLanes / 2, sizeof lanes / 2);
    }
}

// Calls whole(key) for the keys that all of sixteen queries see and part(key) for those that some see, in
// ascending order of three stretches; returns the range of both.
template <class Part, class Whole>
MOEBIUS_INLINE Range each_key(Band band, Range queries, Range keys, Part&& part, Whole&& whole) {
    const Range any = intersection(band.keys_of(queries), keys);
    Range common = intersection(band.keys_common_to(queries), any);
    if (common.empty()) common = {any.end, any.end};
    for (int64_t key = any.begin; key < common.begin; ++key) part(key);
    for (int64_t key = common.begin; key < common.end; ++key) whole(key);
    for (int64_t key = common.end; key < any.end; ++key) part(key);
    return any;
}

// A matrix in scratch.
struct Rows {
    float* data;
    int64_t stride;
};

// Scores of one tile = rows · packed, strip by strip, only where a strip's queries see keys. `rows`: the
// tile's keys, `depth` wide; `packed`: its queries. A strip is a panel of tile_columns queries: its scores
// begin `strip_stride` floats after the previous strip's, and `scores.stride` lies between its keys.
inline void tile_scores(Isa isa, Band band, Range queries, Range keys, Left rows, Right packed, int64_t depth,
                        Rows scores, int64_t strip_stride) {
    const int64_t columns = tile_columns(isa);
    for (int64_t strip = 0; strip * columns < queries.size(); ++strip) {
        const int64_t first = queries.begin + strip * columns;
        const Range seen = intersection(band.keys_of({first, std::min(first + columns, queries.end)}), keys);
        if (seen.empty()) continue;
        const int64_t row = seen.begin - keys.begin;
        multiply(isa, seen.size(), columns, depth, left_at(isa, rows, row, 0),
                 right_at(isa, packed, 0, strip * columns),
                 scores.data + strip * strip_stride + row * scores.stride, scores.stride, false);
    }
}

// out (width, kQueries) += left (width, keys) · tile (keys, queries), only over keys that panels of queries
// see.
inline void add_transposed(Isa isa, Band band, Range queries, Range keys, Left left, Right tile,
                           int64_t width, float* out) {
    const int64_t columns = tile_columns(isa);
    if (band.dense(queries, keys)) {
        multiply(isa, width, round_up(queries.size(), columns), keys.size(), left, tile, out, kQueries, true);
        return;
    }
    for (int64_t column = 0; column < queries.size(); column += columns) {
        const Range some{queries.begin + column, std::min(queries.begin + column + columns, queries.end)};
        const Range seen = intersection(band.keys_of(some), keys);
        if (seen.empty()) continue;
        const int64_t first = seen.begin - keys.begin;
        multiply(isa, width, columns, seen.size(), left_at(isa, left, 0, first),
                 right_at(isa, tile, first, column), out + column, kQueries, true);
    }
}

// out (keys, columns) += tile (keys, queries) · right (queries, columns), only over queries that see register
// tiles of keys.
inline void add_plain(Isa isa, Band band, Range queries, Range keys, const float* tile, Right right,
                      int64_t columns, Rows out) {
    const Left left{tile, kQueries};
    if (band.dense(queries, keys)) {
        multiply(isa, keys.size(), columns, queries.size(), left, right, out.data, out.stride, true);
        return;
    }
    const int64_t step = tile_rows(isa);
    for (int64_t row = 0; row < keys.size(); row += step) {
        const Range some{keys.begin + row, std::min(keys.begin + row + step, keys.end)};
        const Range seen = intersection(band.queries_of(some), queries);
        if (seen.empty()) continue;
        const int64_t first = seen.begin - queries.begin;
        multiply(isa, some.size(), columns, seen.size(), left_at(isa, left, row, first),
                 right_at(isa, right, first, 0), out.data + row * out.stride, out.stride, true);
    }
}

// Rows of T from their transpose (width, kQueries), times factors[row · step]. `scratch` holds
// transposed_floats.
inline int64_t transposed_floats(Isa isa, int64_t width) {
    return packed_right_floats(isa, kQueries, width) + kLanes;
}
template <class T>
void store_transposed(Isa isa, const float* from, float* scratch, int64_t count, int64_t width, T* to,
                      int64_t to_stride, const float* factors, int64_t step) {
    const int64_t columns = tile_columns(isa);
    const Right panels = pack_right(isa, true, count, width, from, kQueries, scratch);
    for (int64_t column = 0; column < width; column += columns) {
        with_isa<StoreRowsBody>(isa, right_at(isa, panels, 0, column).data, columns, to + column, to_stride,
                                count, std::min(columns, width - column), factors, step);
    }
}

// Cuts one thread's scratch into aligned buffers.
class Carver {
  public:
    explicit Carver(float* base) : next_(base) {}
    float* take(int64_t floats) {
        float* const taken = next_;
        used_ += round_up(floats, kLanes);
        if (next_) next_ += round_up(floats, kLanes);
        return taken;
    }
    int64_t used() const { return used_; }

  private:
    float* next_;
    int64_t used_ = 0;
};

}  // namespace moebius::ops::cpu
