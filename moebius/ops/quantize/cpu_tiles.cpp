#include "moebius/ops/quantize/cpu_tiles.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace moebius::ops::cpu {
namespace {

constexpr int64_t kTile = kQuantizedTile;

// Codes and scales of a tile in one direction.
class TileWriter {
  public:
    TileWriter(const Operand& operand, const MatrixShape& matrix, const TilePlace& at, const ScaleRule& rule)
        : operand_(operand), places_(operand, matrix, *at.part), at_(at), rule_(rule) {}

    void write(Tile& tile, float tensor_scale, QuantizeStatistics* statistics) {
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
    void write_block(Tile& tile, int64_t i, int64_t j, QuantizeStatistics* statistics) {
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
                QuantizeStatistics* statistics) {
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
    const ScaleRule& rule_;
};

}  // namespace

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

float Tile::amax(int64_t i, int64_t j, int64_t rows, int64_t columns) const {
    float most = 0.0f;
    for (int64_t r = i; r < i + rows; ++r)
        for (int64_t c = j; c < j + columns; ++c) most = larger(most, values[r][c]);
    return most;
}

float ScaleRule::scale(float amax) const {
    if (amax < epsilon) amax = epsilon;
    if (!(amax > 0.0f && amax <= std::numeric_limits<float>::max())) return 1.0f;
    const float quotient = largest / amax;
    const float scale = std::isinf(quotient) ? overflow : quotient;
    return power_of_two ? std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0xFF800000u) : scale;
}

TileQuantizer::TileQuantizer(const QuantizeTarget& target, const View& amax, const MatrixShape& matrix,
                             DType source)
    : target_(target), matrix_(matrix) {
    const Format& format = (target.row ? target.row : target.column).format;
    const float largest = largest_finite(format.element);
    // Per tensor the largest fp32, with block scales the source type's.
    const bool bf16 = format.scale == ScaleKind::Block128 && source == DType::BF16;
    rule_ = {.largest = largest,
             .reciprocal = 1.0f / largest,
             .epsilon = target.rule.amax_epsilon,
             .overflow = bf16 ? to_float(BF16{0x7F7F}) : std::numeric_limits<float>::max(),
             .power_of_two = format.power_of_two,
             .e5m2 = format.element == DType::F8E5M2};
    if (format.scale != ScaleKind::Tensor) return;
    for (int64_t e = 0; e < matrix.experts; ++e) {
        const View& given = target.rule.scale;
        scales_.push_back(given ? given.as<float>()[e] : rule_.scale(amax.as<float>()[e]));
        for (const Operand* operand : {&target.row, &target.column}) {
            if (*operand) operand->scale.as<float>()[e] = 1.0f / scales_.back();
        }
    }
}

void TileQuantizer::write(Tile& tile, const TilePlace& at, QuantizeStatistics& statistics) const {
    const float scale = scales_.empty() ? 1.0f : scales_[static_cast<size_t>(at.part->expert)];
    const Operand &row = target_.row, &column = target_.column;
    QuantizeStatistics* count = target_.rule.counts ? &statistics : nullptr;
    if (row) TileWriter(row, matrix_, at, rule_).write(tile, scale, count);
    if (column) TileWriter(column, matrix_, at, rule_).write(tile, scale, row ? nullptr : count);
    if (target_.rule.observed_amax) statistics.amax = larger(statistics.amax, tile.amax());
}

void TileQuantizer::store(const std::vector<QuantizeStatistics>& of_experts) const {
    const QuantizeRule& rule = target_.rule;
    for (size_t e = 0; e < of_experts.size(); ++e) {
        if (rule.observed_amax) rule.observed_amax.as<float>()[e] = of_experts[e].amax;
        if (!rule.counts) continue;
        rule.counts.as<int64_t>()[2 * e] = of_experts[e].underflows;
        rule.counts.as<int64_t>()[2 * e + 1] = of_experts[e].saturated;
    }
}

}  // namespace moebius::ops::cpu
