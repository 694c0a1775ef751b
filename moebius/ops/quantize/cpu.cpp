// Tiles of 128 × 128 inside an expert's rows, each on its own: every block of every format lies within one.
#include "moebius/ops/quantize/cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "moebius/base/error.h"
#include "moebius/base/float8.h"
#include "moebius/ops/cpu_math.h"
#include "moebius/tensor/operand_part.h"

namespace moebius::ops::cpu {
namespace {

constexpr int64_t kTile = 128, kMxBlock = 32;

// The rules of scales: what a block's amax makes of them.
struct Rule {
    float largest, reciprocal;  // of the element type, and 1 / largest rounded
    float epsilon, overflow;
    bool power_of_two, e5m2;

    float scale(float amax) const {
        if (amax < epsilon) amax = epsilon;
        if (!(amax > 0.0f && amax <= std::numeric_limits<float>::max())) return 1.0f;
        const float quotient = largest / amax;
        const float scale = std::isinf(quotient) ? overflow : quotient;
        return power_of_two ? std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0xFF800000u) : scale;
    }
    F8E8M0 mx_code(float amax) const { return e8m0_roundup(amax * reciprocal); }
    uint8_t encode(float scaled) const { return e5m2 ? to_f8e5m2(scaled).bits : to_f8e4m3(scaled).bits; }
};

Rule rule_of(const QuantizeArgs& args) {
    const Format& format = (args.row ? args.row : args.column).format;
    // Per tensor the largest fp32, with block scales the source type's.
    const bool bf16 = format.scale == ScaleKind::Block128 && args.source.values.dtype == DType::BF16;
    const float largest = largest_finite(format.element);
    return {.largest = largest,
            .reciprocal = 1.0f / largest,
            .epsilon = args.amax_epsilon,
            .overflow = bf16 ? to_float(BF16{0x7F7F}) : std::numeric_limits<float>::max(),
            .power_of_two = format.power_of_two,
            .e5m2 = format.element == DType::F8E5M2};
}

float larger(float amax, float value) {
    const float magnitude = std::fabs(value);
    return magnitude > amax ? magnitude : amax;  // never true of a NaN
}

// A tile of an expert: `row` from the expert's first.
struct TilePlace {
    const ExpertPart* part;
    int64_t row, column, rows, columns;
};

std::vector<TilePlace> tiles_of(const std::vector<ExpertPart>& parts, int64_t columns) {
    std::vector<TilePlace> tiles;
    for (const ExpertPart& part : parts) {
        for (int64_t row = 0; row < part.rows; row += kTile) {
            for (int64_t column = 0; column < columns; column += kTile) {
                tiles.push_back({&part, row, column, std::min(kTile, part.rows - row),
                                 std::min(kTile, columns - column)});
            }
        }
    }
    return tiles;
}

// Row `row` of all, as it is to be quantized.
const char* source_row(const QuantizeSource& s, int64_t row) {
    const View& v = s.values;
    int64_t from = row;
    if (s.row_index) {
        from = s.row_index.as<int32_t>()[row] / s.topk;
        MOEBIUS_CHECK(s.row_index.as<int32_t>()[row] >= 0 && from < v.size(0), "row ", row,
                      " is taken from row ", from, " of ", v.size(0));
    }
    const int64_t stride = v.stride[static_cast<size_t>(v.rank() - 2)];
    return static_cast<const char*>(v.data) + from * stride * (bits(v.dtype) / 8);
}

struct Tile {
    float values[kTile][kTile];  // zeros outside
    uint8_t codes[kTile][kTile];

    void load(const QuantizeSource& s, const TilePlace& at) {
        std::memset(values, 0, sizeof values);
        with_float_type(s.values.dtype, [&](auto type) {
            using T = decltype(type);
            for (int64_t i = 0; i < at.rows; ++i) {
                const T* from =
                    reinterpret_cast<const T*>(source_row(s, at.part->first + at.row + i)) + at.column;
                for (int64_t j = 0; j < at.columns; ++j) values[i][j] = to_float(from[j]);
            }
        });
    }
    float amax(int64_t i, int64_t j, int64_t rows, int64_t columns) const {
        float most = 0.0f;
        for (int64_t r = i; r < i + rows; ++r)
            for (int64_t c = j; c < j + columns; ++c) most = larger(most, values[r][c]);
        return most;
    }
};

struct Statistics {
    float amax = 0.0f;
    int64_t underflows = 0, saturated = 0;
};

// Codes and scales of a tile in one direction.
class TileWriter {
  public:
    TileWriter(const Operand& operand, const MatrixShape& matrix, const TilePlace& at, const Rule& rule)
        : operand_(operand), places_(operand, matrix, *at.part), at_(at), rule_(rule) {}

    void write(Tile& tile, float tensor_scale, Statistics* statistics) {
        const Format& f = operand_.format;
        if (f.scale == ScaleKind::Tensor) {
            encode(tile, 0, 0, kTile, kTile, tensor_scale, statistics);
        } else {
            for (int64_t i = 0; i < kTile; i += f.block_rows)
                for (int64_t j = 0; j < kTile; j += f.block_columns) write_block(tile, i, j, statistics);
        }
        store(tile);
    }

