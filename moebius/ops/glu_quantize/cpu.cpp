// Strips of 128 rows of one expert: the activation, or the gradient of its argument, in a thread's own
// buffer, and from there to codes. Where the scale of the whole tensor has to be found first, twice.
#include "moebius/ops/glu_quantize/cpu.h"

#include <algorithm>

#include "moebius/ops/quantize/cpu_tiles.h"
#include "moebius/ops/swiglu/cpu_body.h"

namespace moebius::ops::cpu {
namespace {

struct Strip {
    const ExpertPart* part;
    int64_t row, rows;  // from the expert's first row

    int64_t first() const { return part->first + row; }
};

std::vector<Strip> strips_of(const std::vector<ExpertPart>& parts) {
    std::vector<Strip> strips;
    for (const ExpertPart& part : parts) {
        for (int64_t row = 0; row < part.rows; row += kQuantizedTile)
            strips.push_back({&part, row, std::min(kQuantizedTile, part.rows - row)});
    }
    return strips;
}

template <class T>
void load(Tile& tile, const T* strip, int64_t stride, const TilePlace& at) {
    tile.clear();
    for (int64_t i = 0; i < at.rows; ++i)
        for (int64_t j = 0; j < at.columns; ++j)
            tile.values[i][j] = to_float(strip[i * stride + at.column + j]);
}

// compute(strip, T* to, whether for the first time) fills (rows, matrix.columns).
template <class T, class F>
void quantize_strips(const MatrixShape& matrix, const View& split_sizes, const QuantizeTarget& target,
                     const Exec& exec, F&& compute) {
    const std::vector<ExpertPart> parts = expert_parts(matrix, split_sizes);
    const std::vector<Strip> strips = strips_of(parts);
    const auto threads = static_cast<size_t>(exec.threads->size());
    const int64_t columns = matrix.columns, strip_elements = kQuantizedTile * columns;
    const Scratch memory("glu_quantize.strips", threads * static_cast<size_t>(strip_elements) * sizeof(T),
                         exec);
    const Scratch buffers("glu_quantize.tiles", threads * sizeof(Tile), exec);
    const Scratch seen("glu_quantize.statistics", strips.size() * sizeof(QuantizeStatistics), exec);
    const auto of_strips = [&] { return seen.as<QuantizeStatistics>(); };
    std::vector<QuantizeStatistics> of_experts(static_cast<size_t>(matrix.experts));
    const auto add_up = [&] {
        of_experts.assign(of_experts.size(), {});
        for (size_t s = 0; s < strips.size(); ++s)
            of_experts[static_cast<size_t>(strips[s].part->expert)].add(of_strips()[s]);
    };
    const bool finds = finds_amax(target);
    std::vector<float> amax(static_cast<size_t>(matrix.experts));
    if (const View& known = target.rule.amax) std::copy_n(known.as<float>(), matrix.experts, amax.begin());
    if (finds) {
        exec.parallel(static_cast<int64_t>(strips.size()), [&](int64_t index, int thread) {
            const Strip& strip = strips[static_cast<size_t>(index)];
            T* values = memory.as<T>() + thread * strip_elements;
            compute(strip, values, true);
            QuantizeStatistics found;
            for (int64_t i = 0; i < strip.rows * columns; ++i)
                found.amax = larger(found.amax, to_float(values[i]));
            of_strips()[index] = found;
        });
        add_up();
        for (size_t e = 0; e < amax.size(); ++e) amax[e] = of_experts[e].amax;
    }
    const TileQuantizer quantizer(target, View(amax.data(), DType::F32, {matrix.experts}), matrix,
                                  DTypeOf<T>::value);
    exec.parallel(static_cast<int64_t>(strips.size()), [&](int64_t index, int thread) {
        const Strip& strip = strips[static_cast<size_t>(index)];
        T* values = memory.as<T>() + thread * strip_elements;
        compute(strip, values, !finds);
        Tile& tile = buffers.as<Tile>()[thread];
        QuantizeStatistics found;
        for (int64_t column = 0; column < columns; column += kQuantizedTile) {
            const TilePlace at{strip.part, strip.row, column, strip.rows,
                               std::min(kQuantizedTile, columns - column)};
            load(tile, values, columns, at);
            quantizer.write(tile, at, found);
        }
        of_strips()[index] = found;
    });
    add_up();
    quantizer.store(of_experts);
}

template <class T>
T* row_of(const View& view, int64_t row) {
    return view ? view.as<T>() + row * view.stride[0] : nullptr;
}

}  // namespace

void scaled_glu_quantize(const ScaledGluQuantizeArgs& a, const Exec& exec) {
    const MatrixShape matrix{a.x.size(0), a.x.size(1) / 2, a.split_sizes.size(0)};
    with_float_type(a.x.dtype, [&](auto type) {
        using T = decltype(type);
        quantize_strips<T>(matrix, a.split_sizes, a.activation, exec, [&](const Strip& strip, T* to, bool) {
            with_isa<GluForwardBody>(exec.device->isa(), a.options,
                                     GluForwardRows<T>{.rows = strip.rows,
                                                       .intermediate = matrix.columns,
                                                       .x = row_of<T>(a.x, strip.first()),
                                                       .x_stride = a.x.stride[0],
                                                       .scales = row_of<float>(a.scales, strip.first()),
                                                       .y = to,
                                                       .y_stride = matrix.columns});
        });
    });
}

void scaled_glu_backward_quantize(const ScaledGluBackwardQuantizeArgs& a, const Exec& exec) {
    if (a.activation.column) {
        scaled_glu_quantize({.options = a.options,
                             .x = a.x,
                             .scales = a.scales,
                             .split_sizes = a.split_sizes,
                             .activation = a.activation},
                            exec);
    }
    const MatrixShape matrix{a.x.size(0), a.x.size(1), a.split_sizes.size(0)};
    with_float_type(a.x.dtype, [&](auto type) {
        using T = decltype(type);
        quantize_strips<T>(matrix, a.split_sizes, a.dx, exec, [&](const Strip& strip, T* to, bool first) {
            const int64_t row = strip.first();
            with_isa<GluBackwardBody>(
                exec.device->isa(), a.options,
                GluBackwardRows<T>{.rows = strip.rows,
                                   .intermediate = a.dy.size(1),
                                   .x = row_of<T>(a.x, row),
                                   .x_stride = a.x.stride[0],
                                   .scales = row_of<float>(a.scales, row),
                                   .dy = row_of<T>(a.dy, row),
                                   .dy_stride = a.dy.stride[0],
                                   .dx = to,
                                   .dx_stride = matrix.columns,
                                   .dscales = first ? row_of<float>(a.dscales, row) : nullptr});
        });
    });
}

}  // namespace moebius::ops::cpu
