// What the experts' MLP must give, and the problems that its cases are made of. For cases.cpp alone.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "moebius/ops/case.h"
#include "moebius/ops/swiglu/cases_reference.h"

namespace moebius::ops::mlp_cases {

struct Problem {
    DType dtype = DType::F32, index = DType::I64;
    DType grad = DType::F32;  // of the weights
    NamedSplits splits;
    int64_t hidden = 0, intermediate = 0;
    GluOptions options;
    bool scales = true, keeps_c = true, accumulate = false;
    bool overwrite = false;  // backward may write dC over C
    int64_t padding = 0;

    int64_t experts() const { return static_cast<int64_t>(splits.sizes.size()); }
    int64_t rows() const { return std::accumulate(splits.sizes.begin(), splits.sizes.end(), int64_t{0}); }
    // The expert of a row; `experts()` past the last.
    int64_t expert(int64_t row) const {
        int64_t e = 0;
        for (; e < experts() && row >= splits.sizes[static_cast<size_t>(e)]; ++e)
            row -= splits.sizes[static_cast<size_t>(e)];
        return e;
    }
    int64_t gate(int64_t j) const {
        const int64_t b = options.interleave;
        return b == 0 ? j : j / b * 2 * b + j % b;
    }
    int64_t up(int64_t j) const { return gate(j) + (options.interleave ? options.interleave : intermediate); }
};

inline std::string name_of(const Problem& p) {
    std::string text = std::string(name(p.dtype)) + "." + p.splits.name + "." + std::to_string(p.hidden) +
                       "x" + std::to_string(p.intermediate);
    for (const auto& [on, word] : {std::pair{p.options.kind == GluKind::ClampedQuickGeGlu, ".geglu"},
                                   {p.options.interleave > 0, ".interleaved"},
                                   {!p.scales, ".unscaled"},
                                   {!p.keeps_c, ".without_c"},
                                   {p.grad == DType::BF16, ".bf16_gradients"},
                                   {p.accumulate, ".add"},
                                   {p.overwrite, ".over_c"},
                                   {p.padding > 0, ".strided"},
                                   {p.index == DType::I32, ".i32"}}) {
        if (on) text += word;
    }
    return text;
}

using reference::glu;

// The chain for one row: c (2I) and the scaled activation (I), rounded where it is stored.
template <class H>
auto forward_row(H& h, const Problem& p, int64_t row) {
    using Real = std::decay_t<decltype(h["x"][0])>;
    struct Row {
        std::vector<Real> c, activation;
    } out;
    const int64_t e = p.expert(row);
    for (int64_t j = 0; j < 2 * p.intermediate; ++j) {
        Real sum = 0;
        for (int64_t q = 0; q < p.hidden; ++q) sum += h["x"].at(row, q) * h["gate_up"].at(e, j, q);
        out.c.push_back(stored(sum, p.dtype));
    }
    for (int64_t j = 0; j < p.intermediate; ++j) {
        const Real scale = p.scales ? h["scales"][row] : Real(1);
        const auto pair =
            glu<Real>(out.c[static_cast<size_t>(p.gate(j))], out.c[static_cast<size_t>(p.up(j))], p.options);
        out.activation.push_back(stored(scale * pair.value, p.dtype));
    }
    return out;
}

template <class H>
void forward(H& h, const Problem& p, bool keeps_c) {
    for (int64_t row = 0; row < p.rows(); ++row) {
        const auto chain = forward_row(h, p, row);
        for (int64_t j = 0; j < 2 * p.intermediate && keeps_c; ++j)
            h["c"].at(row, j) = chain.c[static_cast<size_t>(j)];
        for (int64_t i = 0; i < p.hidden; ++i) {
            auto sum = h["x"][0] - h["x"][0];
            for (int64_t j = 0; j < p.intermediate; ++j)
                sum += chain.activation[static_cast<size_t>(j)] * h["down"].at(p.expert(row), i, j);
            h["y"].at(row, i) = sum;
        }
    }
}

// Gradients of one row, from the stored c.
template <class H>
void backward_row(H& h, const Problem& p, int64_t row) {
    using Real = std::decay_t<decltype(h["x"][0])>;
    const int64_t e = p.expert(row);
    const Real scale = p.scales ? h["scales"][row] : Real(1);
    Real dscale = 0;
    std::vector<Real> dc(static_cast<size_t>(2 * p.intermediate));
    for (int64_t j = 0; j < p.intermediate; ++j) {
        Real upstream = 0;
        for (int64_t i = 0; i < p.hidden; ++i) upstream += h["dy"].at(row, i) * h["down"].at(e, i, j);
        upstream = stored(upstream, p.dtype);
        const auto pair = glu<Real>(h["c"].at(row, p.gate(j)), h["c"].at(row, p.up(j)), p.options);
        dscale += upstream * pair.value;
        dc[static_cast<size_t>(p.gate(j))] = stored(upstream * scale * pair.by_gate, p.dtype);
        dc[static_cast<size_t>(p.up(j))] = stored(upstream * scale * pair.by_up, p.dtype);
        const Real activation = stored(scale * pair.value, p.dtype);
        for (int64_t i = 0; i < p.hidden; ++i) h["ddown"].at(e, i, j) += h["dy"].at(row, i) * activation;
    }
    if (p.scales) h["dscales"][row] = dscale;
    for (int64_t i = 0; i < p.hidden; ++i) {
        Real sum = 0;
        for (int64_t j = 0; j < 2 * p.intermediate; ++j) {
            const Real value = dc[static_cast<size_t>(j)];
            sum += value * h["gate_up"].at(e, j, i);
            h["dgate_up"].at(e, j, i) += value * h["x"].at(row, i);
        }
        h["dx"].at(row, i) = sum;
    }
}

}  // namespace moebius::ops::mlp_cases
