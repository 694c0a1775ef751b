#include <numeric>

#include "moebius/ops/grouped_mlp/cases_reference.h"
#include "moebius/ops/grouped_mlp/grouped_mlp.h"
#include "moebius/runtime/transfer.h"

namespace moebius::ops {
namespace {

using namespace mlp_cases;

// Values at which gates and ups have a spread of about one, weights being about 1/√fan-in; NaN past the sum.
std::vector<TensorSpec> shared_tensors(const Problem& p) {
    const double in = 1 / std::sqrt(static_cast<double>(p.hidden)),
                 out = 1 / std::sqrt(static_cast<double>(p.intermediate));
    const int64_t limit = p.rows() * p.hidden;
    std::vector<TensorSpec> tensors = {
        {.name = "x",
         .shape = {p.splits.capacity, p.hidden},
         .dtype = p.dtype,
         .value =
             [=](int64_t i, const Philox& r) {
                 return i < limit ? r.normal(static_cast<uint64_t>(i)) : std::nan("");
             },
         .row_padding = p.padding},
        {.name = "gate_up",
         .shape = {p.experts(), 2 * p.intermediate, p.hidden},
         .dtype = p.dtype,
         .value = [=](int64_t i, const Philox& r) { return 2 * in * r.normal(static_cast<uint64_t>(i)); }},
        {.name = "down",
         .shape = {p.experts(), p.hidden, p.intermediate},
         .dtype = p.dtype,
         .value = [=](int64_t i, const Philox& r) { return out * r.normal(static_cast<uint64_t>(i)); }},
        {.name = "split_sizes",
         .shape = {p.experts()},
         .dtype = p.index,
         .value = [sizes = p.splits.sizes](int64_t i, const Philox&) {
             return static_cast<double>(sizes[static_cast<size_t>(i)]);
         }}};
    if (p.scales) {
        tensors.push_back(
            {.name = "scales", .shape = {p.splits.capacity}, .value = [](int64_t i, const Philox& r) {
                 return 0.1 + 0.8 * r.uniform(static_cast<uint64_t>(i));
             }});
    }
    return tensors;
}

GroupedMlpArgs forward_args(const Problem& p, const Views& v) {
    return {.options = p.options,
            .x = v["x"],
            .gate_up = v["gate_up"],
            .down = v["down"],
            .scales = v["scales"],
            .split_sizes = v["split_sizes"],
            .c = v["c"],
            .y = v["y"]};
}

// Rows of the first expert that has any are given to its neighbour: a stale or wrong weight.
std::vector<int64_t> wrong_splits(const Problem& p) {
    std::vector<int64_t> sizes = p.splits.sizes;
    for (size_t e = 0; e < sizes.size(); ++e) {
        if (sizes[e] == 0) continue;
        std::swap(sizes[e], sizes[(e + 1) % sizes.size()]);
        if (sizes != p.splits.sizes) return sizes;
    }
    return sizes;
}

template <class Args>
std::vector<Mutant> mutants_of(const Problem& p, Args (*args_of)(const Problem&, const Views&),
                               void (*op)(const Args&, const Exec&)) {
    std::vector<Mutant> mutants;
    const auto with = [&](const char* name, auto change) {
        mutants.push_back({name, [=](const Views& v, const Exec& exec) {
                               Args args = args_of(p, v);
                               change(args, exec);
                           }});
    };
    if (p.rows() < 4) return mutants;
    if (p.options.interleave == 0 && p.intermediate % 2 == 0) {
        with("gate and up in other blocks", [op, p](Args& args, const Exec& exec) {
            args.options.interleave = p.intermediate / 2;
            op(args, exec);
        });
    }
    if (p.scales) {
        with("drops the scale", [op](Args& args, const Exec& exec) {
            args.scales = {};
            op(args, exec);
        });
    }
    if (wrong_splits(p) != p.splits.sizes) {
        with("another expert's weights", [op, p](Args& args, const Exec& exec) {
            const std::vector<int64_t> wrong = wrong_splits(p);
            SharedVector<int64_t> sizes(wrong.begin(), wrong.end());
            args.split_sizes = View(sizes.data(), DType::I64, {p.experts()});
            op(args, exec);
        });
    }
    return mutants;
}

// A copy of the expert weights with gate and up exchanged.
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

Case forward_case(const Problem& p) {
    Case c;
    c.op = "grouped_mlp";
    c.name = name_of(p);
    c.group = p.splits.name == "balanced" ? "basic" : "edge";
    c.dtype = p.dtype;
    c.tensors = shared_tensors(p);
    const auto out = [&](const char* name, int64_t columns, int64_t roundings) -> TensorSpec {
        return {.name = name,
                .shape = {p.splits.capacity, columns},
                .dtype = p.dtype,
                .role = Role::Output,
                .written = [limit = p.rows() * columns](int64_t i) { return i < limit; },
                .row_padding = p.padding,
                .roundings = roundings};
    };
    if (p.keeps_c) c.tensors.push_back(out("c", 2 * p.intermediate, p.hidden));
    c.tensors.push_back(out("y", p.hidden, p.hidden + p.intermediate));
    c.run = [=](const Views& v, const Exec& exec) { grouped_mlp(forward_args(p, v), exec); };
    set_reference(c, [=](auto& h) { forward(h, p, p.keeps_c); });
    c.mutants = mutants_of<GroupedMlpArgs>(p, forward_args, grouped_mlp);
    if (p.rows() > 3 && p.options.interleave == 0) {
        c.mutants.push_back({"swaps gate and up", [=](const Views& v, const Exec& exec) {
                                 GroupedMlpArgs args = forward_args(p, v);
                                 SharedVector<char> copy = swapped_gate_up(p, args.gate_up);
                                 args.gate_up = View(copy.data(), p.dtype, args.gate_up.shape);
                                 grouped_mlp(args, exec);
                             }});
    }
    c.cost = [=](const Views& v) { return cost(forward_args(p, v)); };
    return c;
}

GroupedMlpBackwardArgs backward_args(const Problem& p, const Views& v) {
    const float beta = p.accumulate ? 1 : 0;
    return {.options = p.options,
            .x = v["x"],
            .c = v["c"],
            .gate_up = v["gate_up"],
            .down = v["down"],
            .scales = v["scales"],
            .split_sizes = v["split_sizes"],
            .dy = v["dy"],
            .dx = v["dx"],
            .dgate_up = v["dgate_up"],
            .ddown = v["ddown"],
            .dscales = v["dscales"],
            .beta_gate_up = beta,
            .beta_down = beta};
}

// On a copy of C where that may be overwritten, so that the case may run again.
void run_backward(const Problem& p, const Views& v, const Exec& exec) {
    GroupedMlpBackwardArgs args = backward_args(p, v);
    const int64_t elements =
        args.c.size(0) == 0 ? 0 : (args.c.size(0) - 1) * args.c.stride[0] + args.c.size(1);
    const auto bytes = static_cast<size_t>(bytes_of(p.dtype, elements));
    const Scratch c("case.c", p.overwrite ? bytes : 0, exec);
    if (p.overwrite) {
        copy(c.as<void>(), args.c.data, bytes, exec);
        args.c.data = c.as<void>();
        args.overwrite_c = true;
    }
    grouped_mlp_backward(args, exec);
}

Case backward_case(const Problem& p) {
    Case c;
    c.op = "grouped_mlp_backward";
    c.name = name_of(p);
    c.group = p.splits.name == "balanced" ? "basic" : "edge";
    c.dtype = p.dtype;
    c.tensors = shared_tensors(p);
    const int64_t m = p.splits.capacity;
    const Role weight_role = p.accumulate ? Role::InOut : Role::Output;
    const auto below = [](int64_t limit) { return [limit](int64_t i) { return i < limit; }; };
    const auto rows = [&](const char* name, int64_t columns) -> TensorSpec {
        return {.name = name,
                .shape = {m, columns},
                .dtype = p.dtype,
                .value =
                    [limit = p.rows() * columns](int64_t i, const Philox& r) {
                        return i < limit ? r.normal(static_cast<uint64_t>(i)) : std::nan("");
                    },
                .row_padding = p.padding};
    };
    c.tensors.push_back(rows("c", 2 * p.intermediate));
    c.tensors.push_back(rows("dy", p.hidden));
    c.tensors.push_back({.name = "dx",
                         .shape = {m, p.hidden},
                         .dtype = p.dtype,
                         .role = Role::Output,
                         .written = below(p.rows() * p.hidden),
                         .row_padding = p.padding,
                         .roundings = p.hidden + p.intermediate});
    c.tensors.push_back({.name = "dgate_up",
                         .shape = {p.experts(), 2 * p.intermediate, p.hidden},
                         .dtype = p.grad,
                         .role = weight_role,
                         .roundings = p.rows()});
    c.tensors.push_back({.name = "ddown",
                         .shape = {p.experts(), p.hidden, p.intermediate},
                         .dtype = p.grad,
                         .role = weight_role,
                         .roundings = p.rows()});
    if (p.scales) {
        c.tensors.push_back({.name = "dscales",
                             .shape = {m},
                             .role = Role::Output,
                             .written = below(p.rows()),
                             .roundings = p.hidden + p.intermediate});
    }
    c.run = [=](const Views& v, const Exec& exec) { run_backward(p, v, exec); };
    set_reference(c, [=](auto& h) {
        for (const char* name : {"dgate_up", "ddown"}) {
            if (!p.accumulate) std::fill(h[name].values.begin(), h[name].values.end(), 0);
        }
        for (int64_t row = 0; row < p.rows(); ++row) backward_row(h, p, row);
    });
    c.mutants = mutants_of<GroupedMlpBackwardArgs>(p, backward_args, grouped_mlp_backward);
    c.cost = [=](const Views& v) { return cost(backward_args(p, v)); };
    return c;
}

// Backward of a forward that really ran: c is the product's, recomputed in double.
Case gradient_case(Problem p) {
    p.accumulate = false;
    Case c = backward_case(p);
    c.name += ".gradient";
    const auto plain = c.reference;
    c.reference = [=](Host<double>& h) {
        for (int64_t row = 0; row < p.rows(); ++row) {
            const auto chain = forward_row(h, p, row);
            for (int64_t j = 0; j < 2 * p.intermediate; ++j)
                h["c"].at(row, j) = chain.c[static_cast<size_t>(j)];
        }
        plain(h);
    };
    // The op itself is checked by the cases above; here c is its own tensor, which the reference replaces.
    c.run = [=](const Views& v, const Exec& exec) {
        GroupedMlpArgs forward = forward_args(p, v);
        forward.y = v["dx"];
        grouped_mlp(forward, exec);
        grouped_mlp_backward(backward_args(p, v), exec);
    };
    c.naive = [=](Host<float>& h) {
        for (int64_t row = 0; row < p.rows(); ++row) {
            const auto chain = forward_row(h, p, row);
            for (int64_t j = 0; j < 2 * p.intermediate; ++j)
                h["c"].at(row, j) = chain.c[static_cast<size_t>(j)];
        }
        for (const char* name : {"dgate_up", "ddown"})
            std::fill(h[name].values.begin(), h[name].values.end(), 0.0f);
        for (int64_t row = 0; row < p.rows(); ++row) backward_row(h, p, row);
    };
    for (TensorSpec& tensor : c.tensors) {
        if (tensor.name != "c") continue;
        tensor.role = Role::Output;
        tensor.written = [limit = p.rows() * 2 * p.intermediate](int64_t i) { return i < limit; };
    }
    c.mutants.clear();
    c.gradient = GradientCheck{
        .forward =
            [=](Host<double>& h) {
                h.tensors["y"] = h["dy"];
                forward(h, p, false);
            },
        .outputs = {{"y", "dy"}},
        .wrt = {{"x", "dx"}, {"gate_up", "dgate_up"}, {"down", "ddown"}, {"scales", "dscales"}}};
    return c;
}

void bench_cases(std::vector<Case>& cases, DType dtype) {
    const Problem p{.dtype = dtype,
                    .splits = {"learned", {4500, 3700, 4096, 4088}, 16384},
                    .hidden = 256,
                    .intermediate = 512};
    for (Case c : {forward_case(p), backward_case(p)}) {
        c.bench = true;
        c.group = "bench";
        cases.push_back(std::move(c));
    }
}

// Rows of whole 16 bytes, as tensor-core kernels ask: several tiles of 128 rows and 256 columns, tails of
// each.
void aligned_cases(std::vector<Case>& cases) {
    Problem p{.dtype = DType::BF16, .splits = {"tiles", {130, 0, 9}, 150}, .hidden = 72, .intermediate = 264};
    cases.push_back(forward_case(p));
    cases.push_back(backward_case(p));
    p.grad = DType::BF16;
    for (const bool accumulate : {false, true}) {
        p.accumulate = accumulate;
        cases.push_back(backward_case(p));
    }
    p.overwrite = true;
    cases.push_back(backward_case(p));
    p.overwrite = false;
    p.grad = DType::F32;
    p.padding = 8;
    p.index = DType::I32;
    p.keeps_c = p.scales = false;
    p.accumulate = true;
    p.options = {.kind = GluKind::ClampedQuickGeGlu};
    cases.push_back(forward_case(p));
    cases.push_back(backward_case(p));
    p.grad = DType::BF16;
    for (const bool accumulate : {false, true}) {
        p.accumulate = accumulate;
        cases.push_back(backward_case(p));
    }
    // Several tiles a block of a card, and some left that blocks share.
    p = {.dtype = DType::BF16, .splits = {"many_tiles", {12000, 0, 9, 5400, 65}, 17480}};
    p.hidden = p.intermediate = 8;
    cases.push_back(forward_case(p));
    for (const bool overwrite : {false, true}) {
        p.overwrite = overwrite;
        cases.push_back(backward_case(p));
    }
    // Rows whose columns of two tiles share a cache line, and gaps between rows.
    p = {.dtype = DType::BF16, .splits = {"tiles", {130, 0, 9}, 150}, .hidden = 72, .intermediate = 520};
    p.overwrite = true;
    p.padding = 8;
    for (const GluKind kind : {GluKind::SwiGlu, GluKind::ClampedQuickGeGlu}) {
        p.options.kind = kind;
        cases.push_back(backward_case(p));
    }
    for (const NamedSplits& splits : edge_splits()) {
        p = {.dtype = DType::BF16, .splits = splits, .hidden = 40, .intermediate = 24};
        cases.push_back(forward_case(p));
        cases.push_back(backward_case(p));
        p.overwrite = true;
        cases.push_back(backward_case(p));
        p.overwrite = false;
        p.grad = DType::BF16;
        for (const bool accumulate : {false, true}) {
            p.accumulate = accumulate;
            cases.push_back(backward_case(p));
        }
    }
}

// Of a GPU's size: an 8x7B layer's experts, and many small ones.
void large_bench_cases(std::vector<Case>& cases) {
    for (const Problem& p : {Problem{.dtype = DType::BF16,
                            .splits = {"8_experts", std::vector<int64_t>(8, 4096), 32768},
                            .hidden = 4096,
                            .intermediate = 14336},
                             Problem{.dtype = DType::BF16,
                             .splits = {"64_experts", std::vector<int64_t>(64, 2048), 131072},
                             .hidden = 2048,
                             .intermediate = 1024}}) {
        Problem rounded = p;
        rounded.grad = DType::BF16;
        for (Case c : {forward_case(p), backward_case(p), backward_case(rounded)}) {
            c.bench = c.large = true;
            c.group = "bench";
            cases.push_back(std::move(c));
        }
    }
}

}  // namespace

void grouped_mlp_cases(std::vector<Case>& cases) {
    for (const NamedSplits& splits : edge_splits()) {
        for (const DType dtype : {DType::F32, DType::BF16}) {
            Problem p{.dtype = dtype, .splits = splits, .hidden = 33, .intermediate = 18};
            cases.push_back(forward_case(p));
            cases.push_back(backward_case(p));
            p.accumulate = true;
            p.padding = 5;
            p.index = DType::I32;
            p.options.interleave = 9;
            cases.push_back(forward_case(p));
            cases.push_back(backward_case(p));
            p.grad = DType::BF16;
            cases.push_back(backward_case(p));
            p.grad = DType::F32;
            p.keeps_c = p.accumulate = p.scales = false;
            p.options = {.kind = GluKind::ClampedQuickGeGlu};
            cases.push_back(forward_case(p));
            cases.push_back(backward_case(p));
            p.overwrite = true;
            p.options.interleave = 9;
            cases.push_back(backward_case(p));
        }
    }
    const NamedSplits tail{"unused_rows", {7, 0, 19, 4}, 37};
    for (const DType dtype : {DType::F32, DType::BF16}) {
        // Several packed blocks of rows and of depth.
        const Problem wide{.dtype = dtype,
                           .splits = {"several_blocks", {300, 0, 17}, 320},
                           .hidden = 40,
                           .intermediate = 140};
        Problem p{.dtype = dtype, .splits = tail, .hidden = 64, .intermediate = 32};
        for (const Problem& problem : {wide, p}) {
            cases.push_back(forward_case(problem));
            cases.push_back(backward_case(problem));
        }
    }
    aligned_cases(cases);
    Problem p{.splits = tail, .hidden = 20, .intermediate = 12};
    cases.push_back(gradient_case(p));
    p.options = {.kind = GluKind::ClampedQuickGeGlu, .interleave = 4, .limit = 1.5f};
    cases.push_back(gradient_case(p));
    bench_cases(cases, DType::F32);
    bench_cases(cases, DType::BF16);
    large_bench_cases(cases);
}

}  // namespace moebius::ops
