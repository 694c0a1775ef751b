// What the experts' MLP of codes must give, and the problems that its cases are made of. For cases.cpp and
// cases_runs.h alone.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "moebius/ops/case.h"
#include "moebius/ops/quantize/cases_codes.h"
#include "moebius/ops/swiglu/cases_reference.h"

namespace moebius::ops::mlp_quantized_cases {

struct Problem {
    ScaleKind scale = ScaleKind::Block128;
    DType dtype = DType::BF16, element = DType::F8E4M3, index = DType::I64;  // element: of gradients
    DType grad = DType::F32;                                                 // of the weights
    NamedSplits splits;
    int64_t hidden = 0, intermediate = 0;
    GluOptions options;
    bool power_of_two = true, given = false;  // given: Tensor scales of what the op makes, from outside
    bool observed = false;  // the activation's amax leaves forward; with given it always does
    bool scales = true, accumulate = false, fast = false;
    bool overwrite = false;     // backward may use C as scratch, and ends with dC
    bool weights_kept = false;  // bench: the weights' codes are there
    bool bench = false;

    int64_t experts() const { return static_cast<int64_t>(splits.sizes.size()); }
    bool observes() const { return given || observed; }
    int64_t rows() const { return std::accumulate(splits.sizes.begin(), splits.sizes.end(), int64_t{0}); }
    Format format(DType type, Direction direction, bool weight) const {
        return make_format(type, scale, direction, weight, power_of_two);
    }
    int64_t gate(int64_t j) const {
        const int64_t b = options.interleave;
        return b == 0 ? j : j / b * 2 * b + j % b;
    }
    int64_t up(int64_t j) const { return gate(j) + (options.interleave ? options.interleave : intermediate); }
};

inline std::string name_of(const Problem& p) {
    std::string text = std::string(name(p.scale)) + "." + std::string(name(p.element)) + "." +
                       std::string(name(p.dtype)) + "." + p.splits.name + "." + std::to_string(p.hidden) +
                       "x" + std::to_string(p.intermediate);
    for (const auto& [on, word] : {std::pair{p.options.kind == GluKind::ClampedQuickGeGlu, ".geglu"},
                                   {p.options.interleave > 0, ".interleaved"},
                                   {!p.power_of_two, ".any_scale"},
                                   {p.given, ".given"},
                                   {p.observed, ".observed"},
                                   {!p.scales, ".unscaled"},
                                   {p.grad == DType::BF16, ".bf16_gradients"},
                                   {p.accumulate, ".add"},
                                   {p.fast, ".fast"},
                                   {p.overwrite, ".over_c"},
                                   {p.weights_kept, ".weights_kept"},
                                   {p.index == DType::I32, ".i32"}}) {
        if (on) text += word;
    }
    return text;
}

// ---- Reference -------------------------------------------------------------------------------------------

using reference::glu;

// A matrix of one expert.
template <class Real>
struct Part {
    int64_t rows = 0, columns = 0;
    std::vector<Real> values;

    Part(int64_t rows, int64_t columns)
        : rows(rows), columns(columns), values(static_cast<size_t>(rows * columns)) {}
    Real& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * columns + j)]; }
    Part through(const Format& format, double given = 0) const {
        Part left = *this;
        quantize_codes::through_codes(left.values, rows, columns, format, given);
        return left;
    }
};

template <class Real, class H>
Part<Real> part_of(H& h, const char* name, int64_t first, int64_t rows, int64_t columns) {
    Part<Real> part(rows, columns);
    const auto begin = h[name].values.begin() + first * columns;
    std::copy(begin, begin + rows * columns, part.values.begin());
    return part;
}

// f(i, j, Σ over depth of a(i, q) b(j, q)); the operands' places by accessors.
template <class Real, class A, class B, class F>
void multiply(int64_t rows, int64_t columns, int64_t depth, A&& a, B&& b, F&& f) {
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
            Real sum = 0;
            for (int64_t q = 0; q < depth; ++q) sum += a(i, q) * b(j, q);
            f(i, j, sum);
        }
    }
}

template <class H>
double given_scale(H& h, const Problem& p, int64_t e) {
    return p.given ? static_cast<double>(h["given"][e]) : 0;
}

