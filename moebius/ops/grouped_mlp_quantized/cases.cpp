#include <algorithm>
#include <cstring>

#include "moebius/ops/grouped_mlp_quantized/cases_runs.h"

namespace moebius::ops {
namespace {

using namespace mlp_quantized_cases;

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
    if (p.observes()) {
        // Of numbers in bf16, each right to a unit in its last place.
        c.tensors.push_back({.name = "observed",
                             .shape = {p.experts()},
                             .role = Role::Output,
                             .roundings = int64_t{1} << 32});
    }
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
            if (scale != ScaleKind::Tensor) continue;
            p.given = true;
            cases.push_back(forward_case(p));
            cases.back().large = large;
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
        if (scale != ScaleKind::Tensor) continue;
        // y has room for the activation.
        p = {.scale = scale, .splits = {"tiles", {130, 0, 9}, 150}, .hidden = 400, .intermediate = 384};
        p.observed = true;
        cases.push_back(forward_case(p));
        p = {.scale = scale, .splits = {"tiles", {130, 0, 9}, 150}, .hidden = 272, .intermediate = 384};
        p.given = true;
        add(cases, p);
        p.options = {.kind = GluKind::ClampedQuickGeGlu};
        p.scales = false;
        p.index = DType::I32;
        cases.push_back(forward_case(p));
    }
    // More than two tiles a block of any card.
    NamedSplits two_each{"two_tiles_each", {}, 380};
    for (int64_t e = 0; e < 40; ++e) two_each.sizes.push_back(5 + e % 9);
    add(cases, {.scale = ScaleKind::MX32, .splits = two_each, .hidden = 32, .intermediate = 1024});
    Problem known{.scale = ScaleKind::Tensor, .splits = two_each, .hidden = 32, .intermediate = 1024};
    known.given = true;
    cases.push_back(forward_case(known));
    add_bench(cases);
}

}  // namespace moebius::ops
