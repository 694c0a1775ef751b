// Products whose reduced dimension is the rows: weight gradients.
#include <algorithm>

#include "moebius/ops/cpu_math.h"
#include "moebius/ops/gemm/cpu_products.h"

namespace moebius::ops::cpu {
namespace {

// A tile of the result goes over its rows in blocks of kDepth, packs both operands' and adds their product
// up. Larger tiles pack less; the packed left block (kTileHeight × kDepth floats) stays in the second-level
// cache.
constexpr int64_t kTileHeight = 256, kTileWidth = 512;
// With fewer tiles than this, the slices of a tile are summed by several pieces.
constexpr int64_t kPieces = 16;

struct AddRowsBody {
    template <Isa>
    MOEBIUS_INLINE static void run(int64_t rows, int64_t n, const float* from, int64_t stride, float* to,
                                   int64_t to_stride, bool add) {
        for (int64_t i = 0; i < rows; ++i, from += stride, to += to_stride) {
            int64_t j = 0;
            for (; j + kLanes <= n; j += kLanes)
                store(to + j, add ? load(to + j) + load(from + j) : load(from + j));
            for (; j < n; ++j) to[j] = add ? to[j] + from[j] : from[j];
        }
    }
};

struct Tile {
    const DepthGroup* group;
    int64_t row, rows, column, columns;
};

// Sizes of tiles, and of a thread's scratch in floats.
struct Plan {
    Isa isa;
    int64_t height, width, stride;  // stride: of a tile of sums

