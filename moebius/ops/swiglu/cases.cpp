#include <numeric>

#include "moebius/ops/case.h"
#include "moebius/ops/swiglu/swiglu.h"

namespace moebius::ops {
namespace {

// The exponential within 2 ulp, then a handful of products.
constexpr int64_t kElementRoundings = 16;

struct Setup {
    DType dtype = DType::F32;
    int64_t rows = 0, intermediate = 0;
    GluOptions options;
    bool scales = true;
    std::vector<int64_t> splits;  // none: all rows
    std::string splits_name;
    DType splits_dtype = DType::I32;
    bool activation = false, in_place = false;  // backward: y once more, dx over x
    bool at_bounds = false;                     // values on the clamps and just outside
    int64_t row_padding = 0;
    bool bench = false;

    int64_t used() const {
        return splits.empty() ? rows : std::accumulate(splits.begin(), splits.end(), int64_t{0});
    }
    std::string label() const {
        return std::string(name(dtype)) + (options.kind == GluKind::SwiGlu ? "" : ".clamped") +
               (options.interleave ? ".interleave" + std::to_string(options.interleave) : "") + "." +
               std::to_string(rows) + "x" + std::to_string(intermediate) + (scales ? "" : ".unscaled") +
               (splits.empty() ? "" : "." + splits_name + (splits_dtype == DType::I64 ? ".i64" : "")) +
               (at_bounds ? ".at_bounds" : "") + (activation ? ".with_y" : "") +
               (in_place ? ".in_place" : "") + (row_padding ? ".strided" : "");
    }
    Case base(const char* op) const {
        Case c;
        c.op = op;
        c.name = label();
        c.group = bench ? "bench" : !splits.empty() ? "splits" : in_place || row_padding ? "edge" : "basic";
        c.dtype = dtype;
        c.bench = bench;
        c.tensors = {input("x", 2 * intermediate)};
        if (scales)
            c.tensors.push_back(
                {.name = "scales", .shape = {rows}, .value = [](int64_t i, const Philox& random) {
                     return 0.05 + 0.95 * random.uniform(static_cast<uint64_t>(i));
                 }});
        if (!splits.empty()) {
            const auto sizes = splits;
            c.tensors.push_back({.name = "split_sizes",
                                 .shape = {static_cast<int64_t>(sizes.size())},
                                 .dtype = splits_dtype,
                                 .value = [=](int64_t i, const Philox&) {
                                     return static_cast<double>(sizes[static_cast<size_t>(i)]);
                                 }});
        }
        return c;
    }
    // Values wide enough to reach the clamps and the flat ends of the sigmoid.
    TensorSpec input(const char* name, int64_t columns) const {
        const double limit = options.limit;
        const bool bounds = at_bounds;
        return {.name = name,
                .shape = {rows, columns},
                .dtype = dtype,
                .value =
                    [=](int64_t i, const Philox& random) {
                        const auto index = static_cast<uint64_t>(i);
                        const double chosen[] = {limit, -limit, limit * 1.01, -limit * 1.01};
                        return bounds ? chosen[random.below(index, 4)] : 4.0 * random.normal(index);
                    },
                .row_padding = row_padding,
                .roundings = kElementRoundings};
    }
    TensorSpec output(const char* name, int64_t columns) const {
        const int64_t end = used() * columns;
        return {.name = name,
                .shape = {rows, columns},
                .dtype = dtype,
                .role = Role::Output,
                .written = [=](int64_t i) { return i < end; },
                .row_padding = row_padding,
                .roundings = kElementRoundings};
    }
    int64_t gate_column(int64_t j) const {
        const int64_t b = options.interleave ? options.interleave : intermediate;
        return j / b * 2 * b + j % b;
    }
    int64_t up_column(int64_t j) const {
        return gate_column(j) + (options.interleave ? options.interleave : intermediate);
    }
};

// value · up, and its derivatives by gate and up, as the op's header writes them.
template <class Real>
struct Pair {
    Real product, by_gate, by_up;
};
template <class Real>
Pair<Real> glu(const GluOptions& o, Real gate, Real up) {
    const bool clamped = o.kind == GluKind::ClampedQuickGeGlu;
    const Real limit = static_cast<Real>(o.limit), alpha = clamped ? static_cast<Real>(o.alpha) : Real(1);
    const Real a = clamped ? std::min(gate, limit) : gate;
    const Real u = clamped ? std::clamp(up, -limit, limit) + static_cast<Real>(o.offset) : up;
    const Real s = Real(1) / (Real(1) + std::exp(-alpha * a));
    const Real slope = s + alpha * a * s * (Real(1) - s);
    const bool gate_moves = !clamped || gate <= limit, up_moves = !clamped || (up >= -limit && up <= limit);
    return {a * s * u, gate_moves ? slope * u : Real(0), up_moves ? a * s : Real(0)};
}

template <class Host>
void forward_rows(Host& h, const Setup& s) {
    using Real = std::decay_t<decltype(h["x"][0])>;
    for (int64_t r = 0; r < s.used(); ++r) {
        const Real scale = s.scales ? h["scales"][r] : Real(1);
        for (int64_t j = 0; j < s.intermediate; ++j) {
            h["y"].at(r, j) =
                scale *
                glu<Real>(s.options, h["x"].at(r, s.gate_column(j)), h["x"].at(r, s.up_column(j))).product;
        }
    }
}

Case forward_case(const Setup& s) {
    Case c = s.base("scaled_glu");
    c.tensors.push_back(s.output("y", s.intermediate));
    const auto args = [=](const Views& v) {
        return ScaledGluArgs{.options = s.options,
                             .x = v["x"],
                             .scales = v["scales"],
                             .split_sizes = v["split_sizes"],
                             .y = v["y"]};
    };
    c.run = [=](const Views& v, const Exec& exec) { scaled_glu(args(v), exec); };
    c.cost = [=](const Views& v) { return cost(args(v)); };
    set_reference(c, [=](auto& h) { forward_rows(h, s); });
    if (s.used() == 0 || s.bench) return c;
    if (s.scales) {
        c.mutants.push_back({"drops the scales", [=](const Views& v, const Exec& exec) {
                                 ScaledGluArgs a = args(v);
                                 a.scales = View();
                                 scaled_glu(a, exec);
                             }});
    }
    if (s.options.interleave > 0 && s.intermediate > s.options.interleave) {
        c.mutants.push_back({"gates first, not interleaved", [=](const Views& v, const Exec& exec) {
                                 ScaledGluArgs a = args(v);
                                 a.options.interleave = 0;
                                 scaled_glu(a, exec);
                             }});
    }
    if (s.used() < s.rows) {
        c.mutants.push_back({"writes the padding", [=](const Views& v, const Exec& exec) {
                                 ScaledGluArgs a = args(v);
                                 a.split_sizes = View();
                                 scaled_glu(a, exec);
                             }});
    }
    return c;
}

template <class Host>
void backward_rows(Host& h, const Setup& s, const char* dx) {
    using Real = std::decay_t<decltype(h["x"][0])>;
    for (int64_t r = 0; r < s.used(); ++r) {
        const Real scale = s.scales ? h["scales"][r] : Real(1);
        Real dscale = 0;
        for (int64_t j = 0; j < s.intermediate; ++j) {
            const auto p = glu<Real>(s.options, h["x"].at(r, s.gate_column(j)), h["x"].at(r, s.up_column(j)));
            const Real dy = h["dy"].at(r, j);
            dscale += dy * p.product;
            h[dx].at(r, s.gate_column(j)) = dy * scale * p.by_gate;
            h[dx].at(r, s.up_column(j)) = dy * scale * p.by_up;
        }
        if (h.has("dscales")) h["dscales"][r] = dscale;
    }
}

// Swaps the halves of every gradient row: what a mix-up of gate and up would write.
void swap_gate_and_up(const View& dx, int64_t rows, const Setup& s) {
    const auto swap = [&](auto* data) {
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t j = 0; j < s.intermediate; ++j) {
                std::swap(data[r * dx.stride[0] + s.gate_column(j)], data[r * dx.stride[0] + s.up_column(j)]);
            }
        }
    };
    if (s.dtype == DType::F32) {
        swap(dx.as<float>());
    } else {
        swap(dx.as<BF16>());
    }
}

