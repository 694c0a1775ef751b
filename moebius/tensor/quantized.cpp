#include "moebius/tensor/quantized.h"

namespace moebius {

Quantized Quantized::empty(const char* name, const QuantizedSpec& spec, const Exec& exec) {
    MOEBIUS_CHECK(spec.row || spec.column, name, ": neither direction");
    Quantized made;
    made.spec_ = spec;
    for (const Direction direction : {Direction::Row, Direction::Column}) {
        if (!(direction == Direction::Row ? spec.row : spec.column)) continue;
        const Format format =
            make_format(spec.element, spec.scale, direction, spec.matrix.weight, spec.power_of_two);
        const OperandShapes shapes = operand_shapes(format, direction, spec.matrix, spec.layout);
        made.part(direction) = {Tensor::empty(name, shapes.data, spec.element, exec),
                                Tensor::empty(name, shapes.scale, shapes.scale_dtype, exec)};
    }
    return made;
}

Operand Quantized::operand(Direction direction) const& {
    const Part& own = part(direction);
    if (!own.data) return {};
    const Format format =
        make_format(spec_.element, spec_.scale, direction, spec_.matrix.weight, spec_.power_of_two);
    return {.data = own.data,
            .scale = own.scale,
            .format = format,
            .transposed = direction == Direction::Column && spec_.scale != ScaleKind::MX32,
            .layout = spec_.layout};
}

int64_t Quantized::bytes() const {
    int64_t total = 0;
    for (const Part& own : parts_) {
        if (own.data) total += own.data.view().bytes() + own.scale.view().bytes();
    }
    return total;
}

void Quantized::drop(Direction direction) {
    part(direction) = {};
    (direction == Direction::Row ? spec_.row : spec_.column) = false;
}

}  // namespace moebius
