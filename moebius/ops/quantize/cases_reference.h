// What quantize's cases expect, and the problems that they are made of. It shares no arithmetic with the
// library: codes are found by comparing with the midpoints between an element type's numbers, scales by
// frexp. Only places come from tensor/operand_part.h, which tests/tensor checks. For cases.cpp alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "moebius/ops/case.h"
#include "moebius/ops/quantize/quantize.h"
#include "moebius/tensor/operand_part.h"

namespace moebius::ops::quantize_reference {

// ---- What must come out ----------------------------------------------------------------------------------

inline double number_of(DType element, int code) {
    const int mantissa = element == DType::F8E4M3 ? 3 : 2, bias = element == DType::F8E4M3 ? 7 : 15;
    const int exponent = (code & 127) >> mantissa, digits = code & ((1 << mantissa) - 1);
    const double sign = code & 128 ? -1.0 : 1.0;
    if (element == DType::F8E4M3 && (code & 127) == 127) return std::nan("");
    if (element == DType::F8E5M2 && exponent == 31) return digits ? std::nan("") : sign * INFINITY;
    return sign * (exponent == 0 ? std::ldexp(digits, 1 - bias - mantissa)
                                 : std::ldexp(digits + (1 << mantissa), exponent - bias - mantissa));
}

// Between a code's number and the next code's, up to the largest finite one's.
inline const std::vector<double>& middles_of(DType element) {
    const auto make = [](DType type, int largest) {
        std::vector<double> middles;
        for (int code = 0; code < largest; ++code)
            middles.push_back((number_of(type, code) + number_of(type, code + 1)) / 2);
        return middles;
    };
    static const std::vector<double> e4m3 = make(DType::F8E4M3, 0x7E), e5m2 = make(DType::F8E5M2, 0x7B);
    return element == DType::F8E4M3 ? e4m3 : e5m2;
}

inline int code_of(DType element, double value) {
    if (std::isnan(value)) return 127;
    const std::vector<double>& middles = middles_of(element);
    const double magnitude = std::fabs(value);
    const auto above = std::lower_bound(middles.begin(), middles.end(), magnitude);
    auto code = static_cast<int>(above - middles.begin());
    if (above != middles.end() && *above == magnitude && code % 2 == 1)
        ++code;  // a tie goes to the even code
    return code + (std::signbit(value) ? 128 : 0);
}

inline float largest_of(DType element) {
    return element == DType::F8E4M3 ? 448.0f : 57344.0f;
}

// The exponent code of the power of two at or above `value`.
inline int power_above(float value) {
    if (std::isnan(value)) return 255;
    if (std::isinf(value)) return 254;
    if (value == 0) return 0;
    int exponent = 0;
    const double half = std::frexp(static_cast<double>(value), &exponent);
    return std::clamp(exponent + 127 - (half == 0.5 ? 1 : 0), 0, 254);
}

inline float scale_for(float amax, DType element, float epsilon, bool power_of_two, float overflow) {
    if (amax < epsilon) amax = epsilon;
    if (amax == 0 || std::isinf(amax) || std::isnan(amax)) return 1;
    float scale = largest_of(element) / amax;
    if (std::isinf(scale)) scale = overflow;
    if (!power_of_two) return scale;
    int exponent = 0;
    std::frexp(scale, &exponent);
    return std::ldexp(1.0f, exponent - 1);
}

// ---- Problems --------------------------------------------------------------------------------------------

enum class From { Amax, Scale };  // a tensor scale's

struct Problem {
    ScaleKind scale = ScaleKind::Block128;
    DType element = DType::F8E4M3, source = DType::BF16, index = DType::I64;
    ScaleLayout layout = ScaleLayout::Compact;
    NamedSplits splits;
    int64_t columns = 0;
    bool weight = false;  // splits: experts, all of the first one's size
    bool row = true, column = true, power_of_two = true;
    bool special = false;  // NaN, infinities, zeros, subnormal and huge numbers among the values
    bool gather = false, statistics = false, no_splits = false, bench = false;
    bool norm = false;   // the source is what a norm's output is made of
    bool every = false;  // 256 × 256: all numbers of bf16, or all codes
    From from = From::Amax;
    float epsilon = 0;