void add_gradient_check(Case& c, const Setup& s) {
    c.gradient =
        GradientCheck{.forward =
                          [=](Host<double>& h) {
                              h.tensors["y"] = HostTensor<double>{{s.rows, s.intermediate}, DType::F32, {}};
                              h["y"].values.resize(static_cast<size_t>(s.rows * s.intermediate));
                              forward_rows(h, s);
                          },
                      .outputs = {{"y", "dy"}},
                      .wrt = {{"x", "dx"}}};
    if (s.scales) c.gradient->wrt.push_back({"scales", "dscales"});
}

Case backward_case(const Setup& s) {
    Case c = s.base("scaled_glu_backward");
    c.tensors.push_back(s.input("dy", s.intermediate));
    if (s.in_place) {
        c.tensors[0].role = Role::InOut;
        const int64_t end = s.used() * 2 * s.intermediate;
        c.tensors[0].written = [=](int64_t i) { return i < end; };
    } else {
        c.tensors.push_back(s.output("dx", 2 * s.intermediate));
    }
    if (s.scales) {
        const int64_t used = s.used();
        c.tensors.push_back({.name = "dscales",
                             .shape = {s.rows},
                             .role = Role::Output,
                             .written = [=](int64_t i) { return i < used; },
                             .roundings = kElementRoundings + s.intermediate});
    }
    if (s.activation) c.tensors.push_back(s.output("y", s.intermediate));
    const auto args = [=](const Views& v) {
        return ScaledGluBackwardArgs{.options = s.options,
                                     .x = v["x"],
                                     .scales = v["scales"],
                                     .split_sizes = v["split_sizes"],
                                     .dy = v["dy"],
                                     .dx = s.in_place ? v["x"] : v["dx"],
                                     .dscales = v["dscales"],
                                     .y = v["y"]};
    };
    c.run = [=](const Views& v, const Exec& exec) { scaled_glu_backward(args(v), exec); };
    c.cost = [=](const Views& v) { return cost(args(v)); };
    set_reference(c, [=](auto& h) {
        if (s.activation) forward_rows(h, s);
        if (s.in_place) h.tensors["dx"] = h["x"];
        backward_rows(h, s, "dx");
        if (s.in_place) h["x"].values = h["dx"].values;
    });
    if (s.used() == 0 || s.bench) return c;
    c.mutants = {{"swaps gate and up", [=](const Views& v, const Exec& exec) {
                      scaled_glu_backward(args(v), exec);
                      swap_gate_and_up(s.in_place ? v["x"] : v["dx"], s.used(), s);
                  }}};
    if (s.scales) {
        c.mutants.push_back({"drops the scales", [=](const Views& v, const Exec& exec) {
                                 ScaledGluBackwardArgs a = args(v);
                                 a.scales = View();
                                 scaled_glu_backward(a, exec);
                             }});
    }
    // Rounded to bf16, some values lie on a clamp, where there is no derivative.
    const bool smooth = s.options.kind == GluKind::SwiGlu || (s.dtype == DType::F32 && !s.at_bounds);
    if (!s.in_place && !s.activation && smooth) add_gradient_check(c, s);
    return c;
}

