// What quantization leaves of a tensor's numbers, in plain loops: for the naive runs of cases whose ops
// quantize what they compute. In double nothing is quantized, so that the naive run's error is that of the
// format, and twice it is allowed. Part of the cases, not of the library.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "moebius/base/float8.h"
#include "moebius/tensor/operand.h"

namespace moebius::ops::quantize_codes {

inline void through_codes(std::vector<double>&, int64_t, int64_t, const Format&, double) {}

inline float scale_of(const Format& format, float amax) {
    if (!(amax > 0)) return 1;
    const float largest = largest_finite(format.element), scale = largest / amax;
    if (format.scale == ScaleKind::MX32) return std::exp2(-std::ceil(std::log2(amax / largest)));
    return format.power_of_two ? std::exp2(std::floor(std::log2(scale))) : scale;
}

// One expert's (rows, columns), as they are after codes and scales; `given` > 0: a Tensor scale.
inline void through_codes(std::vector<float>& values, int64_t rows, int64_t columns, const Format& format,
                          double given) {
    if (rows == 0 || columns == 0) return;
    const int64_t down = format.block_rows ? format.block_rows : rows,
                  across = format.block_columns ? format.block_columns : columns;
    const auto in_block = [&](int64_t r, int64_t c, auto&& f) {
        for (int64_t i = r; i < std::min(rows, r + down); ++i)
            for (int64_t j = c; j < std::min(columns, c + across); ++j)
                f(values[static_cast<size_t>(i * columns + j)]);
    };
    for (int64_t r = 0; r < rows; r += down) {
        for (int64_t c = 0; c < columns; c += across) {
            float amax = 0;
            in_block(r, c, [&](float& v) { amax = std::max(amax, std::fabs(v)); });
            const float scale = given > 0 ? static_cast<float>(given) : scale_of(format, amax);
            in_block(r, c, [&](float& v) {
                const float scaled = v * scale;
                v = (format.element == DType::F8E4M3 ? to_float(to_f8e4m3(scaled))
                                                     : to_float(to_f8e5m2(scaled))) /
                    scale;
            });
        }
    }
}

}  // namespace moebius::ops::quantize_codes