    Plan(Isa isa, int64_t m, int64_t n)
        : isa(isa),
          height(even(m, kTileHeight, tile_rows(isa))),
          width(even(n, kTileWidth, tile_columns(isa))),
          stride(good_row_stride(width)) {}
    // The least multiple of `step` that covers `size` in as few parts as parts of `most` do.
    static int64_t even(int64_t size, int64_t most, int64_t step) {
        const int64_t parts = std::max<int64_t>(1, ceil_div(size, most));
        return round_up(ceil_div(std::max<int64_t>(size, 1), parts), step);
    }
    int64_t left() const { return packed_left_floats(isa, true, height, kDepth); }
    int64_t right() const { return packed_right_floats(isa, kDepth, width); }
    int64_t tile() const { return height * stride; }
    int64_t packed() const { return round_up(left() + right(), 16); }
    int64_t per_thread() const { return packed() + 2 * tile(); }
};

std::vector<Tile> tiles_of(const DepthProducts& p, const Plan& plan) {
    std::vector<Tile> tiles;
    for (const DepthGroup& group : p.groups) {
        for (int64_t i = 0; i < p.m; i += plan.height) {
            for (int64_t j = 0; j < p.n; j += plan.width)
                tiles.push_back(
                    {&group, i, std::min(plan.height, p.m - i), j, std::min(plan.width, p.n - j)});
        }
    }
    return tiles;
}

int64_t slices_of(const DepthGroup& group) {
    return ceil_div(group.rows, kSliceRows);
}

// sums = the product over one slice of the group's rows.
void sum_slice(const Plan& plan, const Tile& tile, int64_t slice, float* scratch, float* sums,
               int64_t stride) {
    const Isa isa = plan.isa;
    const int64_t begin = slice * kSliceRows, end = std::min(begin + kSliceRows, tile.group->rows);
    float* right = scratch + plan.left();
    for (int64_t row = begin; row < end; row += kDepth) {
        const int64_t depth = std::min(kDepth, end - row);
        const Left a{scratch, 0, panel_rows(isa) * depth};
        const Right b{right, tile_columns(isa) * depth};
        pack_left_panels(isa, tile.rows, depth, tile.group->a.at(row, tile.row), scratch, a.panel_stride);
        pack_right_panels(isa, false, depth, tile.columns, tile.group->b.at(row, tile.column), right,
                          b.panel_stride);
        const int64_t next = row + depth, next_rows = std::min(kDepth, tile.group->rows - next);
        Ahead ahead;
        if (next_rows > 0) {
            add_ahead(ahead, tile.group->a.at(next, tile.row), next_rows, tile.rows);
            add_ahead(ahead, tile.group->b.at(next, tile.column), next_rows, tile.columns);
        }
        multiply(isa, tile.rows, tile.columns, depth, a, b, sums, stride, row > begin, &ahead);
    }
}

void add_rows(Isa isa, int64_t rows, int64_t n, const float* from, int64_t stride, const Matrix& to,
              bool add) {
    with_isa<AddRowsBody>(isa, rows, n, from, stride, static_cast<float*>(to.data), to.stride, add);
}

// All slices of a tile, in order.
void sum_tile(const Plan& plan, const Tile& tile, float* scratch) {
    const DepthGroup& group = *tile.group;
    const Matrix out = group.out.at(tile.row, tile.column);
    float* part = scratch + plan.packed();
    // Results that are not f32 are summed apart and rounded once.
    const bool rounded = out.dtype != DType::F32;
    const Matrix total = rounded ? Matrix(part + plan.tile(), DType::F32, plan.stride) : out;
    auto* sums = static_cast<float*>(total.data);
    bool holds = group.accumulate;  // whether `total` is to be added to
    if (rounded && holds) {
        with_float_type(out.dtype, [&](auto type) {
            using T = decltype(type);
            widen_rows(plan.isa, tile.rows, tile.columns, static_cast<const T*>(out.data), out.stride, sums,
                       total.stride);
        });
    }
    if (group.rows == 0) {
        if (holds) return;
        for (int64_t i = 0; i < tile.rows; ++i) std::fill_n(sums + i * total.stride, tile.columns, 0.0f);
    }
    for (int64_t slice = 0; slice < slices_of(group); ++slice, holds = true) {
        if (holds) {
            sum_slice(plan, tile, slice, scratch, part, plan.stride);
            add_rows(plan.isa, tile.rows, tile.columns, part, plan.stride, total, true);
        } else {
            sum_slice(plan, tile, slice, scratch, sums, total.stride);
        }
    }
    if (rounded) finish_rows(plan.isa, tile.rows, tile.columns, sums, total.stride, out);
}

// Few tiles: a round sums some slices of each on all threads, then adds them in order.
void sum_by_slices(const Plan& plan, const std::vector<Tile>& tiles, float* scratch, const Exec& exec) {
    const auto count = static_cast<int64_t>(tiles.size());
    const int64_t at_once = ceil_div(2 * kPieces, count);
    int64_t most = 0;
    for (const Tile& tile : tiles) most = std::max(most, slices_of(*tile.group));
    const int64_t room = count * std::min(at_once, most) * plan.tile();
    const Scratch parts("gemm.gradient_parts", scratch_bytes(room), exec);
    const int64_t strips = ceil_div(plan.height, 64);  // pieces of a tile when slices are added
    for (int64_t first = 0; first < most; first += at_once) {
        struct Part {
            const Tile* tile;
            int64_t slice;
            float* sums;
        };
        std::vector<Part> round;
        for (int64_t t = 0; t < count; ++t) {
            const Tile& tile = tiles[static_cast<size_t>(t)];
            for (int64_t s = first; s < std::min(first + at_once, slices_of(*tile.group)); ++s)
                round.push_back(
                    {&tile, s, parts.as<float>() + static_cast<int64_t>(round.size()) * plan.tile()});
        }
        exec.parallel(static_cast<int64_t>(round.size()), [&](int64_t piece, int thread) {
            const Part& part = round[static_cast<size_t>(piece)];
            sum_slice(plan, *part.tile, part.slice, scratch + thread * plan.per_thread(), part.sums,
                      plan.stride);
        });
        exec.parallel(count * strips, [&](int64_t piece, int) {
            const Tile* tile = &tiles[static_cast<size_t>(piece / strips)];
            const int64_t row = piece % strips * 64, rows = std::min<int64_t>(64, tile->rows - row);
            if (rows <= 0) return;
            const Matrix out = tile->group->out.at(tile->row + row, tile->column);
            for (const Part& part : round) {
                if (part.tile != tile) continue;
                add_rows(plan.isa, rows, tile->columns, part.sums + row * plan.stride, plan.stride, out,
                         tile->group->accumulate || part.slice > 0);
            }
        });
    }
}

}  // namespace

void run_products(const DepthProducts& p, const Exec& exec) {
    const Plan plan(exec.device->isa(), p.m, p.n);
    const std::vector<Tile> tiles = tiles_of(p, plan);
    if (tiles.empty()) return;
    const Scratch scratch("gemm.depth", scratch_bytes(plan.per_thread() * exec.threads->size()), exec);
    // Tiles that are few, tall and f32 go by slices, the others whole.
    std::vector<Tile> whole, sliced;
    for (const Tile& tile : tiles) {
        const bool few = static_cast<int64_t>(tiles.size()) < kPieces;
        const bool split = few && slices_of(*tile.group) > 1 && tile.group->out.dtype == DType::F32;
        (split ? sliced : whole).push_back(tile);
    }
    if (!sliced.empty()) sum_by_slices(plan, sliced, scratch.as<float>(), exec);
    exec.parallel(static_cast<int64_t>(whole.size()), [&](int64_t piece, int thread) {
        sum_tile(plan, whole[static_cast<size_t>(piece)], scratch.as<float>() + thread * plan.per_thread());
    });
}

}  // namespace moebius::ops::cpu
