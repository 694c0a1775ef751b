#include <algorithm>
#include <numeric>

#include "moebius/ops/case.h"
#include "moebius/ops/glu_quantize/glu_quantize.h"
#include "moebius/ops/quantize/cases_codes.h"
#include "moebius/ops/swiglu/cases_reference.h"
#include "moebius/tensor/quantized.h"

namespace moebius::ops {
namespace {

struct Problem {
    ScaleKind scale = ScaleKind::Block128;
    DType dtype = DType::BF16, element = DType::F8E4M3, index = DType::I64;
    NamedSplits splits;
    int64_t intermediate = 0;
    GluOptions options;
    bool power_of_two = true, given = false;  // given: Tensor scales from outside
    bool scales = true, row = true, column = true, observed = true;
    bool dscales = true, again = false;  // in backward; again: the activation too
    int64_t padding = 0;
    bool bench = false;

    int64_t experts() const { return static_cast<int64_t>(splits.sizes.size()); }
    int64_t rows() const { return std::accumulate(splits.sizes.begin(), splits.sizes.end(), int64_t{0}); }
    Format format(Direction direction) const {
        return make_format(element, scale, direction, false, power_of_two);
    }
    // In backward, of type E4M3 whatever the gradients have.
    Format activation_format() const {
        return make_format(DType::F8E4M3, scale, Direction::Column, false, power_of_two);
    }
    int64_t gate(int64_t j) const {
        const int64_t b = options.interleave;
        return b == 0 ? j : j / b * 2 * b + j % b;
    }
    int64_t up(int64_t j) const { return gate(j) + (options.interleave ? options.interleave : intermediate); }
};

std::string name_of(const Problem& p) {
    std::string text = std::string(name(p.scale)) + "." + std::string(name(p.element)) + "." +
                       std::string(name(p.dtype)) + "." + p.splits.name + "." +
                       std::to_string(p.intermediate);
    for (const auto& [on, word] : {std::pair{p.options.kind == GluKind::ClampedQuickGeGlu, ".geglu"},
                                   {p.options.interleave > 0, ".interleaved"},
                                   {!p.power_of_two, ".any_scale"},
                                   {p.given, ".given"},
                                   {!p.scales, ".unscaled"},
                                   {!p.row, ".column_only"},
                                   {!p.column, ".row_only"},
                                   {!p.dscales, ".without_dscales"},
                                   {p.again, ".activation"},
                                   {p.padding > 0, ".strided"},
                                   {p.index == DType::I32, ".i32"}}) {
        if (on) text += word;
    }
    return text;
}

using reference::glu;

// An expert's numbers as the case's outputs have them, by direction.
template <class H, class Real>
void put(H& h, const Problem& p, int64_t first, int64_t rows, int64_t columns, int64_t expert,
         const std::vector<Real>& values) {
    for (const Direction direction : {Direction::Row, Direction::Column}) {
        const char* name = direction == Direction::Row ? "row" : "column";
        if (!h.has(name)) continue;
        std::vector<Real> left = values;
        quantize_codes::through_codes(left, rows, columns, p.format(direction),
                                      p.given ? static_cast<double>(h["given"][expert]) : 0);
        std::copy(left.begin(), left.end(), h[name].values.begin() + first * columns);
    }
    if (!h.has("observed")) return;
    Real most = 0;
    for (const Real value : values) most = std::max(most, std::abs(value));
    h["observed"][expert] = most;
}

template <class H>
void reference(H& h, const Problem& p, bool backward) {
    using Real = std::decay_t<decltype(h["x"][0])>;
    const int64_t columns = backward ? 2 * p.intermediate : p.intermediate;
    int64_t first = 0;
    for (int64_t e = 0; e < p.experts(); ++e) {
        const int64_t rows = p.splits.sizes[static_cast<size_t>(e)];
        std::vector<Real> values(static_cast<size_t>(rows * columns)),
            activation(static_cast<size_t>(rows * p.intermediate));
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t row = first + i;
            const Real scale = p.scales ? h["scales"][row] : Real(1);
            Real dscale = 0;
            for (int64_t j = 0; j < p.intermediate; ++j) {
                const auto pair = glu<Real>(h["x"].at(row, p.gate(j)), h["x"].at(row, p.up(j)), p.options);
                const auto at = [&](int64_t column) -> Real& {
                    return values[static_cast<size_t>(i * columns + column)];
                };
                if (!backward) {
                    at(j) = stored(scale * pair.value, p.dtype);
                    continue;
                }
                activation[static_cast<size_t>(i * p.intermediate + j)] = stored(scale * pair.value, p.dtype);
                const Real dy = h["dy"].at(row, j);
                dscale += dy * pair.value;
                at(p.gate(j)) = stored(dy * scale * pair.by_gate, p.dtype);
                at(p.up(j)) = stored(dy * scale * pair.by_up, p.dtype);
            }
            if (backward && p.dscales) h["dscales"][row] = dscale;
        }
        put(h, p, first, rows, columns, e, values);
        if (h.has("activation")) {
            quantize_codes::through_codes(activation, rows, p.intermediate, p.activation_format(),
                                          p.given ? static_cast<double>(h["given"][e]) : 0);
            std::copy(activation.begin(), activation.end(),
                      h["activation"].values.begin() + first * p.intermediate);
        }
        first += rows;
    }
}

// N(0, 1) of magnitudes that differ from row to row; NaN past the sum.
TensorSpec rows_of(const Problem& p, const char* name, int64_t columns) {
    return {.name = name,
            .shape = {p.splits.capacity, columns},
            .dtype = p.dtype,
            .value =
                [=, limit = p.rows() * columns](int64_t i, const Philox& r) {
                    if (i >= limit) return std::nan("");
                    return std::ldexp(r.normal(static_cast<uint64_t>(i)), static_cast<int>(i / columns % 3));
                },
            .row_padding = p.padding};
}

void add_tensors(Case& c, const Problem& p, bool backward) {
    const int64_t columns = backward ? 2 * p.intermediate : p.intermediate;
    c.tensors.push_back(rows_of(p, "x", 2 * p.intermediate));
    if (backward) c.tensors.push_back(rows_of(p, "dy", p.intermediate));
    c.tensors.push_back({.name = "split_sizes",
                         .shape = {p.experts()},
                         .dtype = p.index,
                         .value = [sizes = p.splits.sizes](int64_t i, const Philox&) {
                             return static_cast<double>(sizes[static_cast<size_t>(i)]);
                         }});
    if (p.scales) {
        c.tensors.push_back(
            {.name = "scales", .shape = {p.splits.capacity}, .value = [](int64_t i, const Philox& r) {
                 return 0.1 + 0.8 * r.uniform(static_cast<uint64_t>(i));
             }});
    }
    if (p.given) {
        c.tensors.push_back({.name = "given", .shape = {p.experts()}, .value = [](int64_t i, const Philox&) {
                                 return 3.0 + static_cast<double>(i);
                             }});
    }
    if (p.bench) {
        if (p.again && p.scale == ScaleKind::Tensor) {
            c.tensors.push_back({.name = "activation_amax",
                                 .shape = {p.experts()},
                                 .value = [](int64_t, const Philox&) { return 4.0; }});
        }
        return;
    }
    for (const auto& [on, name] : {std::pair{p.row, "row"}, {p.column, "column"}}) {
        if (!on) continue;
        c.tensors.push_back({.name = name,
                             .shape = {p.splits.capacity, columns},
                             .role = Role::Output,
                             .written = [limit = p.rows() * columns](int64_t i) { return i < limit; },
                             .roundings = 64});
    }
    if (p.again) {
        c.tensors.push_back({.name = "activation",
                             .shape = {p.splits.capacity, p.intermediate},
                             .role = Role::Output,
                             .written = [limit = p.rows() * p.intermediate](int64_t i) { return i < limit; },
                             .roundings = 64});
    }
    if (p.observed)
        c.tensors.push_back(
            {.name = "observed", .shape = {p.experts()}, .role = Role::Output, .roundings = 1 << 16});
    if (backward && p.dscales) {
        c.tensors.push_back({.name = "dscales",
                             .shape = {p.splits.capacity},
                             .role = Role::Output,
                             .written = [limit = p.rows()](int64_t i) { return i < limit; },
                             // Terms of both signs: one row's sum may be far smaller than they are.
                             .roundings = 256 * p.intermediate});
    }
}

// Runs `op(target)` on codes of its own, and says what numbers they stand for.
template <class F>
void with_codes(const Problem& p, const Views& v, int64_t columns, const Exec& exec, F&& op) {
    const Quantized codes = Quantized::empty("codes",
                                             {.element = p.element,
                                              .scale = p.scale,
                                              .power_of_two = p.power_of_two,
                                              .row = p.row,
                                              .column = p.column,
                                              .matrix = {p.splits.capacity, columns, p.experts()}},
                                             exec);
    op({.row = codes.row(),
        .column = codes.column(),
        .rule = {.scale = v["given"], .observed_amax = v["observed"]}});
    for (const Direction direction : {Direction::Row, Direction::Column}) {
        const View out = v[direction == Direction::Row ? "row" : "column"];
        if (!out) continue;
        dequantize({.from = codes.operand(direction),
                    .direction = direction,
                    .split_sizes = v["split_sizes"],
                    .out = out},
                   exec);
    }
}

// What a run, or a mutant of it, is told.
struct Inputs {
    GluOptions options;
    View scales, split_sizes;
};
using Change = std::function<void(Inputs&)>;

// Backward's activation, and whose scales it has: those that are given, or as forward found them.
struct Again {
    Quantized codes;
    Tensor amax;
    QuantizeTarget target;