    int64_t experts() const { return no_splits ? 1 : static_cast<int64_t>(splits.sizes.size()); }
    int64_t rows() const { return std::accumulate(splits.sizes.begin(), splits.sizes.end(), int64_t{0}); }
    MatrixShape matrix() const {
        return weight ? MatrixShape{splits.sizes[0], columns, experts(), true}
                      : MatrixShape{splits.capacity, columns, experts(), false};
    }
    std::vector<ExpertPart> parts() const {
        if (weight || no_splits) return expert_parts(matrix(), {});
        std::vector<ExpertPart> parts;
        for (const int64_t size : splits.sizes)
            parts.push_back(parts.empty() ? ExpertPart{.rows = size} : parts.back().next(size));
        return parts;
    }
};
inline constexpr int64_t kTopk = 2;

inline std::string name_of(const Problem& p) {
    constexpr const char* kLayouts[] = {"", ".padded", ".swizzled"};
    std::string text = std::string(name(p.scale)) + "." + std::string(name(p.element)) + "." +
                       std::string(name(p.source)) + (p.weight ? ".weight." : ".") + p.splits.name + "." +
                       std::to_string(p.columns) + kLayouts[static_cast<int>(p.layout)];
    for (const auto& [on, word] : {std::pair{!p.column, ".row"},
                                   {!p.row, ".column"},
                                   {!p.power_of_two && p.scale != ScaleKind::MX32, ".any_scale"},
                                   {p.special, ".special"},
                                   {p.gather, ".gather"},
                                   {p.norm, ".norm"},
                                   {p.every, ".every"},
                                   {p.statistics, ".statistics"},
                                   {p.no_splits, ".no_splits"},
                                   {p.epsilon > 0, ".epsilon"},
                                   {p.from == From::Scale, ".given"},
                                   {p.index == DType::I32, ".i32"}}) {
        if (on) text += word;
    }
    return text;
}

// One direction: names of its tensors and where its parts lie.
struct Side {
    std::string name;
    Direction direction = Direction::Row;
    Format format;
    OperandShapes shapes;
    MatrixShape matrix;
    ScaleLayout layout = ScaleLayout::Compact;

    Operand operand(const Views& v) const {
        return {.data = v[name + "_data"],
                .scale = v[name + "_scale"],
                .format = format,
                .transposed = shapes.transposed,
                .layout = layout};
    }
    OperandPart places(const ExpertPart& part) const {
        return OperandPart({.data = View(nullptr, format.element, shapes.data),
                            .format = format,
                            .transposed = shapes.transposed,
                            .layout = layout},
                           matrix, part);
    }
};

inline Side side_of(const Problem& p, Direction direction) {
    Side s{.name = direction == Direction::Row ? "row" : "column", .direction = direction};
    s.format = make_format(p.element, p.scale, direction, p.weight, p.power_of_two);
    s.shapes = operand_shapes(s.format, direction, p.matrix(), p.layout);
    s.matrix = p.matrix();
    s.layout = p.layout;
    return s;
}
inline std::vector<Side> sides_of(const Problem& p) {
    std::vector<Side> sides;
    if (p.row) sides.push_back(side_of(p, Direction::Row));
    if (p.column) sides.push_back(side_of(p, Direction::Column));
    return sides;
}

struct Extent {
    int64_t rows, columns;
};
// What is written of an expert's part: codes, and elements that have a scale.
inline Extent codes_written(const Side& s, const ExpertPart& part) {
    const bool pads = s.shapes.transposed && !s.matrix.weight;
    return {pads ? round_up(part.rows, 128) : part.rows, s.matrix.columns};
}
inline Extent scales_written(const Side& s, const ExpertPart& part) {
    if (s.layout == ScaleLayout::Compact) return {part.rows, s.matrix.columns};
    return {round_up(part.rows, 128), round_up(s.matrix.columns, 128)};
}

// ---- Reference -------------------------------------------------------------------------------------------

// One expert's rows of the source; zeros outside, so that blocks may reach over the edge.
template <class H>
struct Values {
    H& h;
    const Problem& p;
    const ExpertPart& part;

