// A tensor in low precision: codes and scales row-wise, column-wise or both.
#pragma once

#include "moebius/tensor/operand.h"
#include "moebius/tensor/tensor.h"

namespace moebius {

struct QuantizedSpec {
    DType element = DType::F8E4M3;
    ScaleKind scale = ScaleKind::Block128;
    bool power_of_two = true;
    ScaleLayout layout = ScaleLayout::Compact;  // of MX32's scales
    bool row = true, column = false;            // the directions that are kept
    MatrixShape matrix;
};

class Quantized {
  public:
    Quantized() = default;
    // Memory from exec.pool, nothing written to it; ops::quantize fills it.
    static Quantized empty(const char* name, const QuantizedSpec& spec, const Exec& exec);

    const QuantizedSpec& spec() const { return spec_; }
    // Empty where the direction isn't kept. An operand borrows, so none is lent by a temporary.
    Operand row() const& { return operand(Direction::Row); }
    Operand column() const& { return operand(Direction::Column); }
    Operand operand(Direction direction) const&;
    Operand row() const&& = delete;
    Operand column() const&& = delete;
    Operand operand(Direction direction) const&& = delete;
    int64_t bytes() const;
    // Gives one direction's memory back.
    void drop(Direction direction);

  private:
    struct Part {
        Tensor data, scale;
    };
    Part& part(Direction direction) { return parts_[direction == Direction::Row ? 0 : 1]; }
    const Part& part(Direction direction) const { return parts_[direction == Direction::Row ? 0 : 1]; }

    QuantizedSpec spec_;
    std::array<Part, 2> parts_;
};

}  // namespace moebius