    Again(const Problem& p, const Views& v, const Inputs& in, const Exec& exec) {
        if (!p.again) return;
        codes = Quantized::empty("activation",
                                 {.element = DType::F8E4M3,
                                  .scale = p.scale,
                                  .power_of_two = p.power_of_two,
                                  .row = false,
                                  .column = true,
                                  .matrix = {p.splits.capacity, p.intermediate, p.experts()}},
                                 exec);
        target = {.row = {}, .column = codes.column(), .rule = {.scale = v["given"]}};
        if (p.scale != ScaleKind::Tensor || p.given) return;
        target.rule.amax = v["activation_amax"];
        if (p.bench) return;
        amax = Tensor::empty("amax", {p.experts()}, DType::F32, exec);
        target.rule.amax = amax;
        scaled_glu_quantize(
            {.options = in.options,
             .x = v["x"],
             .scales = in.scales,
             .split_sizes = in.split_sizes,
             .activation = {.row = {}, .column = codes.column(), .rule = {.observed_amax = amax}}},
            exec);
    }
};

void run(const Problem& p, bool backward, const Views& v, const Exec& exec, const Change& change) {
    Inputs in{p.options, v["scales"], v["split_sizes"]};
    if (change) change(in);
    with_codes(p, v, backward ? 2 * p.intermediate : p.intermediate, exec, [&](const QuantizeTarget& target) {
        if (backward) {
            const Again activation(p, v, in, exec);
            scaled_glu_backward_quantize({.options = in.options,
                                          .x = v["x"],
                                          .scales = in.scales,
                                          .split_sizes = in.split_sizes,
                                          .dy = v["dy"],
                                          .dx = target,
                                          .activation = activation.target,
                                          .dscales = v["dscales"]},
                                         exec);
            if (const View out = v["activation"]) {
                dequantize({.from = activation.codes.column(),
                            .direction = Direction::Column,
                            .split_sizes = v["split_sizes"],
                            .out = out},
                           exec);
            }
        } else {
            scaled_glu_quantize({.options = in.options,
                                 .x = v["x"],
                                 .scales = in.scales,
                                 .split_sizes = in.split_sizes,
                                 .activation = target},
                                exec);
        }
    });
}

std::vector<Mutant> mutants_of(const Problem& p, bool backward) {
    std::vector<Mutant> mutants;
    if (p.rows() < 4) return mutants;
    const auto with = [&](const char* name, auto change) {
        mutants.push_back({name, [=](const Views& v, const Exec& exec) {
                               run(p, backward, v, exec, [&](Inputs& in) { change(in, v); });
                           }});
    };
    if (p.intermediate % 2 == 0 && p.options.interleave == 0) {
        with("gate and up in other blocks",
             [half = p.intermediate / 2](Inputs& in, const Views&) { in.options.interleave = half; });
    }
    if (p.scales) with("drops the routing scale", [](Inputs& in, const Views&) { in.scales = {}; });
    if (p.column && p.scale != ScaleKind::Tensor && p.experts() > 1 && p.splits.sizes.back() > 0) {
        mutants.push_back(
            {"leaves the last expert's codes as they were", [=](const Views& v, const Exec& exec) {
                 SharedVector<int64_t> sizes(p.splits.sizes.begin(), p.splits.sizes.end());
                 sizes.back() = 0;
                 run(p, backward, v, exec,
                     [&](Inputs& in) { in.split_sizes = View(sizes.data(), DType::I64, {p.experts()}); });
             }});
    }
    return mutants;
}

Case glu_case(const Problem& p, bool backward) {
    Case c;
    c.op = backward ? "scaled_glu_backward_quantize" : "scaled_glu_quantize";
    c.name = name_of(p);
    c.group = p.bench ? "bench" : p.splits.name == "balanced" ? "basic" : "edge";
    c.dtype = p.dtype;
    c.bench = p.bench;
    c.one_result = true;
    add_tensors(c, p, backward);
    c.run = [=](const Views& v, const Exec& exec) { run(p, backward, v, exec, {}); };
    set_reference(c, [=](auto& h) { reference(h, p, backward); });
    if (!p.bench) c.mutants = mutants_of(p, backward);
    // One read of what is there, codes in both directions.
    c.cost = [=](const Views& v) -> Cost {
        const double columns = static_cast<double>(backward ? 2 * p.intermediate : p.intermediate);
        const double written = 2 * columns * static_cast<double>(p.splits.capacity);
        return {0, static_cast<double>(v["x"].bytes()) + written +
                       (backward ? static_cast<double>(v["dy"].bytes()) : 0) + (p.again ? written / 4 : 0)};
    };
    return c;
}

void add(std::vector<Case>& cases, Problem p) {
    p.dscales = true;
    cases.push_back(glu_case(p, false));
    cases.push_back(glu_case(p, true));
    p.again = true;
    cases.push_back(glu_case(p, true));
    p.dscales = p.again = false;
    cases.push_back(glu_case(p, true));
}

}  // namespace

