// Where one expert's codes and scales lie in an operand: the layouts of operand.h, element by element, on the
// host.
#pragma once

#include <vector>

#include "moebius/tensor/operand.h"

namespace moebius {

// Row-wise or column-wise, as the operand itself says.
inline Direction direction_of(const Operand& operand) {
    const bool down = operand.format.scale == ScaleKind::MX32 && operand.format.block_columns == 1;
    return operand.transposed || down ? Direction::Column : Direction::Row;
}

// An expert's rows, and what the experts before it take.
struct ExpertPart {
    int64_t expert = 0, first = 0, rows = 0;
    int64_t row_blocks = 0;  // Σ ⌈nᵢ/128⌉ of the experts before
    int64_t mx_blocks = 0;   // Σ ⌈nᵢ/32⌉ of the experts before

    // The expert after this one, with so many rows.
    ExpertPart next(int64_t next_rows) const {
        return {expert + 1, first + rows, next_rows, row_blocks + ceil_div(rows, 128),
                mx_blocks + ceil_div(rows, 32)};
    }
};

// The experts of a tensor; `split_sizes` in host memory, or absent where all experts have as many rows (a
// weight; a tensor of one expert). Throws Error on a negative size or a sum above the capacity.
std::vector<ExpertPart> expert_parts(const MatrixShape& matrix, const View& split_sizes);

class OperandPart {
  public:
    OperandPart(const Operand& operand, const MatrixShape& matrix, const ExpertPart& part)
        : part_(part),
          kind_(operand.format.scale),
          row_(direction_of(operand) == Direction::Row),
          transposed_(operand.transposed),
          weight_(matrix.weight),
          layout_(operand.layout),
          columns_(matrix.columns),
          rows_(matrix.rows),
          stride_(operand.data.rank() < 2
                      ? 0
                      : operand.data.stride[static_cast<size_t>(operand.data.rank() - 2)]) {}

    // Of element (i, c), i from the expert's first row on.
    int64_t data(int64_t i, int64_t c) const {
        if (!transposed_) return (part_.first + i) * columns_ + c;
        const int64_t origin = weight_ ? part_.expert * columns_ * rows_ : part_.row_blocks * 128;
        return origin + c * stride_ + i;
    }
    // Of the scale of element (i, c). In padded and swizzled layouts also of what pads it.
    int64_t scale(int64_t i, int64_t c) const {
        if (kind_ == ScaleKind::Tensor) return part_.expert;
        return kind_ == ScaleKind::Block128 ? block_scale(i, c) : mx_scale(i, c);
    }

  private:
    int64_t block_scale(int64_t i, int64_t c) const {
        const int64_t across = ceil_div(columns_, 128), down = ceil_div(rows_, 128);
        if (weight_) {
            const int64_t origin = part_.expert * across * down;
            return origin + (row_ ? i / 128 * across + c / 128 : c / 128 * down + i / 128);
        }
        if (row_) return c / 128 * round_up(rows_, 4) + part_.first + i;
        return (part_.row_blocks + i / 128) * columns_ + c;
    }
    int64_t mx_scale(int64_t i, int64_t c) const {
        const int64_t tiles = ceil_div(columns_, 128);
        switch (layout_) {
            case ScaleLayout::Compact:
                return row_ ? (part_.first + i) * ceil_div(columns_, 32) + c / 32
                            : (part_.mx_blocks + i / 32) * columns_ + c;
            case ScaleLayout::Padded:
                return row_ ? (part_.row_blocks * 128 + i) * tiles * 4 + c / 32
                            : (part_.row_blocks * 4 + i / 32) * tiles * 128 + c;
            case ScaleLayout::Swizzled:
                break;
        }
        const int64_t origin = part_.row_blocks * tiles * 512;
        return origin + (row_ ? swizzled_place(i, c / 32, tiles)
                              : swizzled_place(c, i / 32, ceil_div(part_.rows, 128)));
    }

    ExpertPart part_;
    ScaleKind kind_;
    bool row_, transposed_, weight_;
    ScaleLayout layout_;
    int64_t columns_, rows_, stride_;
};

}  // namespace moebius
