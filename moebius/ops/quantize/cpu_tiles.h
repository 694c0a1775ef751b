// Quantizing on the CPU, in tiles of 128 × 128 inside an expert's rows, each on its own: every block of every
// format lies within one. For quantize and for operations that quantize what they compute.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "moebius/base/float8.h"
#include "moebius/ops/quantize/quantize.h"
#include "moebius/tensor/operand_part.h"

namespace moebius::ops::cpu {

inline constexpr int64_t kQuantizedTile = 128;

// A tile of an expert: `row` from the expert's first.
struct TilePlace {
    const ExpertPart* part;
    int64_t row, column, rows, columns;
};

std::vector<TilePlace> tiles_of(const std::vector<ExpertPart>& parts, int64_t columns);

// One thread's tile: numbers, zeros outside of what exists, and the codes they become.
struct Tile {
    float values[kQuantizedTile][kQuantizedTile];
    uint8_t codes[kQuantizedTile][kQuantizedTile];

    void clear() { std::memset(values, 0, sizeof values); }
    float amax(int64_t i, int64_t j, int64_t rows, int64_t columns) const;
    float amax() const { return amax(0, 0, kQuantizedTile, kQuantizedTile); }
};

// The larger magnitude; a NaN never is.
inline float larger(float amax, float value) {
    const float magnitude = std::fabs(value);
    return magnitude > amax ? magnitude : amax;
}

struct QuantizeStatistics {
    float amax = 0.0f;
    int64_t underflows = 0, saturated = 0;

    void add(const QuantizeStatistics& other) {
        amax = larger(amax, other.amax);
        underflows += other.underflows;
        saturated += other.saturated;
    }
};

// What a block's amax makes of its scale, and a scaled number of its code.
struct ScaleRule {
    float largest, reciprocal;  // of the element type, and 1 / largest rounded
    float epsilon, overflow;
    bool power_of_two, e5m2;

    float scale(float amax) const;
    F8E8M0 mx_code(float amax) const { return e8m0_roundup(amax * reciprocal); }
    uint8_t encode(float scaled) const { return e5m2 ? to_f8e5m2(scaled).bits : to_f8e4m3(scaled).bits; }
};

// Codes and scales of a tensor, tile by tile, from any threads.
class TileQuantizer {
  public:
    // `amax` (E): of Tensor scales that the target does not give. `source`: the type that is quantized.
    // Tensor scales are written here, for experts without rows too.
    TileQuantizer(const QuantizeTarget& target, const View& amax, const MatrixShape& matrix, DType source);
    // What was seen is added to `statistics`, where the target asks for any.
    void write(Tile& tile, const TilePlace& at, QuantizeStatistics& statistics) const;
    // What was seen of each expert goes where the target asks for it.
    void store(const std::vector<QuantizeStatistics>& of_experts) const;

  private:
    QuantizeTarget target_;
    MatrixShape matrix_;
    ScaleRule rule_;
    std::vector<float> scales_;  // of Tensor
};

}  // namespace moebius::ops::cpu