void glu_quantize_cases(std::vector<Case>& cases) {
    std::vector<NamedSplits> splits = edge_splits();
    // Several blocks of 128 rows, whole ones and short ones.
    splits.push_back({"blocks", {300, 0, 17, 128, 1}, 450});
    for (const NamedSplits& sizes : splits) {
        for (const ScaleKind scale : {ScaleKind::Tensor, ScaleKind::Block128, ScaleKind::MX32}) {
            Problem p{.scale = scale, .splits = sizes, .intermediate = 256};
            add(cases, p);
            // No size a multiple of anything.
            p.intermediate = 75;
            p.padding = 3;
            p.index = DType::I32;
            p.power_of_two = scale == ScaleKind::MX32;
            p.element = DType::F8E5M2;
            add(cases, p);
        }
        Problem p{.scale = ScaleKind::Tensor, .splits = sizes, .intermediate = 128};
        p.given = true;
        p.options = {.kind = GluKind::ClampedQuickGeGlu};
        add(cases, p);
    }
    const NamedSplits tail{"unused_rows", {7, 0, 19, 130}, 170};
    for (const DType dtype : {DType::F32, DType::BF16}) {
        Problem p{.dtype = dtype, .splits = tail, .intermediate = 160};
        p.options.interleave = 32;
        add(cases, p);
        p.options.interleave = 5;
        p.scales = false;
        add(cases, p);
        p = {.dtype = dtype, .splits = tail, .intermediate = 128};
        p.column = p.observed = false;
        add(cases, p);
        p.column = true;
        p.row = false;
        p.power_of_two = false;
        add(cases, p);
    }
    // Wider than one warp's columns of scaled_glu_backward, whose sums of dscales backward has to meet.
    for (const ScaleKind scale : {ScaleKind::Tensor, ScaleKind::Block128, ScaleKind::MX32}) {
        Problem p{.scale = scale, .splits = {"wide", {5, 0, 130, 17}, 160}, .intermediate = 2176};
        add(cases, p);
        p.element = DType::F8E5M2;
        p.power_of_two = scale == ScaleKind::MX32;
        p.given = scale == ScaleKind::Tensor;
        p.options = {.kind = GluKind::ClampedQuickGeGlu};
        add(cases, p);
        // Forward: several tiles of 256 columns a block, and blocks with fewer.
        p.intermediate = 2304;
        cases.push_back(glu_case(p, false));
    }
    for (const auto& [sizes, intermediate] :
         {std::pair{NamedSplits{"8_experts", std::vector<int64_t>(8, 4096), 32768}, int64_t{14336}},
          {NamedSplits{"64_experts", std::vector<int64_t>(64, 2048), 131072}, int64_t{1024}}}) {
        for (const ScaleKind scale : {ScaleKind::Block128, ScaleKind::Tensor, ScaleKind::MX32}) {
            Problem p{.scale = scale, .splits = sizes, .intermediate = intermediate};
            p.observed = false;
            p.bench = true;
            for (const bool backward : {false, true}) {
                p.again = backward;
                cases.push_back(glu_case(p, backward));
                cases.back().large = true;
            }
        }
    }
}

}  // namespace moebius::ops
