#include "moebius/ops/permute/permute.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "moebius/ops/case.h"

namespace moebius::ops {
namespace {

// Which experts tokens choose, and the permutation that follows, in plain loops.
struct Routing {
    std::string name, group;
    int64_t tokens, topk, experts;
    std::vector<int64_t> expert_of, row_of, source, splits;

    int64_t copies() const { return tokens * topk; }
};
using RoutingPtr = std::shared_ptr<const Routing>;

template <class Choose>
RoutingPtr make_routing(const std::string& name, const std::string& group, const Shape& shape,
                        Choose choose) {
    Routing r{name, group, shape[0], shape[1], shape[2], {}, {}, {}, {}};
    r.name += fmt::format(".{}k{}e{}", r.tokens, r.topk, r.experts);
    for (int64_t copy = 0; copy < r.copies(); ++copy) r.expert_of.push_back(choose(copy));
    r.row_of.resize(r.expert_of.size());
    for (int64_t e = 0; e < r.experts; ++e) {
        r.splits.push_back(0);
        for (int64_t copy = 0; copy < r.copies(); ++copy) {
            if (r.expert_of[static_cast<size_t>(copy)] != e) continue;
            r.row_of[static_cast<size_t>(copy)] = static_cast<int64_t>(r.source.size());
            r.source.push_back(copy);
            ++r.splits.back();
        }
    }
    return std::make_shared<const Routing>(std::move(r));
}

std::vector<RoutingPtr> routings() {
    const Philox random(5, "routing");
    const auto any = [=](int64_t experts) {
        return [=](int64_t copy) {
            return static_cast<int64_t>(
                random.below(static_cast<uint64_t>(copy), static_cast<uint64_t>(experts)));
        };
    };
    return {
        make_routing("any", "basic", {77, 2, 8}, any(8)),
        make_routing("many_experts", "basic", {60, 6, 130}, any(130)),
        make_routing("one_token", "edge", {1, 2, 4}, [](int64_t copy) { return copy == 0 ? 3 : 1; }),
        make_routing("one_copy", "edge", {1, 1, 1}, [](int64_t) { return 0; }),
        make_routing("to_one", "edge", {35, 1, 4}, [](int64_t) { return 2; }),
        make_routing("empty_experts", "edge", {40, 2, 6}, [](int64_t copy) { return copy % 3 == 0 ? 1 : 4; }),
        make_routing("all_experts", "edge", {9, 5, 5}, [](int64_t copy) { return (copy * 2) % 5; }),
    };
}

std::function<double(int64_t, const Philox&)> values_of(const RoutingPtr& r,
                                                        std::vector<int64_t> Routing::*list) {
    return
        [=](int64_t i, const Philox&) { return static_cast<double>(((*r).*list)[static_cast<size_t>(i)]); };
}

double probability(int64_t index, const Philox& random) {
    return 0.05 + 0.9 * random.uniform(static_cast<uint64_t>(index));
}

template <class H>
int64_t at(H& h, const char* name, int64_t index) {
    return h[name].integer(index);
}

Case permutation_case(const RoutingPtr& r) {
    Case c;
    c.op = "permutation";
    c.name = r->name;
    c.group = r->group;
    c.dtype = DType::I32;
    c.tensors = {{.name = "topk_indices",
                  .shape = {r->tokens, r->topk},
                  .dtype = DType::I32,
                  .value = values_of(r, &Routing::expert_of)},
                 {.name = "row_of", .shape = {r->tokens, r->topk}, .dtype = DType::I32, .role = Role::Output},
                 {.name = "source", .shape = {r->copies()}, .dtype = DType::I32, .role = Role::Output},
                 {.name = "split_sizes", .shape = {r->experts}, .dtype = DType::I32, .role = Role::Output}};
    const auto args = [](const Views& v) {
        return PermutationArgs{v["topk_indices"], v["row_of"], v["source"], v["split_sizes"]};
    };
    c.run = [=](const Views& v, const Exec& exec) { permutation(args(v), exec); };
    set_reference(c, [=](auto& h) {
        using Real = std::decay_t<decltype(h["source"][0])>;
        for (int64_t i = 0; i < r->copies(); ++i) {
            h["row_of"][i] = static_cast<Real>(r->row_of[static_cast<size_t>(i)]);
            h["source"][i] = static_cast<Real>(r->source[static_cast<size_t>(i)]);
        }
        for (int64_t e = 0; e < r->experts; ++e)
            h["split_sizes"][e] = static_cast<Real>(r->splits[static_cast<size_t>(e)]);
    });
    c.cost = [=](const Views& v) { return cost(args(v)); };
    if (r->copies() > 1) {
        c.mutants = {{"rows of an expert in reverse", [=](const Views& v, const Exec& exec) {
                          permutation(args(v), exec);
                          auto* source = v["source"].as<int32_t>();
                          auto* row_of = v["row_of"].as<int32_t>();
                          for (int64_t e = 0, row = 0; e < r->experts; ++e) {
                              const int64_t count = r->splits[static_cast<size_t>(e)];
                              std::reverse(source + row, source + row + count);
                              row += count;
                          }
                          for (int64_t m = 0; m < r->copies(); ++m)
                              row_of[source[m]] = static_cast<int32_t>(m);
                      }}};
        if (r->copies() == r->experts || r->topk == r->copies()) c.mutants.clear();  // nothing to reverse
    }
    return c;
}

struct RowsProblem {
    RoutingPtr routing;
    DType dtype;
    int64_t hidden;
    bool weighted = false, dots = false;
    int64_t missing_rows = -1;  // ≥ 0: split_sizes given, and so many rows lie past their sum
    DType split_dtype = DType::I32;
    int64_t padding = 0;

