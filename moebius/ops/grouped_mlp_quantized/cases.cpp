#include <algorithm>
#include <numeric>

#include "moebius/ops/case.h"
#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"
#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"
#include "moebius/ops/quantize/cases_codes.h"
#include "moebius/ops/swiglu/cases_reference.h"
#include "moebius/runtime/transfer.h"
#include "moebius/tensor/quantized.h"

namespace moebius::ops {
namespace {

struct Problem {
    ScaleKind scale = ScaleKind::Block128;
    DType dtype = DType::BF16, element = DType::F8E4M3, index = DType::I64;  // element: of gradients
    DType grad = DType::F32;                                                 // of the weights
    NamedSplits splits;
    int64_t hidden = 0, intermediate = 0;
    GluOptions options;
    bool power_of_two = true, given = false;  // given: Tensor scales of what the op makes, from outside
    bool scales = true, accumulate = false, fast = false;
    bool overwrite = false;     // backward may use C as scratch, and ends with dC
    bool weights_kept = false;  // bench: the weights' codes are there
    bool bench = false;

    int64_t experts() const { return static_cast<int64_t>(splits.sizes.size()); }
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

std::string name_of(const Problem& p) {
    std::string text = std::string(name(p.scale)) + "." + std::string(name(p.element)) + "." +
                       std::string(name(p.dtype)) + "." + p.splits.name + "." + std::to_string(p.hidden) +
                       "x" + std::to_string(p.intermediate);
    for (const auto& [on, word] : {std::pair{p.options.kind == GluKind::ClampedQuickGeGlu, ".geglu"},
                                   {p.options.interleave > 0, ".interleaved"},
                                   {!p.power_of_two, ".any_scale"},
                                   {p.given, ".given"},
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

// ---- Runs ------------------------------------------------------------------------------------------------

// What a mutant may change.
struct Inputs {
    GluOptions options;
    View x, gate_up, down, scales, split_sizes;
    View x_scales_of;  // (M) i32: x's scales are those of these rows' codes
};
using Change = std::function<void(Inputs&)>;

// A tensor in both directions, as quantize makes it from high precision.
class Maker {
  public:
    Maker(const Problem& p, const Exec& exec) : p_(p), exec_(exec) {}

    Quantized empty(DType element, int64_t columns, bool row, bool column) const {
        return Quantized::empty(
            "codes", spec(element, {p_.splits.capacity, columns, p_.experts()}, row, column), exec_);
    }
    Quantized rows(const View& values, const View& split_sizes, DType element, bool row, bool column,
                   const View& row_index = {}) const {
        return make({.values = values, .split_sizes = split_sizes, .row_index = row_index}, element, row,
                    column);
    }
    Quantized weight(const View& values, bool row, bool column) const {
        return make({.values = values}, DType::F8E4M3, row, column);
    }

  private:
    QuantizedSpec spec(DType element, const MatrixShape& matrix, bool row, bool column) const {
        return {.element = element,
                .scale = p_.scale,
                .power_of_two = p_.power_of_two,
                .row = row,
                .column = column,
                .matrix = matrix};
    }
    Quantized make(const QuantizeSource& source, DType element, bool row, bool column) const {
        Quantized made = Quantized::empty("codes", spec(element, matrix_of(source), row, column), exec_);
        Tensor amax;
        if (p_.scale == ScaleKind::Tensor) {
            amax = Tensor::empty("amax", {made.spec().matrix.experts}, DType::F32, exec_);
            tensor_amax({.source = source, .amax = amax}, exec_);
        }
        quantize({.source = source, .row = made.row(), .column = made.column(), .amax = amax}, exec_);
        return made;
    }

    const Problem& p_;
    const Exec& exec_;
};

// Of the benchmark: codes that are there before what is timed. `of` is one of kKept.
struct Kept {
    const char* name;
    Direction direction;
    MatrixShape matrix;
    double spread;  // of the numbers that the codes stand for

    Format format(const Problem& p) const { return p.format(DType::F8E4M3, direction, matrix.weight); }
    Operand operand(const Problem& p, const Views& v) const {
        const OperandShapes shapes = operand_shapes(format(p), direction, matrix);
        return {.data = v[std::string(name) + "_data"],
                .scale = v[std::string(name) + "_scale"],
                .format = format(p),
                .transposed = shapes.transposed};
    }
    void add_tensors(const Problem& p, Case& c) const {
        const OperandShapes shapes = operand_shapes(format(p), direction, matrix);
        c.tensors.push_back({.name = std::string(name) + "_data",
                             .shape = shapes.data,
                             .dtype = DType::F8E4M3,
                             .value = [](int64_t i, const Philox& r) {
                                 const auto value =
                                     static_cast<float>(64 * r.normal(static_cast<uint64_t>(i)));
                                 return static_cast<double>(to_f8e4m3(value).bits);
                             }});
        c.tensors.push_back({.name = std::string(name) + "_scale",
                             .shape = shapes.scale,
                             .dtype = shapes.scale_dtype,
                             .value = [=, spread = spread](int64_t, const Philox&) {
                                 return std::exp2(std::round(std::log2(spread / 64)));
                             }});
    }
};
Kept kept_x(const Problem& p) {
    return {"x_column", Direction::Column, {p.splits.capacity, p.hidden, p.experts()}, 1};
}
Kept kept_gate_up(const Problem& p, Direction direction) {
    return {direction == Direction::Row ? "gate_up_row" : "gate_up_column",
            direction,
            {2 * p.intermediate, p.hidden, p.experts(), true},
            2 / std::sqrt(static_cast<double>(p.hidden))};
}
Kept kept_down(const Problem& p, Direction direction) {
    return {direction == Direction::Row ? "down_row" : "down_column",
            direction,
            {p.hidden, p.intermediate, p.experts(), true},
            1 / std::sqrt(static_cast<double>(p.intermediate))};
}

Inputs inputs_of(const Problem& p, const Views& v, const Change& change) {
    Inputs in{p.options, v["x"], v["gate_up"], v["down"], v["scales"], v["split_sizes"], {}};
    if (change) change(in);
    return in;
}

void run_forward(const Problem& p, const Views& v, const Exec& exec, const Change& change) {
    const Inputs in = inputs_of(p, v, change);
    const Maker make(p, exec);
    const Quantized x = make.rows(in.x, in.split_sizes, DType::F8E4M3, true, p.bench),
                    // Column-wise too in half the cases: backward makes that again.
        activation = make.empty(DType::F8E4M3, p.intermediate, true, !p.bench && p.index == DType::I64);
    Quantized gate_up, down;
    if (!p.weights_kept) {
        gate_up = make.weight(in.gate_up, true, false);
        down = make.weight(in.down, true, false);
    }
    const Direction across = Direction::Row;
    Operand x_row = x.row();
    Quantized shifted;
    if (in.x_scales_of) {
        shifted = make.rows(in.x, in.split_sizes, DType::F8E4M3, true, false, in.x_scales_of);
        x_row.scale = shifted.row().scale;
    }
    grouped_mlp_quantized({.options = in.options,
                           .x = x_row,
                           .gate_up = p.weights_kept ? kept_gate_up(p, across).operand(p, v) : gate_up.row(),
                           .down = p.weights_kept ? kept_down(p, across).operand(p, v) : down.row(),
                           .scales = in.scales,
                           .split_sizes = in.split_sizes,
                           .activation = {.row = activation.row(),
                                          .column = activation.column(),
                                          .rule = {.scale = v["given"]}},
                           .c = v["c"],
                           .y = v["y"],
                           .fast_accumulation = p.fast},
                          exec);
}

void run_backward(const Problem& p, const Views& v, const Exec& exec, const Change& change) {
    const Inputs in = inputs_of(p, v, change);
    const Maker make(p, exec);
    const QuantizeRule rule{.scale = v["given"]};
    QuantizeRule rule_again = rule;
    const Quantized dy = make.rows(v["dy"], in.split_sizes, p.element, true, true),
                    dc = make.empty(p.element, 2 * p.intermediate, true, true),
                    activation = make.empty(DType::F8E4M3, p.intermediate, false, true);
    Quantized x, gate_up, down;
    Tensor amax;
    if (p.bench) {
        rule_again.amax = v["activation_amax"];
    } else {
        x = make.rows(in.x, in.split_sizes, DType::F8E4M3, false, true);
        if (p.scale == ScaleKind::Tensor && !p.given) {
            // As forward leaves it.
            rule_again.amax = amax = Tensor::empty("amax", {p.experts()}, DType::F32, exec);
            scaled_glu_quantize(
                {.options = in.options,
                 .x = v["c"],
                 .scales = in.scales,
                 .split_sizes = in.split_sizes,
                 .activation = {.column = activation.column(), .rule = {.observed_amax = amax}}},
                exec);
        }
    }
    if (!p.weights_kept) {
        gate_up = make.weight(in.gate_up, false, true);
        down = make.weight(in.down, false, true);
    }
    // A copy, so that the case may run again.
    View c = v["c"];
    const auto bytes = static_cast<size_t>(c.bytes());
    const Scratch copied("case.c", p.overwrite ? bytes : 0, exec);
    if (p.overwrite) {
        copy(copied.as<void>(), c.data, bytes, exec);
        c.data = copied.as<void>();
    }
    const Direction down_rows = Direction::Column;
    const float beta = p.accumulate ? 1 : 0;
    GroupedMlpQuantizedBackwardArgs args{
        .options = in.options,
        .x = p.bench ? kept_x(p).operand(p, v) : x.column(),
        .gate_up = p.weights_kept ? kept_gate_up(p, down_rows).operand(p, v) : gate_up.column(),
        .down = p.weights_kept ? kept_down(p, down_rows).operand(p, v) : down.column(),
        .dy = dy.row(),
        .dy_column = dy.column(),
        .c = c,
        .scales = in.scales,
        .split_sizes = in.split_sizes,
        .dc = {.row = dc.row(), .column = dc.column(), .rule = rule},
        .activation = {.column = activation.column(), .rule = rule_again},
        .dx = v["dx"],
        .dgate_up = v["dgate_up"],
        .ddown = v["ddown"],
        .dscales = v["dscales"],
        .beta_gate_up = beta,
        .beta_down = beta,
        .fast_dgrad = p.fast,
        .fast_wgrad = p.fast,
        .overwrite_c = p.overwrite};
    if (!p.overwrite) return grouped_mlp_quantized_backward(args, exec);
    // It ends with dC, and somebody else goes on.
    const GroupedMlpQuantizedBackwardArgs all = args;
    args.x = args.gate_up = args.dy_column = {};
    args.dx = args.dgate_up = args.ddown = {};
    grouped_mlp_quantized_backward(args, exec);
    grouped_gemm_quantized({.kind = GemmKind::Wgrad,
                            .a = all.dy_column,
                            .b = activation.column(),
                            .out = all.ddown,
                            .split_sizes = in.split_sizes,
                            .beta = beta,
                            .fast_accumulation = p.fast},
                           exec);
    grouped_gemm_quantized({.kind = GemmKind::Wgrad,
                            .a = dc.column(),
                            .b = all.x,
                            .out = all.dgate_up,
                            .split_sizes = in.split_sizes,
                            .beta = beta,
                            .fast_accumulation = p.fast},
                           exec);
    grouped_gemm_quantized({.kind = GemmKind::Dgrad,
                            .a = dc.row(),
                            .b = all.gate_up,
                            .out = all.dx,
                            .split_sizes = in.split_sizes,
                            .fast_accumulation = p.fast},
                           exec);
}

// ---- Mutants ---------------------------------------------------------------------------------------------

// A copy of the experts' weights with gate and up exchanged.
SharedVector<char> swapped_gate_up(const Problem& p, const View& weight) {
    SharedVector<char> copy(static_cast<size_t>(weight.bytes()));
    const auto half = static_cast<size_t>(bytes_of(p.dtype, p.intermediate * p.hidden));
    for (int64_t e = 0; e < p.experts(); ++e) {
        const auto* from = static_cast<const char*>(weight.at(e).data);
        char* to = copy.data() + static_cast<size_t>(e) * 2 * half;
        std::copy(from + half, from + 2 * half, to);
        std::copy(from, from + half, to + half);
    }
    return copy;
}
// Each expert's weight in the place of the next one's.
SharedVector<char> stale_experts(const Problem& p, const View& weight) {
    SharedVector<char> copy(static_cast<size_t>(weight.bytes()));
    const size_t each = copy.size() / static_cast<size_t>(p.experts());
    const auto* from = static_cast<const char*>(weight.data);
    std::copy(from, from + copy.size(), copy.begin());
    std::rotate(copy.begin(), copy.begin() + static_cast<std::ptrdiff_t>(each), copy.end());
    return copy;
}

std::vector<Mutant> mutants_of(const Problem& p,
                               void (*op)(const Problem&, const Views&, const Exec&, const Change&)) {
    std::vector<Mutant> mutants;
    if (p.rows() < 4) return mutants;
    const auto with_weight = [&](const char* name, auto made, View Inputs::*which) {
        mutants.push_back({name, [=](const Views& v, const Exec& exec) {
                               SharedVector<char> copy;
                               op(p, v, exec, [&](Inputs& in) {
                                   copy = made(p, in.*which);
                                   in.*which = View(copy.data(), p.dtype, (in.*which).shape);
                               });
                           }});
    };
    if (p.options.interleave == 0) with_weight("swaps gate and up", swapped_gate_up, &Inputs::gate_up);
    if (p.experts() > 1) with_weight("another expert's weight", stale_experts, &Inputs::down);
    if (p.scales) {
        mutants.push_back({"drops the routing scale", [=](const Views& v, const Exec& exec) {
                               op(p, v, exec, [](Inputs& in) { in.scales = {}; });
                           }});
    }
    if (op == run_forward && p.scale != ScaleKind::Tensor) {
        mutants.push_back({"the scale of the row below", [=](const Views& v, const Exec& exec) {
                               SharedVector<int32_t> below(static_cast<size_t>(p.splits.capacity));
                               for (int64_t i = 0; i < p.rows(); ++i)
                                   below[static_cast<size_t>(i)] = static_cast<int32_t>((i + 1) % p.rows());
                               op(p, v, exec, [&](Inputs& in) {
                                   in.x_scales_of = View(below.data(), DType::I32, {p.splits.capacity});
                               });
                           }});
    }
    return mutants;
}

// ---- Cases -----------------------------------------------------------------------------------------------

// Rows of magnitudes that differ, so that the scale of another shows; NaN past the sum.
TensorSpec rows_of(const Problem& p, const char* name, int64_t columns, bool uneven) {
    return {.name = name,
            .shape = {p.splits.capacity, columns},
            .dtype = p.dtype,
            .value = [=, limit = p.rows() * columns](int64_t i, const Philox& r) {
                if (i >= limit) return std::nan("");
                return std::ldexp(r.normal(static_cast<uint64_t>(i)),
                                  uneven ? static_cast<int>(i / columns % 3) - 1 : 0);
            }};
}

std::vector<TensorSpec> shared_tensors(const Problem& p) {
    const double in = 1 / std::sqrt(static_cast<double>(p.hidden)),
                 out = 1 / std::sqrt(static_cast<double>(p.intermediate));
    const auto weight = [&](const char* name, const Shape& shape, double spread) -> TensorSpec {
        return {.name = name, .shape = shape, .dtype = p.dtype, .value = [=](int64_t i, const Philox& r) {
                    return spread * r.normal(static_cast<uint64_t>(i));
                }};
    };
    std::vector<TensorSpec> tensors = {rows_of(p, "x", p.hidden, !p.bench),
                                       {.name = "split_sizes",
                                        .shape = {p.experts()},
                                        .dtype = p.index,
                                        .value = [sizes = p.splits.sizes](int64_t i, const Philox&) {
                                            return static_cast<double>(sizes[static_cast<size_t>(i)]);
                                        }}};
    if (!p.weights_kept) {
        tensors.push_back(weight("gate_up", {p.experts(), 2 * p.intermediate, p.hidden}, 2 * in));
        tensors.push_back(weight("down", {p.experts(), p.hidden, p.intermediate}, out));
    }
    if (p.scales) {
        tensors.push_back(
            {.name = "scales", .shape = {p.splits.capacity}, .value = [](int64_t i, const Philox& r) {
                 return 0.1 + 0.8 * r.uniform(static_cast<uint64_t>(i));
             }});
    }
    if (p.given) {
        tensors.push_back({.name = "given", .shape = {p.experts()}, .value = [](int64_t i, const Philox&) {
                               return 2.0 + 0.25 * static_cast<double>(i);
                           }});
    }
    return tensors;
}

TensorSpec output(const Problem& p, const char* name, int64_t columns) {
    return {.name = name,
            .shape = {p.splits.capacity, columns},
            .dtype = p.dtype,
            .role = Role::Output,
            .written = [limit = p.rows() * columns](int64_t i) { return i < limit; },
            .roundings = p.hidden + p.intermediate};
}

Case case_of(const Problem& p, const char* op) {
    Case c;
    c.op = op;
    c.name = name_of(p);
    c.group = p.bench ? "bench" : p.splits.name == "balanced" ? "basic" : "edge";
    c.dtype = p.dtype;
    c.bench = p.bench;
    c.one_result = true;
    c.tensors = shared_tensors(p);
    return c;
}

Case forward_case(const Problem& p) {
    Case c = case_of(p, "grouped_mlp_quantized");
    c.tensors.push_back(output(p, "c", 2 * p.intermediate));
    c.tensors.push_back(output(p, "y", p.hidden));
    if (p.weights_kept) {
        kept_gate_up(p, Direction::Row).add_tensors(p, c);
        kept_down(p, Direction::Row).add_tensors(p, c);
    }
    c.run = [=](const Views& v, const Exec& exec) { run_forward(p, v, exec, {}); };
    set_reference(c, [=](auto& h) { forward(h, p); });
    if (!p.bench) c.mutants = mutants_of(p, run_forward);
    const double products = static_cast<double>(p.rows()) * static_cast<double>(p.hidden * p.intermediate);
    c.cost = [=](const Views&) -> Cost { return {6 * products, 0}; };
    return c;
}

Case backward_case(const Problem& p) {
    Case c = case_of(p, "grouped_mlp_quantized_backward");
    const Role role = p.accumulate ? Role::InOut : Role::Output;
    c.tensors.push_back(rows_of(p, "c", 2 * p.intermediate, false));
    c.tensors.push_back(rows_of(p, "dy", p.hidden, !p.bench));
    c.tensors.push_back(output(p, "dx", p.hidden));
    c.tensors.push_back({.name = "dgate_up",
                         .shape = {p.experts(), 2 * p.intermediate, p.hidden},
                         .dtype = p.grad,
                         .role = role,
                         .roundings = p.rows()});
    c.tensors.push_back({.name = "ddown",
                         .shape = {p.experts(), p.hidden, p.intermediate},
                         .dtype = p.grad,
                         .role = role,
                         .roundings = p.rows()});
    if (p.scales) {
        c.tensors.push_back({.name = "dscales",
                             .shape = {p.splits.capacity},
                             .role = Role::Output,
                             .written = [limit = p.rows()](int64_t i) { return i < limit; },
                             .roundings = p.hidden + p.intermediate});
    }
    if (p.bench) {
        kept_x(p).add_tensors(p, c);
        if (p.scale == ScaleKind::Tensor) {
            c.tensors.push_back({.name = "activation_amax",
                                 .shape = {p.experts()},
                                 .value = [](int64_t, const Philox&) { return 4.0; }});
        }
    }
    if (p.weights_kept) {
        kept_gate_up(p, Direction::Column).add_tensors(p, c);
        kept_down(p, Direction::Column).add_tensors(p, c);
    }
    c.run = [=](const Views& v, const Exec& exec) { run_backward(p, v, exec, {}); };
    set_reference(c, [=](auto& h) { backward(h, p); });
    if (!p.bench) c.mutants = mutants_of(p, run_backward);
    const double products = static_cast<double>(p.rows()) * static_cast<double>(p.hidden * p.intermediate);
    c.cost = [=](const Views&) -> Cost { return {12 * products, 0}; };
    return c;
}

void add(std::vector<Case>& cases, const Problem& p) {
    cases.push_back(forward_case(p));
    cases.push_back(backward_case(p));
}

void add_bench(std::vector<Case>& cases) {
    for (const auto& [splits, hidden, intermediate, large] :
         {std::tuple{NamedSplits{"8_experts", std::vector<int64_t>(8, 4096), 32768}, 4096, 14336, true},
          {NamedSplits{"64_experts", std::vector<int64_t>(64, 2048), 131072}, 2048, 1024, true},
          {NamedSplits{"learned", {450, 370, 409, 400}, 1640}, 256, 256, false}}) {
        for (const ScaleKind scale : {ScaleKind::Block128, ScaleKind::Tensor}) {
            Problem p{.scale = scale, .splits = splits, .hidden = hidden, .intermediate = intermediate};
            p.bench = true;
            for (const bool kept : {false, true}) {
                p.weights_kept = kept;
                add(cases, p);
                for (size_t i = cases.size() - 2; i < cases.size(); ++i) cases[i].large = large;
            }
        }
    }
}

}  // namespace

void grouped_mlp_quantized_cases(std::vector<Case>& cases) {
    std::vector<NamedSplits> splits = edge_splits();
    // Several blocks of 128 rows, whole ones and short ones, and rows that nobody has.
    splits.push_back({"blocks", {140, 0, 17, 128, 1}, 300});
    for (const NamedSplits& sizes : splits) {
        for (const ScaleKind scale : {ScaleKind::Tensor, ScaleKind::Block128, ScaleKind::MX32}) {
            Problem p{.scale = scale, .splits = sizes, .hidden = 48, .intermediate = 128};
            add(cases, p);
            p.index = DType::I32;
            p.element = DType::F8E5M2;
            p.accumulate = true;
            p.power_of_two = scale == ScaleKind::MX32;
            add(cases, p);
        }
        Problem p{.scale = ScaleKind::Tensor, .splits = sizes, .hidden = 48, .intermediate = 128};
        p.given = p.fast = true;
        add(cases, p);
    }
    const NamedSplits tail{"unused_rows", {7, 0, 19, 4}, 37};
    for (const ScaleKind scale : {ScaleKind::Tensor, ScaleKind::Block128, ScaleKind::MX32}) {
        // No size a multiple of anything; interleaved; in fp32.
        Problem p{.scale = scale, .dtype = DType::F32, .splits = tail, .hidden = 33, .intermediate = 20};
        p.options.interleave = 5;
        add(cases, p);
        p.dtype = DType::BF16;
        p.options = {.kind = GluKind::ClampedQuickGeGlu};
        p.scales = false;
        add(cases, p);
        // Tiles of 256 columns and what is left of them; gradients in bf16.
        p = {.scale = scale, .splits = {"tiles", {130, 0, 9}, 150}, .hidden = 272, .intermediate = 384};
        p.grad = DType::BF16;
        add(cases, p);
        p.options = {.kind = GluKind::ClampedQuickGeGlu};
        p.accumulate = true;
        add(cases, p);
        p.overwrite = true;
        cases.push_back(backward_case(p));
    }
    // More than two tiles a block of any card.
    NamedSplits two_each{"two_tiles_each", {}, 380};
    for (int64_t e = 0; e < 40; ++e) two_each.sizes.push_back(5 + e % 9);
    add(cases, {.scale = ScaleKind::MX32, .splits = two_each, .hidden = 32, .intermediate = 1024});
    add_bench(cases);
}

}  // namespace moebius::ops