    float operator()(int64_t i, int64_t c) const {
        if (i >= part.rows || c >= p.columns) return 0;
        int64_t row = part.first + i;
        if (p.gather) row = h["row_index"].integer(row) / kTopk;
        const auto value = static_cast<float>(h["source"][row * p.columns + c]);
        if (!p.norm) return value;
        const auto rstd = static_cast<float>(h["rstd"][row]),
                   weight = static_cast<float>(h["norm_weight"][c]);
        const float product = value * rstd * weight;
        return p.source == DType::BF16 ? to_float(to_bf16(product)) : product;
    }
    float amax(int64_t i, int64_t c, Extent block) const {
        float most = 0;
        for (int64_t y = i; y < i + block.rows; ++y) {
            for (int64_t x = c; x < c + block.columns; ++x) {
                const float magnitude = std::fabs((*this)(y, x));
                if (!std::isnan(magnitude)) most = std::max(most, magnitude);
            }
        }
        return most;
    }
};

struct Seen {
    int64_t underflows = 0, saturated = 0;
};

template <class H>
Seen reference_part(H& h, const Problem& p, const Side& s, const ExpertPart& part) {
    Seen seen;
    const Values<H> values{h, p, part};
    auto& data = h[s.name + "_data"];
    auto& scales = h[s.name + "_scale"];
    const OperandPart places = s.places(part);
    const Extent codes = codes_written(s, part), scaled = scales_written(s, part);
    const bool tensor = p.scale == ScaleKind::Tensor, mx = p.scale == ScaleKind::MX32;
    const float overflow =
        p.source == DType::BF16 && !tensor ? 0x1.FEp127f : std::numeric_limits<float>::max();
    const Extent block =
        tensor ? Extent{round_up(std::max<int64_t>(part.rows, 1), 128), round_up(p.columns, 128)}
               : Extent{s.format.block_rows, s.format.block_columns};
    float given = 1;
    if (tensor) {
        given = p.from == From::Scale ? static_cast<float>(h["scale"][part.expert])
                                      : scale_for(static_cast<float>(h["amax"][part.expert]), p.element,
                                                  p.epsilon, p.power_of_two, overflow);
        scales[part.expert] = 1.0f / given;
    }
    for (int64_t i = 0; i < std::max(codes.rows, scaled.rows); i += block.rows) {
        for (int64_t c = 0; c < std::max(codes.columns, scaled.columns); c += block.columns) {
            float scale = given;
            const bool has_scale = !tensor && i < scaled.rows && c < scaled.columns;
            const float amax = tensor ? 0 : values.amax(i, c, block);
            if (mx) {
                const int code = power_above(amax * (1.0f / largest_of(p.element)));
                if (has_scale) scales[places.scale(i, c)] = static_cast<float>(code);
                scale = std::ldexp(1.0f, 127 - code);
            } else if (!tensor) {
                scale = scale_for(amax, p.element, p.epsilon, p.power_of_two, overflow);
                if (has_scale) scales[places.scale(i, c)] = 1.0f / scale;
            }
            for (int64_t y = i; y < std::min(i + block.rows, codes.rows); ++y) {
                for (int64_t x = c; x < std::min(c + block.columns, codes.columns); ++x) {
                    const float value = values(y, x), product = value * scale;
                    const int code = code_of(p.element, product);
                    data[places.data(y, x)] = static_cast<float>(code);
                    seen.underflows += value != 0 && code % 128 == 0;
                    seen.saturated += std::fabs(product) > largest_of(p.element);
                }
            }
        }
    }
    return seen;
}

template <class H>
void reference(H& h, const Problem& p, const std::vector<Side>& sides) {
    for (const ExpertPart& part : p.parts()) {
        for (const Side& side : sides) {
            const Seen seen = reference_part(h, p, side, part);
            if (!p.statistics || &side != &sides[0]) continue;
            const Values<H> values{h, p, part};
            h["observed_amax"][part.expert] = values.amax(0, 0, {part.rows, p.columns});
            h["counts"][2 * part.expert] = static_cast<float>(seen.underflows);
            h["counts"][2 * part.expert + 1] = static_cast<float>(seen.saturated);
        }
    }
}

}  // namespace moebius::ops::quantize_reference