    std::string name() const {
        std::string text = fmt::format("{}.{}.{}", moebius::name(dtype), routing->name, hidden);
        if (weighted) text += ".weights";
        if (dots) text += ".dots";
        if (missing_rows >= 0) text += fmt::format(".{}_short_{}", moebius::name(split_dtype), missing_rows);
        if (padding > 0) text += ".padded";
        return text;
    }
};

TensorSpec weights_spec(const Routing& r) {
    return {.name = "weights", .shape = {r.tokens, r.topk}, .value = probability};
}

GatherRowsArgs gather_args(const Views& v, int64_t topk) {
    return {.x = v["x"],
            .source = v["source"],
            .topk = topk,
            .weights = v["weights"],
            .split_sizes = v["split_sizes"],
            .out = v["out"],
            .dot_with = v["dot_with"],
            .dots = v["dots"]};
}

std::vector<TensorSpec> gather_tensors(const RowsProblem& p) {
    const RoutingPtr& r = p.routing;
    const int64_t copies = r->copies(), rows = copies - std::max<int64_t>(p.missing_rows, 0);
    const auto out_written = [=, hidden = p.hidden](int64_t i) { return i / hidden < rows; };
    const auto dot_written = [=](int64_t i) { return r->row_of[static_cast<size_t>(i)] < rows; };
    std::vector<TensorSpec> tensors = {
        {.name = "x", .shape = {r->tokens, p.hidden}, .dtype = p.dtype, .row_padding = p.padding},
        {.name = "source", .shape = {copies}, .dtype = DType::I32, .value = values_of(r, &Routing::source)},
        {.name = "out",
         .shape = {copies, p.hidden},
         .dtype = p.dtype,
         .role = Role::Output,
         .written = out_written,
         .exact = !p.weighted,
         .row_padding = p.padding}};
    if (p.weighted) tensors.push_back(weights_spec(*r));
    if (p.dots) {
        tensors.push_back(
            {.name = "dot_with", .shape = {copies, p.hidden}, .dtype = p.dtype, .row_padding = p.padding});
        tensors.push_back({.name = "dots",
                           .shape = {r->tokens, r->topk},
                           .role = Role::Output,
                           .written = dot_written,
                           .roundings = p.hidden});
    }
    if (p.missing_rows >= 0) {
        tensors.push_back({.name = "split_sizes",
                           .shape = {3},
                           .dtype = p.split_dtype,
                           .value = [=](int64_t i, const Philox&) {
                               const int64_t half = rows / 2;
                               return static_cast<double>(i == 0 ? half : i == 1 ? 0 : rows - half);
                           }});
    }
    return tensors;
}

// y · weights summed by token: what gather_rows with dots is the gradient of.
template <class H>
void combine_reference(const Routing& r, H& h, const std::string& y, const std::string& out) {
    using Real = std::decay_t<decltype(h[y][0])>;
    const int64_t hidden = h[y].size(1);
    for (int64_t t = 0; t < r.tokens; ++t) {
        for (int64_t c = 0; c < hidden; ++c) {
            Real total = 0;
            for (int64_t s = 0; s < r.topk; ++s) {
                const Real value = h[y].at(r.row_of[static_cast<size_t>(t * r.topk + s)], c);
                total += h.has("weights") ? h["weights"].at(t, s) * value : value;
            }
            h[out].at(t, c) = total;
        }
    }
}

template <class H>
void gather_reference(const Routing& r, H& h, const std::string& out, int64_t rows) {
    using Real = std::decay_t<decltype(h["x"][0])>;
    const int64_t hidden = h["x"].size(1);
    for (int64_t m = 0; m < rows; ++m) {
        const int64_t copy = r.source[static_cast<size_t>(m)];
        Real dot = 0;
        for (int64_t c = 0; c < hidden; ++c) {
            const Real value = h["x"].at(copy / r.topk, c);
            h[out].at(m, c) = h.has("weights") ? h["weights"][copy] * value : value;
            if (h.has("dots")) dot += value * h["dot_with"].at(m, c);
        }
        if (h.has("dots")) h["dots"][copy] = dot;
    }
}

Case gather_case(const RowsProblem& p) {
    const RoutingPtr r = p.routing;
    const int64_t rows = r->copies() - std::max<int64_t>(p.missing_rows, 0);
    Case c;
    c.op = "gather_rows";
    c.name = p.name();
    c.group = r->group;
    c.dtype = p.dtype;
    c.tensors = gather_tensors(p);
    c.run = [=](const Views& v, const Exec& exec) { gather_rows(gather_args(v, r->topk), exec); };
    set_reference(c, [=](auto& h) { gather_reference(*r, h, "out", rows); });
    c.cost = [=](const Views& v) { return cost(gather_args(v, r->topk)); };
    if (p.dots && p.weighted && p.missing_rows <= 0) {
        const auto combine = [=](Host<double>& h) {
            h.tensors["combined"] = h["x"];
            combine_reference(*r, h, "dot_with", "combined");
        };
        c.gradient = GradientCheck{.forward = combine,
                                   .outputs = {{"combined", "x"}},
                                   .wrt = {{"dot_with", "out"}, {"weights", "dots"}}};
    }
    if (r->tokens > 1) {
        c.mutants.push_back({"takes the next token", [=](const Views& v, const Exec& exec) {
                                 GatherRowsArgs args = gather_args(v, r->topk);
                                 SharedVector<int32_t> source;
                                 for (const int64_t copy : r->source)
                                     source.push_back(static_cast<int32_t>((copy + r->topk) % r->copies()));
                                 args.source = View(source.data(), DType::I32, {r->copies()});
                                 gather_rows(args, exec);
                             }});
    }
    if (p.weighted) {
        c.mutants.push_back({"drops the weights", [=](const Views& v, const Exec& exec) {
                                 GatherRowsArgs args = gather_args(v, r->topk);
                                 args.weights = View();
                                 gather_rows(args, exec);
                             }});
    }
    if (p.missing_rows > 0) {
        c.mutants.push_back({"writes rows past the sum", [=](const Views& v, const Exec& exec) {
                                 GatherRowsArgs args = gather_args(v, r->topk);
                                 args.split_sizes = View();
                                 gather_rows(args, exec);
                             }});
    }
    return c;
}

Case combine_case(const RowsProblem& p) {
    const RoutingPtr r = p.routing;
    Case c;
    c.op = "combine_rows";
    c.name = p.name();
    c.group = r->group;
    c.dtype = p.dtype;
    // "x" is not for the op: the gradient check's gather starts from it.
    c.tensors = {{.name = "y", .shape = {r->copies(), p.hidden}, .dtype = p.dtype, .row_padding = p.padding},
                 {.name = "row_of",
                  .shape = {r->tokens, r->topk},
                  .dtype = DType::I32,
                  .value = values_of(r, &Routing::row_of)},
                 {.name = "x", .shape = {r->tokens, p.hidden}, .dtype = p.dtype},
                 {.name = "out",
                  .shape = {r->tokens, p.hidden},
                  .dtype = p.dtype,
                  .role = Role::Output,
                  .row_padding = p.padding}};
    if (p.weighted) c.tensors.push_back(weights_spec(*r));
    const auto args = [](const Views& v) {
        return CombineRowsArgs{.y = v["y"], .row_of = v["row_of"], .weights = v["weights"], .out = v["out"]};
    };
    c.run = [=](const Views& v, const Exec& exec) { combine_rows(args(v), exec); };
    set_reference(c, [=](auto& h) { combine_reference(*r, h, "y", "out"); });
    c.cost = [=](const Views& v) { return cost(args(v)); };
    const auto gather = [=](Host<double>& h) {
        h.tensors["gathered"] = h["y"];
        gather_reference(*r, h, "gathered", r->copies());
    };
    c.gradient = GradientCheck{.forward = gather, .outputs = {{"gathered", "y"}}, .wrt = {{"x", "out"}}};
    if (r->copies() > 1) {
        c.mutants.push_back({"rows in order of copies", [=](const Views& v, const Exec& exec) {
                                 CombineRowsArgs mutant = args(v);
                                 SharedVector<int32_t> rows(static_cast<size_t>(r->copies()));
                                 for (size_t i = 0; i < rows.size(); ++i)
                                     rows[i] = static_cast<int32_t>((i + 1) % rows.size());
                                 mutant.row_of = View(rows.data(), DType::I32, {r->tokens, r->topk});
                                 combine_rows(mutant, exec);
                             }});
        if (r->topk == r->copies()) c.mutants.pop_back();  // one sum of all rows
    }
    if (p.weighted) {
        c.mutants.push_back({"drops the weights", [=](const Views& v, const Exec& exec) {
                                 CombineRowsArgs mutant = args(v);
                                 mutant.weights = View();
                                 combine_rows(mutant, exec);
                             }});
    }
    return c;
}

Case scalars_case(const RoutingPtr& r, bool back) {
    Case c;
    c.op = "permute_scalars";
    c.name = r->name + (back ? ".back" : ".forward");
    c.group = r->group;
    const Shape copies{r->copies()}, slots{r->tokens, r->topk};
    // "original" is not for the op: what travelled forward, for the gradient check.
    c.tensors = {
        {.name = "values", .shape = back ? copies : slots},
        {.name = "source", .shape = copies, .dtype = DType::I32, .value = values_of(r, &Routing::source)},
        {.name = "original", .shape = slots},
        {.name = "out", .shape = back ? slots : copies, .role = Role::Output, .exact = true}};
    const auto run = [](const Views& v, const Exec& exec, bool direction) {
        permute_scalars({v["values"], v["source"], v["out"], direction}, exec);
    };
    c.run = [=](const Views& v, const Exec& exec) { run(v, exec, back); };
    const auto forward = [=](auto& h, const std::string& from, const std::string& to) {
        for (int64_t m = 0; m < r->copies(); ++m) h[to][m] = h[from][r->source[static_cast<size_t>(m)]];
    };
    set_reference(c, [=](auto& h) {
        if (!back) return forward(h, "values", "out");
        for (int64_t m = 0; m < r->copies(); ++m)
            h["out"][r->source[static_cast<size_t>(m)]] = h["values"][m];
    });
    if (back) {
        c.gradient = GradientCheck{.forward =
                                       [=](Host<double>& h) {
                                           h.tensors["travelled"] = h["values"];
                                           forward(h, "original", "travelled");
                                       },
                                   .outputs = {{"travelled", "values"}},
                                   .wrt = {{"original", "out"}}};
    }
    // A permutation that is its own inverse cannot tell the directions apart.
    if (r->row_of != r->source) {
        c.mutants = {{"the other direction", [=](const Views& v, const Exec& exec) { run(v, exec, !back); }}};
    }
    return c;
}

void add_rows_cases(std::vector<Case>& cases, DType dtype) {
    for (const RoutingPtr& r : routings()) {
        cases.push_back(gather_case({.routing = r, .dtype = dtype, .hidden = 33}));
        cases.push_back(
            gather_case({.routing = r, .dtype = dtype, .hidden = 70, .weighted = true, .dots = true}));
        cases.push_back(combine_case({.routing = r, .dtype = dtype, .hidden = 33}));
        cases.push_back(combine_case({.routing = r, .dtype = dtype, .hidden = 70, .weighted = true}));
    }
    const RoutingPtr any = routings()[0];
    for (const int64_t hidden : {1, 15, 16, 17, 31, 64, 129}) {
        cases.push_back(gather_case({.routing = any, .dtype = dtype, .hidden = hidden}));
        cases.push_back(gather_case({.routing = any,
                                     .dtype = dtype,
                                     .hidden = hidden,
                                     .weighted = true,
                                     .dots = true,
                                     .padding = 3}));
        cases.push_back(
            combine_case({.routing = any, .dtype = dtype, .hidden = hidden, .weighted = true, .padding = 5}));
    }
    for (const DType split_dtype : {DType::I32, DType::I64}) {
        for (const int64_t missing : {0, 1, 30, 153}) {
            cases.push_back(gather_case({.routing = any,
                                         .dtype = dtype,
                                         .hidden = 40,
                                         .weighted = true,
                                         .dots = true,
                                         .missing_rows = missing,
                                         .split_dtype = split_dtype}));
        }
    }
    cases.push_back(gather_case({.routing = any, .dtype = dtype, .hidden = 40, .dots = true}));
    // More rows than one piece holds.
    const RoutingPtr several =
        make_routing("pieces", "basic", {900, 2, 4}, [](int64_t copy) { return copy * 7 % 4; });
    cases.push_back(
        gather_case({.routing = several, .dtype = dtype, .hidden = 64, .weighted = true, .dots = true}));
    cases.push_back(combine_case({.routing = several, .dtype = dtype, .hidden = 64, .weighted = true}));
}

// 16,384 tokens, `topk` different experts each.
void add_large_cases(std::vector<Case>& cases, int64_t topk, int64_t experts, int64_t hidden) {
    const Philox random(5, "large routing");
    const RoutingPtr r = make_routing("large", "bench", {16384, topk, experts}, [=](int64_t copy) {
        const auto first = random.below(static_cast<uint64_t>(copy / topk), static_cast<uint64_t>(experts));
        return (static_cast<int64_t>(first) + copy % topk * 5) % experts;
    });
    const DType dtype = DType::BF16;
    const size_t first = cases.size();
    cases.push_back(permutation_case(r));
    cases.push_back(scalars_case(r, false));
    cases.push_back(gather_case({.routing = r, .dtype = dtype, .hidden = hidden}));
    cases.push_back(
        gather_case({.routing = r, .dtype = dtype, .hidden = hidden, .weighted = true, .dots = true}));
    cases.push_back(combine_case({.routing = r, .dtype = dtype, .hidden = hidden}));
    cases.push_back(combine_case({.routing = r, .dtype = dtype, .hidden = hidden, .weighted = true}));
    for (size_t i = first; i < cases.size(); ++i) cases[i].bench = cases[i].large = true;
}

void add_bench_cases(std::vector<Case>& cases) {
    const Philox random(5, "bench routing");
    const RoutingPtr r = make_routing("bench", "bench", {8192, 2, 4}, [=](int64_t copy) {
        const auto first = random.below(static_cast<uint64_t>(copy / 2), 4);
        const auto other = random.below(static_cast<uint64_t>(copy / 2 + 8192), 3);
        return static_cast<int64_t>(copy % 2 == 0 ? first : (first + 1 + other) % 4);
    });
    const size_t first = cases.size();
    cases.push_back(permutation_case(r));
    cases.push_back(scalars_case(r, false));
    cases.push_back(scalars_case(r, true));
    for (const DType dtype : {DType::F32, DType::BF16}) {
        cases.push_back(gather_case({.routing = r, .dtype = dtype, .hidden = 256}));
        cases.push_back(
            gather_case({.routing = r, .dtype = dtype, .hidden = 256, .weighted = true, .dots = true}));
        cases.push_back(combine_case({.routing = r, .dtype = dtype, .hidden = 256}));
        cases.push_back(combine_case({.routing = r, .dtype = dtype, .hidden = 256, .weighted = true}));
    }
    for (size_t i = first; i < cases.size(); ++i) cases[i].bench = true;
    add_large_cases(cases, 2, 8, 4096);
    add_large_cases(cases, 8, 64, 2048);
}

}  // namespace

void permute_cases(std::vector<Case>& cases) {
    std::vector<RoutingPtr> all = routings();
    // Several pieces of the counting sort.
    all.push_back(
        make_routing("pieces", "basic", {5000, 2, 7}, [](int64_t copy) { return copy * copy % 7; }));
    for (const RoutingPtr& r : all) {
        cases.push_back(permutation_case(r));
        cases.push_back(scalars_case(r, false));
        cases.push_back(scalars_case(r, true));
    }
    cases.push_back(scalars_case(
        make_routing("large", "basic", {17000, 1, 3}, [](int64_t copy) { return copy * 5 % 3; }), true));
    add_rows_cases(cases, DType::F32);
    add_rows_cases(cases, DType::BF16);
    add_bench_cases(cases);
}

}  // namespace moebius::ops