template <class H>
void forward(H& h, const Problem& p) {
    using Real = std::decay_t<decltype(h["x"][0])>;
    const DType plain = DType::F8E4M3;
    const int64_t hidden = p.hidden, inner = p.intermediate;
    int64_t first = 0;
    for (int64_t e = 0; e < p.experts(); ++e) {
        const int64_t rows = p.splits.sizes[static_cast<size_t>(e)];
        auto x = part_of<Real>(h, "x", first, rows, hidden).through(p.format(plain, Direction::Row, false));
        auto gate_up = part_of<Real>(h, "gate_up", e * 2 * inner, 2 * inner, hidden)
                           .through(p.format(plain, Direction::Row, true));
        auto down = part_of<Real>(h, "down", e * hidden, hidden, inner)
                        .through(p.format(plain, Direction::Row, true));
        Part<Real> c(rows, 2 * inner), activation(rows, inner);
        if (p.observes()) h["observed"][e] = 0;
        multiply<Real>(
            rows, 2 * inner, hidden, [&](int64_t i, int64_t q) { return x.at(i, q); },
            [&](int64_t j, int64_t q) { return gate_up.at(j, q); },
            [&](int64_t i, int64_t j, Real sum) {
                h["c"].at(first + i, j) = c.at(i, j) = stored(sum, p.dtype);
            });
        for (int64_t i = 0; i < rows; ++i) {
            const Real scale = p.scales ? h["scales"][first + i] : Real(1);
            for (int64_t j = 0; j < inner; ++j) {
                const auto pair = glu<Real>(c.at(i, p.gate(j)), c.at(i, p.up(j)), p.options);
                activation.at(i, j) = stored(scale * pair.value, p.dtype);
                if (p.observes())
                    h["observed"][e] = std::max(h["observed"][e], std::abs(activation.at(i, j)));
            }
        }
        auto codes = activation.through(p.format(plain, Direction::Row, false), given_scale(h, p, e));
        multiply<Real>(
            rows, hidden, inner, [&](int64_t i, int64_t q) { return codes.at(i, q); },
            [&](int64_t j, int64_t q) { return down.at(j, q); },
            [&](int64_t i, int64_t j, Real sum) { h["y"].at(first + i, j) = sum; });
        first += rows;
    }
}

// One expert's backward, from the stored c.
template <class H>
void backward_expert(H& h, const Problem& p, int64_t e, int64_t first, int64_t rows) {
    using Real = std::decay_t<decltype(h["x"][0])>;
    const DType plain = DType::F8E4M3, gradient = p.element;
    const Direction across = Direction::Row, down_rows = Direction::Column;
    const int64_t hidden = p.hidden, inner = p.intermediate;
    const Part<Real> x = part_of<Real>(h, "x", first, rows, hidden),
                     dy = part_of<Real>(h, "dy", first, rows, hidden);
    Part<Real> c = part_of<Real>(h, "c", first, rows, 2 * inner);
    auto gate_up = part_of<Real>(h, "gate_up", e * 2 * inner, 2 * inner, hidden)
                       .through(p.format(plain, down_rows, true));
    auto down = part_of<Real>(h, "down", e * hidden, hidden, inner).through(p.format(plain, down_rows, true));
    Part<Real> activation(rows, inner), dc(rows, 2 * inner);
    auto dy_row = dy.through(p.format(gradient, across, false)),
         dy_column = dy.through(p.format(gradient, down_rows, false)),
         x_column = x.through(p.format(plain, down_rows, false));
    std::vector<Real> dscales(static_cast<size_t>(rows));
    multiply<Real>(
        rows, inner, hidden, [&](int64_t i, int64_t q) { return dy_row.at(i, q); },
        [&](int64_t j, int64_t q) { return down.at(q, j); },
        [&](int64_t i, int64_t j, Real sum) {
            const Real scale = p.scales ? h["scales"][first + i] : Real(1), upstream = stored(sum, p.dtype);
            const auto pair = glu<Real>(c.at(i, p.gate(j)), c.at(i, p.up(j)), p.options);
            dscales[static_cast<size_t>(i)] += upstream * pair.value;
            dc.at(i, p.gate(j)) = stored(upstream * scale * pair.by_gate, p.dtype);
            dc.at(i, p.up(j)) = stored(upstream * scale * pair.by_up, p.dtype);
            activation.at(i, j) = stored(scale * pair.value, p.dtype);
        });
    const double given = given_scale(h, p, e);
    auto act_column = activation.through(p.format(plain, down_rows, false), given);
    auto dc_row = dc.through(p.format(gradient, across, false), given),
         dc_column = dc.through(p.format(gradient, down_rows, false), given);
    for (int64_t i = 0; i < rows && p.scales; ++i) h["dscales"][first + i] = dscales[static_cast<size_t>(i)];
    multiply<Real>(
        rows, hidden, 2 * inner, [&](int64_t i, int64_t q) { return dc_row.at(i, q); },
        [&](int64_t j, int64_t q) { return gate_up.at(q, j); },
        [&](int64_t i, int64_t j, Real sum) { h["dx"].at(first + i, j) = sum; });
    multiply<Real>(
        hidden, inner, rows, [&](int64_t i, int64_t q) { return dy_column.at(q, i); },
        [&](int64_t j, int64_t q) { return act_column.at(q, j); },
        [&](int64_t i, int64_t j, Real sum) { h["ddown"].at(e, i, j) += sum; });
    multiply<Real>(
        2 * inner, hidden, rows, [&](int64_t i, int64_t q) { return dc_column.at(q, i); },
        [&](int64_t j, int64_t q) { return x_column.at(q, j); },
        [&](int64_t i, int64_t j, Real sum) { h["dgate_up"].at(e, i, j) += sum; });
}

template <class H>
void backward(H& h, const Problem& p) {
    for (const char* name : {"dgate_up", "ddown"}) {
        if (!p.accumulate) std::fill(h[name].values.begin(), h[name].values.end(), 0);
    }
    int64_t first = 0;
    for (int64_t e = 0; e < p.experts(); ++e) {
        const int64_t rows = p.splits.sizes[static_cast<size_t>(e)];
        backward_expert(h, p, e, first, rows);
        first += rows;
    }
}

}  // namespace moebius::ops::mlp_quantized_cases
