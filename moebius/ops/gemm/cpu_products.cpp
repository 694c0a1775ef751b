#include "moebius/ops/gemm/cpu_products.h"

#include <algorithm>

#include "moebius/ops/cpu_math.h"

namespace moebius::ops::cpu {
namespace {

// A product is cut into at least this many pieces where its shape allows.
constexpr int64_t kPieces = 32;
// Columns of the result that a piece works on at a time, so that its sums stay in the second-level cache.
constexpr int64_t kColumnBlock = 512;

struct FinishBody {
    template <Isa, class Out, class Bias>
    MOEBIUS_INLINE static void run(int64_t rows, int64_t n, const float* sums, int64_t stride, Out* out,
                                   int64_t out_stride, const Bias* bias, const float* scale) {
        for (int64_t i = 0; i < rows; ++i, sums += stride, out += out_stride) {
            const float factor = scale ? scale[i] : 1.0f;
            int64_t j = 0;
            for (; j + kLanes <= n; j += kLanes) {
                F16 value = load(sums + j);
                if (bias) value += load(bias + j) * factor;
                store(out + j, value);
            }
            if (j < n) {
                F16 value = load_partial(sums + j, n - j);
                if (bias) value += load_partial(bias + j, n - j) * factor;
                store_partial(out + j, value, n - j);
            }
        }
    }
};

// Columns [column, column + columns) of one group's weight, packed.
struct WeightUnit {
    const RowGroup* group;
    int64_t column, columns;
    int64_t offset;  // in the wave's scratch, floats
};

int64_t weight_columns(Isa isa, int64_t n, int64_t k) {
    const int64_t width = tile_columns(isa);
    const int64_t most = kPackedBudget / std::max<int64_t>(k, 1) / width * width;
    return std::clamp(most, std::min(width, n), n);
}

// One block of rows times columns [column, column + columns) of a packed unit.
void row_block(const RowProducts& p, const WeightUnit& unit, Right right, int64_t row, int64_t rows,
               int64_t column, int64_t columns, Isa isa, float* left_scratch, float* sum_scratch,
               Ahead& ahead) {
    const int64_t at = unit.group->first + row;
    const Left left = pack_left(isa, rows, p.k, p.a.at(at, 0), left_scratch);
    const bool direct = p.out.dtype == DType::F32 && unit.group->bias == nullptr;
    for (int64_t j = column; j < column + columns; j += kColumnBlock) {
        const int64_t count = std::min(kColumnBlock, column + columns - j);
        const Matrix out = p.out.at(at, unit.column + j);
        float* sums = direct ? static_cast<float*>(out.data) : sum_scratch;
        const int64_t stride = direct ? out.stride : good_row_stride(std::min(kColumnBlock, p.n));
        if (!direct && p.accumulate) {
            with_float_type(out.dtype, [&](auto type) {
                using T = decltype(type);
                widen_rows(isa, rows, count, static_cast<const T*>(out.data), out.stride, sums, stride);
            });
        }
        multiply(isa, rows, count, p.k, left, right_at(isa, right, 0, j), sums, stride, p.accumulate, &ahead);
        if (direct) continue;
        const void* bias = unit.group->bias ? static_cast<const char*>(unit.group->bias) +
                                                  (unit.column + j) * (bits(p.bias_dtype) / 8)
                                            : nullptr;
        finish_rows(isa, rows, count, sums, stride, out, bias, p.bias_dtype,
                    p.bias_scale ? p.bias_scale + at : nullptr);
    }
}

// All rows of the units' groups, whose weights lie packed.
void multiply_rows(const RowProducts& p, const std::vector<WeightUnit>& units, const float* packed,
                   float* scratch, int64_t scratch_stride, const Exec& exec) {
    const Isa isa = exec.device->isa();
    const int64_t height = block_rows(isa);
    int64_t blocks = 0;
    for (const WeightUnit& unit : units) blocks += ceil_div(unit.group->rows, height);
    // Few blocks of rows: columns are cut too, in multiples of a few panels.
    const int64_t cuts = std::max<int64_t>(1, kPieces / std::max<int64_t>(blocks, 1));
    const int64_t width = std::max(round_up(ceil_div(units.front().columns, cuts), tile_columns(isa)),
                                   std::max<int64_t>(tile_columns(isa), 128));
    std::vector<int64_t> ends;
    for (const WeightUnit& unit : units) {
        const int64_t pieces = ceil_div(unit.group->rows, height) * ceil_div(unit.columns, width);
        ends.push_back((ends.empty() ? 0 : ends.back()) + pieces);
    }
    exec.parallel(ends.back(), [&](int64_t piece, int thread) {
        int64_t local = 0;
        const WeightUnit& unit = units[find_item(ends, piece, local)];
        const int64_t across = ceil_div(unit.columns, width);
        const int64_t row = local / across * height, column = local % across * width;
        float* left = scratch + thread * scratch_stride;
        float* sums = left + packed_left_floats(isa, false, height, p.k);
        // Rows that this thread will probably take next.
        const int64_t later = row + height * exec.threads->size();
        Ahead ahead;
        if (later < unit.group->rows) {
            add_ahead(ahead, p.a.at(unit.group->first + later, 0), std::min(height, unit.group->rows - later),
                      p.k);
        }
        row_block(p, unit, {packed + unit.offset, tile_columns(isa) * p.k}, row,
                  std::min(height, unit.group->rows - row), column, std::min(width, unit.columns - column),
                  isa, left, sums, ahead);
    });
}

}  // namespace

Matrix Matrix::at(int64_t row, int64_t column) const {
    const int64_t bytes = bits(dtype) / 8;
    return {static_cast<char*>(data) + (row * stride + column) * bytes, dtype, stride};
}

size_t scratch_bytes(int64_t floats) {
    return std::max(static_cast<size_t>(floats) * sizeof(float), size_t{2} << 20);
}

size_t find_item(const std::vector<int64_t>& ends, int64_t piece, int64_t& local) {
    const auto found = std::upper_bound(ends.begin(), ends.end(), piece);
    local = found == ends.begin() ? piece : piece - *(found - 1);
    return static_cast<size_t>(found - ends.begin());
}

Left pack_left(Isa isa, int64_t m, int64_t k, const Matrix& a, float* packed) {
    Left left;
    with_float_type(a.dtype, [&](auto type) {
        using T = decltype(type);
        left = pack_left(isa, false, m, k, static_cast<const T*>(a.data), a.stride, packed);
    });
    return left;
}
void pack_left_panels(Isa isa, int64_t m, int64_t k, const Matrix& a, float* packed, int64_t panel_stride) {
    with_float_type(a.dtype, [&](auto type) {
        using T = decltype(type);
        pack_left_panels(isa, m, k, static_cast<const T*>(a.data), a.stride, packed, panel_stride);
    });
}
void pack_right_panels(Isa isa, bool transposed, int64_t k, int64_t n, const Matrix& b, float* packed,
                       int64_t panel_stride) {
    with_float_type(b.dtype, [&](auto type) {
        using T = decltype(type);
        pack_right_panels(isa, transposed, k, n, static_cast<const T*>(b.data), b.stride, packed,
                          panel_stride);
    });
}

void pack_weights(const std::vector<WeightPacking>& weights, const Exec& exec) {
    const Isa isa = exec.device->isa();
    const int64_t step = std::max<int64_t>(tile_columns(isa), 64);
    std::vector<int64_t> ends;
    for (const WeightPacking& w : weights)
        ends.push_back((ends.empty() ? 0 : ends.back()) + ceil_div(w.n, step));
    if (ends.empty()) return;
    exec.parallel(ends.back(), [&](int64_t piece, int) {
        int64_t local = 0;
        const WeightPacking& w = weights[find_item(ends, piece, local)];
        const int64_t column = local * step;
        const Right to = right_at(isa, w.right(isa), 0, column);
        pack_right_panels(isa, w.transposed, w.k, std::min(step, w.n - column),
                          w.transposed ? w.weight.at(column, 0) : w.weight.at(0, column),
                          const_cast<float*>(to.data), to.panel_stride);
    });
}

void multiply_wide(Isa isa, int64_t m, int64_t n, int64_t k, Left left, Right right, float* c,
                   int64_t c_stride, bool accumulate, Ahead* ahead) {
    for (int64_t j = 0; j < n; j += kColumnBlock) {
        multiply(isa, m, std::min(kColumnBlock, n - j), k, left, right_at(isa, right, 0, j), c + j, c_stride,
                 accumulate, ahead);
    }
}

void add_ahead(Ahead& ahead, const Matrix& a, int64_t rows, int64_t columns) {
    if (columns * 5 >= a.stride * 4) ahead.add(a.data, rows * a.stride * (bits(a.dtype) / 8));
}

void finish_rows(Isa isa, int64_t rows, int64_t n, const float* sums, int64_t stride, const Matrix& out,
                 const void* bias, DType bias_dtype, const float* scale) {
    with_float_type(out.dtype, [&](auto out_type) {
        with_float_type(bias_dtype, [&](auto bias_type) {
            using Out = decltype(out_type);
            using Bias = decltype(bias_type);
            with_isa<FinishBody>(isa, rows, n, sums, stride, static_cast<Out*>(out.data), out.stride,
                                 static_cast<const Bias*>(bias), scale);
        });
    });
}

void run_products(const RowProducts& p, const Exec& exec) {
    const Isa isa = exec.device->isa();
    const int64_t columns = weight_columns(isa, p.n, p.k);
    std::vector<WeightUnit> todo;
    int64_t total = 0;
    for (const RowGroup& group : p.groups) {
        if (group.rows == 0) continue;
        for (int64_t j = 0; j < p.n; j += columns) {
            const int64_t count = std::min(columns, p.n - j);
            todo.push_back({&group, j, count, 0});
            total += packed_right_floats(isa, p.k, count);
        }
    }
    if (todo.empty()) return;
    const int64_t largest = packed_right_floats(isa, p.k, columns);
    const int64_t room = std::min(total, std::max(kPackedBudget, largest));
    const Scratch packed("gemm.packed_weights", scratch_bytes(room), exec);
    const int64_t left = packed_left_floats(isa, false, block_rows(isa), p.k);
    const int64_t sums = block_rows(isa) * good_row_stride(std::min(kColumnBlock, p.n));
    const int64_t per_thread = round_up(left + sums, 16);
    const Scratch scratch("gemm.rows", scratch_bytes(per_thread * exec.threads->size()), exec);
    for (size_t next = 0; next < todo.size();) {
        std::vector<WeightUnit> wave;
        int64_t used = 0;
        while (next < todo.size()) {
            const int64_t size = packed_right_floats(isa, p.k, todo[next].columns);
            if (!wave.empty() && used + size > room) break;
            wave.push_back(todo[next++]);
            wave.back().offset = used;
            used += size;
        }
        std::vector<WeightPacking> weights;
        for (const WeightUnit& unit : wave) {
            const Matrix& weight = unit.group->weight;
            weights.push_back({p.transposed ? weight.at(unit.column, 0) : weight.at(0, unit.column),
                               p.transposed, p.k, unit.columns, packed.as<float>() + unit.offset});
        }
        pack_weights(weights, exec);
        multiply_rows(p, wave, packed.as<float>(), scratch.as<float>(), per_thread, exec);
    }
}

}  // namespace moebius::ops::cpu