void add_both(std::vector<Case>& cases, Setup s) {
    cases.push_back(forward_case(s));
    cases.push_back(backward_case(s));
    s.activation = true;
    cases.push_back(backward_case(s));
    s.in_place = true;
    cases.push_back(backward_case(s));
}

}  // namespace

void swiglu_cases(std::vector<Case>& cases) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
        for (const auto& [rows, intermediate] : std::vector<std::pair<int64_t, int64_t>>{
                 {1, 1}, {3, 15}, {5, 16}, {4, 17}, {7, 33}, {70, 96}, {9, 500}}) {
            add_both(cases, {.dtype = dtype, .rows = rows, .intermediate = intermediate});
        }
        add_both(cases, {.dtype = dtype, .rows = 6, .intermediate = 40, .scales = false, .row_padding = 7});
        for (const int64_t interleave : {8, 32}) {
            add_both(cases,
                     {.dtype = dtype, .rows = 9, .intermediate = 96, .options = {.interleave = interleave}});
        }
        const GluOptions clamped{.kind = GluKind::ClampedQuickGeGlu};
        add_both(cases, {.dtype = dtype, .rows = 33, .intermediate = 50, .options = clamped});
        add_both(cases,
                 {.dtype = dtype, .rows = 20, .intermediate = 33, .options = clamped, .at_bounds = true});
        add_both(
            cases,
            {.dtype = dtype,
             .rows = 7,
             .intermediate = 64,
             .options = {.kind = clamped.kind, .interleave = 32, .limit = 3, .alpha = 1.3f, .offset = 0.5f}});
        for (const NamedSplits& splits : edge_splits()) {
            add_both(cases, {.dtype = dtype,
                             .rows = splits.capacity,
                             .intermediate = 24,
                             .splits = splits.sizes,
                             .splits_name = splits.name,
                             .splits_dtype = splits.name == "ragged_tail" ? DType::I64 : DType::I32});
        }
        Setup bench{.dtype = dtype, .rows = 16384, .intermediate = 512, .bench = true};
        cases.push_back(forward_case(bench));
        bench.activation = true;
        cases.push_back(backward_case(bench));
        Setup large{.dtype = dtype, .rows = 32768, .intermediate = 14336, .bench = true};
        if (dtype != DType::BF16) continue;
        cases.push_back(forward_case(large));
        cases.back().large = true;
        large.activation = true;
        cases.push_back(backward_case(large));
        cases.back().large = true;
    }
}

}  // namespace moebius::ops
