#include "moebius/tensor/operand.h"

#include "moebius/base/float8.h"

namespace moebius {
namespace {

Shape mx_scale_shape(const MatrixShape& m, Direction direction, ScaleLayout layout) {
    const bool row = direction == Direction::Row;
    const int64_t each = ceil_div(m.rows, kRowBlock) * kRowBlock;  // of a weight
    const int64_t padded = m.weight ? checked_mul(m.experts, each) : padded_rows(m.rows, m.experts);
    if (layout == ScaleLayout::Swizzled)
        return {checked_mul(padded / kRowBlock, ceil_div(m.columns, 128) * 512)};
    const bool pad = layout == ScaleLayout::Padded;
    const int64_t across =
        row ? round_up(ceil_div(m.columns, 32), pad ? 4 : 1) : round_up(m.columns, pad ? 128 : 1);
    if (m.weight) {
        const int64_t rows = pad ? each : m.rows;
        return {m.experts, row ? rows : ceil_div(rows, 32), across};
    }
    if (pad) return {row ? padded : padded / 32, across};
    return {row ? m.rows : padded_rows(m.rows, m.experts, 32) / 32, across};
}

Shape block_scale_shape(const MatrixShape& m, Direction direction) {
    const int64_t down = ceil_div(m.rows, 128), across = ceil_div(m.columns, 128);
    if (m.weight)
        return direction == Direction::Row ? Shape{m.experts, down, across} : Shape{m.experts, across, down};
    if (direction == Direction::Row) return {across, round_up(m.rows, 4)};
    return {padded_rows(m.rows, m.experts) / kRowBlock, m.columns};
}

}  // namespace

std::string_view name(ScaleKind kind) {
    constexpr std::string_view kNames[] = {"none", "tensor", "block128", "mx32"};
    return kNames[static_cast<size_t>(kind)];
}

float largest_finite(DType element) {
    MOEBIUS_CHECK(element == DType::F8E4M3 || element == DType::F8E5M2, name(element));
    return element == DType::F8E4M3 ? kLargestE4M3 : kLargestE5M2;
}

int64_t padded_rows(int64_t rows, int64_t experts, int64_t block) {
    return checked_mul(checked_add(rows / block, experts), block);
}

Format make_format(DType element, ScaleKind scale, Direction direction, bool weight, bool power_of_two) {
    Format format{.element = element, .scale = scale, .power_of_two = power_of_two};
    const bool row = direction == Direction::Row;
    if (scale == ScaleKind::Block128) {
        format.block_rows = row && !weight ? 1 : 128;
        format.block_columns = row || weight ? 128 : 1;
    } else if (scale == ScaleKind::MX32) {
        format.block_rows = row ? 1 : 32;
        format.block_columns = row ? 32 : 1;
        format.power_of_two = true;
    }
    return format;
}

OperandShapes operand_shapes(const Format& format, Direction direction, const MatrixShape& m,
                             ScaleLayout layout) {
    OperandShapes shapes;
    const bool quantized = format.scale != ScaleKind::None;
    shapes.transposed = quantized && direction == Direction::Column && format.scale != ScaleKind::MX32;
    if (m.weight) {
        shapes.data =
            shapes.transposed ? Shape{m.experts, m.columns, m.rows} : Shape{m.experts, m.rows, m.columns};
    } else {
        shapes.data =
            shapes.transposed ? Shape{m.columns, padded_rows(m.rows, m.experts)} : Shape{m.rows, m.columns};
    }
    switch (format.scale) {
        case ScaleKind::None:
            break;
        case ScaleKind::Tensor:
            shapes.scale = {m.experts};
            break;
        case ScaleKind::Block128:
            shapes.scale = block_scale_shape(m, direction);
            break;
        case ScaleKind::MX32:
            shapes.scale = mx_scale_shape(m, direction, layout);
            shapes.scale_dtype = DType::F8E8M0;
            break;
    }
    return shapes;
}

void check_operand(const char* what, const Operand& operand, Direction direction, const MatrixShape& matrix) {
    const Format& f = operand.format;
    MOEBIUS_CHECK(f == make_format(f.element, f.scale, direction, matrix.weight, f.power_of_two), what,
                  ": blocks of ", f.block_rows, " x ", f.block_columns, " are not what ", name(f.scale),
                  " has here");
    MOEBIUS_CHECK((f.element == DType::F8E4M3 || f.element == DType::F8E5M2) && f.scale != ScaleKind::None,
                  what, ": elements ", name(f.element), ", scales ", name(f.scale));
    const OperandShapes shapes = operand_shapes(f, direction, matrix, operand.layout);
    MOEBIUS_CHECK(
        operand.data.dtype == f.element && operand.data.shape == shapes.data && operand.data.contiguous(),
        what, ": data ", operand.data.shape.str(), " of ", name(operand.data.dtype), ", not ",
        shapes.data.str(), " of ", name(f.element));
    MOEBIUS_CHECK(operand.scale.dtype == shapes.scale_dtype && operand.scale.shape == shapes.scale &&
                      operand.scale.contiguous(),
                  what, ": scale ", operand.scale.shape.str(), " of ", name(operand.scale.dtype), ", not ",
                  shapes.scale.str(), " of ", name(shapes.scale_dtype));
    MOEBIUS_CHECK(operand.transposed == shapes.transposed, what, ": transposed = ", operand.transposed);
}

}  // namespace moebius