  private:
    void write_block(Tile& tile, int64_t i, int64_t j, Statistics* statistics) {
        const Format& f = operand_.format;
        const bool inside = i < at_.rows && j < at_.columns;
        const bool padded = operand_.layout != ScaleLayout::Compact;
        if (!inside && !padded) {
            encode(tile, i, j, f.block_rows, f.block_columns, 0.0f, nullptr);
            return;
        }
        const float amax = tile.amax(i, j, f.block_rows, f.block_columns);
        const int64_t place = places_.scale(at_.row + i, at_.column + j);
        float scale;
        if (f.scale == ScaleKind::MX32) {
            const F8E8M0 code = rule_.mx_code(amax);
            operand_.scale.as<F8E8M0>()[place] = code;
            scale = e8m0_reciprocal(code);
        } else {
            scale = rule_.scale(amax);
            operand_.scale.as<float>()[place] = 1.0f / scale;
        }
        encode(tile, i, j, f.block_rows, f.block_columns, scale, statistics);
    }
    void encode(Tile& tile, int64_t i, int64_t j, int64_t rows, int64_t columns, float scale,
                Statistics* statistics) {
        for (int64_t r = i; r < i + rows; ++r) {
            for (int64_t c = j; c < j + columns; ++c) {
                const float value = tile.values[r][c], scaled = value * scale;
                const uint8_t code = rule_.encode(scaled);
                tile.codes[r][c] = code;
                if (!statistics) continue;
                statistics->underflows += value != 0.0f && (code & 0x7F) == 0;
                statistics->saturated += std::fabs(scaled) > rule_.largest;
            }
        }
    }
    void store(const Tile& tile) {
        auto* data = static_cast<uint8_t*>(operand_.data.data);
        if (!operand_.transposed) {
            for (int64_t i = 0; i < at_.rows; ++i)
                std::memcpy(data + places_.data(at_.row + i, at_.column), tile.codes[i],
                            static_cast<size_t>(at_.columns));
            return;
        }
        // Of activations the rows that pad the last block too, zeros; a weight has none.
        const int64_t rows = operand_.data.rank() == 2 ? kTile : at_.rows;
        for (int64_t j = 0; j < at_.columns; ++j) {
            uint8_t* line = data + places_.data(at_.row, at_.column + j);
            for (int64_t i = 0; i < rows; ++i) line[i] = tile.codes[i][j];
        }
    }

    const Operand& operand_;
    OperandPart places_;
    const TilePlace& at_;
    const Rule& rule_;
};

// Scales of Tensor operands, for experts without rows too.
std::vector<float> tensor_scales(const QuantizeArgs& args, const Rule& rule, int64_t experts) {
    std::vector<float> scales;
    if (!args.amax && !args.scale) return scales;
    for (int64_t e = 0; e < experts; ++e) {
        const float scale = args.scale ? args.scale.as<float>()[e] : rule.scale(args.amax.as<float>()[e]);
        scales.push_back(scale);
        for (const Operand* operand : {&args.row, &args.column}) {
            if (*operand) operand->scale.as<float>()[e] = 1.0f / scale;
        }
    }
    return scales;
}

void add_statistics(const QuantizeArgs& args, const std::vector<TilePlace>& tiles, const Statistics* of_tiles,
                    int64_t experts) {
    std::vector<Statistics> sums(static_cast<size_t>(experts));
    for (size_t t = 0; t < tiles.size(); ++t) {
        Statistics& sum = sums[static_cast<size_t>(tiles[t].part->expert)];
        sum.amax = larger(sum.amax, of_tiles[t].amax);
        sum.underflows += of_tiles[t].underflows;
        sum.saturated += of_tiles[t].saturated;
    }
    for (int64_t e = 0; e < experts; ++e) {
        const Statistics& sum = sums[static_cast<size_t>(e)];
        if (args.observed_amax) args.observed_amax.as<float>()[e] = sum.amax;
        if (!args.counts) continue;
        args.counts.as<int64_t>()[2 * e] = sum.underflows;
        args.counts.as<int64_t>()[2 * e + 1] = sum.saturated;
    }
}

}  // namespace

void quantize(const QuantizeArgs& args, const Exec& exec) {
    const MatrixShape matrix = matrix_of(args.source);
    const std::vector<ExpertPart> parts = expert_parts(matrix, args.source.split_sizes);
    const std::vector<TilePlace> tiles = tiles_of(parts, matrix.columns);
    const Rule rule = rule_of(args);
    const std::vector<float> scales = tensor_scales(args, rule, matrix.experts);
    const bool statistics = args.observed_amax || args.counts;
    const Scratch of_tiles("quantize.statistics", statistics ? tiles.size() * sizeof(Statistics) : 0, exec);
    const Scratch buffers("quantize.tiles", static_cast<size_t>(exec.threads->size()) * sizeof(Tile), exec);
    exec.parallel(static_cast<int64_t>(tiles.size()), [&](int64_t index, int thread) {
        const TilePlace& at = tiles[static_cast<size_t>(index)];
        Tile& tile = buffers.as<Tile>()[thread];
        tile.load(args.source, at);
        Statistics found;
        const float scale = scales.empty() ? 1.0f : scales[static_cast<size_t>(at.part->expert)];
        Statistics* count = args.counts ? &found : nullptr;
        if (args.row) TileWriter(args.row, matrix, at, rule).write(tile, scale, count);
        if (args.column)
            TileWriter(args.column, matrix, at, rule).write(tile, scale, args.row ? nullptr : count);
        if (!statistics) return;
        found.amax = tile.amax(0, 0, kTile, kTile);
        of_tiles.as<Statistics>()[index] = found;
    });
    if (statistics) add_statistics(args, tiles, of_tiles.as<Statistics>(), matrix.experts);
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
        tile.load(args.source, tiles[static_cast<size_t>(index)]);
        of_tiles.as<float>()[index] = tile.amax(0, 0, kTile, kTile);
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
