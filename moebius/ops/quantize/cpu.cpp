#include "moebius/ops/quantize/cpu.h"

#include <algorithm>

#include "moebius/ops/cpu_math.h"
#include "moebius/ops/quantize/cpu_tiles.h"

namespace moebius::ops::cpu {
namespace {

constexpr int64_t kTile = kQuantizedTile;

// Where row `row` of all that are quantized lies in `values`.
int64_t source_row(const QuantizeSource& s, int64_t row) {
    if (!s.row_index) return row;
    const int64_t index = s.row_index.as<int32_t>()[row], from = index / s.topk;
    MOEBIUS_CHECK(index >= 0 && from < s.values.size(0), "row ", row, " is taken from row ", from, " of ",
                  s.values.size(0));
    return from;
}

void load(Tile& tile, const QuantizeSource& s, const TilePlace& at) {
    tile.clear();
    float weight[kTile];
    if (s.norm_weight) {
        with_float_type(s.norm_weight.dtype, [&](auto type) {
            const auto* from = s.norm_weight.as<decltype(type)>() + at.column;
            std::transform(from, from + at.columns, weight, [](auto w) { return to_float(w); });
        });
    }
    const int64_t stride = s.values.stride[static_cast<size_t>(s.values.rank() - 2)];
    with_float_type(s.values.dtype, [&](auto type) {
        using T = decltype(type);
        for (int64_t i = 0; i < at.rows; ++i) {
            const int64_t row = source_row(s, at.part->first + at.row + i);
            const T* from = static_cast<const T*>(s.values.data) + row * stride + at.column;
            for (int64_t j = 0; j < at.columns; ++j) tile.values[i][j] = to_float(from[j]);
            if (!s.norm_weight) continue;
            const float rstd = s.rstd.as<float>()[row];
            for (int64_t j = 0; j < at.columns; ++j) {
                T normalised;
                store_as(&normalised, tile.values[i][j] * rstd * weight[j]);
                tile.values[i][j] = to_float(normalised);
            }
        }
    });
}

}  // namespace

void quantize(const QuantizeArgs& args, const Exec& exec) {
    const MatrixShape matrix = matrix_of(args.source);
    const std::vector<ExpertPart> parts = expert_parts(matrix, args.source.split_sizes);
    const std::vector<TilePlace> tiles = tiles_of(parts, matrix.columns);
    const TileQuantizer quantizer(target_of(args), args.amax, matrix, args.source.values.dtype);
    const Scratch of_tiles("quantize.statistics", tiles.size() * sizeof(QuantizeStatistics), exec);
    const Scratch buffers("quantize.tiles", static_cast<size_t>(exec.threads->size()) * sizeof(Tile), exec);
    exec.parallel(static_cast<int64_t>(tiles.size()), [&](int64_t index, int thread) {
        Tile& tile = buffers.as<Tile>()[thread];
        const TilePlace& at = tiles[static_cast<size_t>(index)];
        load(tile, args.source, at);
        QuantizeStatistics seen;
        quantizer.write(tile, at, seen);
        of_tiles.as<QuantizeStatistics>()[index] = seen;
    });
    std::vector<QuantizeStatistics> of_experts(static_cast<size_t>(matrix.experts));
    for (size_t t = 0; t < tiles.size(); ++t)
        of_experts[static_cast<size_t>(tiles[t].part->expert)].add(of_tiles.as<QuantizeStatistics>()[t]);
    quantizer.store(of_experts);
}

void tensor_amax(const TensorAmaxArgs& args, const Exec& exec) {
    const MatrixShape matrix = matrix_of(args.source);
    const std::vector<ExpertPart> parts = expert_parts(matrix, args.source.split_sizes);
    const std::vector<TilePlace> tiles = tiles_of(parts, matrix.columns);
    const Scratch of_tiles("tensor_amax.tiles", tiles.size() * sizeof(float), exec);
    const Scratch buffers("tensor_amax.values", static_cast<size_t>(exec.threads->size()) * sizeof(Tile),
                          exec);
    exec.parallel(static_cast<int64_t>(tiles.size()), [&](int64_t index, int thread) {
        Tile& tile = buffers.as<Tile>()[thread];
        load(tile, args.source, tiles[static_cast<size_t>(index)]);
        of_tiles.as<float>()[index] = tile.amax();
    });
    auto* amax = args.amax.as<float>();
    std::fill_n(amax, matrix.experts, 0.0f);
    for (size_t t = 0; t < tiles.size(); ++t) {
        float& most = amax[tiles[t].part->expert];
        most = larger(most, of_tiles.as<float>()[t]);
    }
}

void dequantize(const DequantizeArgs& args, const Exec& exec) {
    const MatrixShape matrix = matrix_of({.values = args.out, .split_sizes = args.split_sizes});
    const std::vector<ExpertPart> parts = expert_parts(matrix, args.split_sizes);
    const std::vector<TilePlace> tiles = tiles_of(parts, matrix.columns);
    const Operand& from = args.from;
    const auto* codes = static_cast<const uint8_t*>(from.data.data);
    const bool mx = from.format.scale == ScaleKind::MX32, e5m2 = from.format.element == DType::F8E5M2;
    exec.parallel(static_cast<int64_t>(tiles.size()), [&](int64_t index, int) {
        const TilePlace& at = tiles[static_cast<size_t>(index)];
        const OperandPart places(from, matrix, *at.part);
        with_float_type(args.out.dtype, [&](auto type) {
            auto* out = args.out.as<decltype(type)>();
            for (int64_t i = at.row; i < at.row + at.rows; ++i) {
                for (int64_t j = at.column; j < at.column + at.columns; ++j) {
                    const uint8_t code = codes[places.data(i, j)];
                    const int64_t place = places.scale(i, j);
                    const float value = e5m2 ? to_float(F8E5M2{code}) : to_float(F8E4M3{code});
                    const float factor =
                        mx ? to_float(from.scale.as<F8E8M0>()[place]) : from.scale.as<float>()[place];
                    store_as(out + (at.part->first + i) * matrix.columns + j, value * factor);
                }
            }
        });
    });
}

}  // namespace moebius::ops::cpu
