#include <algorithm>
#include <numeric>

#include "moebius/ops/case.h"
#include "moebius/ops/grouped_gemm/grouped_gemm.h"

namespace moebius::ops {
namespace {

struct Problem {
    GemmKind kind = GemmKind::Forward;
    DType dtype = DType::F32, out = DType::F32, index = DType::I64;
    NamedSplits splits;
    int64_t n = 0, k = 0;
    bool bias = false, bias_scale = false, accumulate = false;
    int64_t padding = 0;

    int64_t experts() const { return static_cast<int64_t>(splits.sizes.size()); }
    int64_t rows() const { return std::accumulate(splits.sizes.begin(), splits.sizes.end(), int64_t{0}); }
    int64_t first(int64_t expert) const {
        return std::accumulate(splits.sizes.begin(), splits.sizes.begin() + expert, int64_t{0});
    }
};

std::string name_of(const Problem& p) {
    std::string text = p.kind == GemmKind::Forward ? "forward"
                       : p.kind == GemmKind::Dgrad ? "dgrad"
                                                   : "wgrad";
    text += "." + std::string(name(p.dtype)) + "_" + std::string(name(p.out)) + "." + p.splits.name + "." +
            std::to_string(p.n) + "x" + std::to_string(p.k);
    for (const auto& [on, word] : {std::pair{p.bias, ".bias"},
                                   {p.bias_scale, ".scaled"},
                                   {p.accumulate, ".add"},
                                   {p.padding > 0, ".strided"},
                                   {p.index == DType::I32, ".i32"}}) {
        if (on) text += word;
    }
    return text;
}

TensorSpec split_tensor(const Problem& p) {
    return {.name = "split_sizes",
            .shape = {p.experts()},
            .dtype = p.index,
            .value = [sizes = p.splits.sizes](int64_t i, const Philox&) {
                return static_cast<double>(sizes[static_cast<size_t>(i)]);
            }};
}

template <class H>
void reference_rows(H& h, const Problem& p) {
    auto& a = h["a"];
    auto& b = h["b"];
    auto& out = h["out"];
    const bool forward = p.kind == GemmKind::Forward;
    for (int64_t e = 0; e < p.experts(); ++e) {
        const int64_t first = p.first(e);
        for (int64_t i = first; i < first + p.splits.sizes[static_cast<size_t>(e)]; ++i) {
            for (int64_t j = 0; j < out.size(1); ++j) {
                auto sum = a[0] - a[0];
                for (int64_t q = 0; q < a.size(1); ++q)
                    sum += a.at(i, q) * (forward ? b.at(e, j, q) : b.at(e, q, j));
                if (p.bias) sum += (p.bias_scale ? h["bias_scale"][i] : 1) * h["bias"].at(e, j);
                out.at(i, j) = sum;
            }
        }
    }
}

template <class H>
void reference_wgrad(H& h, const Problem& p) {
    auto& out = h["out"];
    for (int64_t e = 0; e < p.experts(); ++e) {
        for (int64_t i = 0; i < p.n * p.k && !p.accumulate; ++i) out[e * p.n * p.k + i] = 0;
        const int64_t first = p.first(e);
        for (int64_t row = first; row < first + p.splits.sizes[static_cast<size_t>(e)]; ++row) {
            for (int64_t i = 0; i < p.n; ++i) {
                for (int64_t j = 0; j < p.k; ++j) out.at(e, i, j) += h["a"].at(row, i) * h["b"].at(row, j);
            }
        }
    }
}

GroupedGemmArgs args_of(const Problem& p, const Views& v) {
    return {.kind = p.kind,
            .a = v["a"],
            .b = v["b"],
            .out = v["out"],
            .split_sizes = v["split_sizes"],
            .bias = v["bias"],
            .bias_scale = v["bias_scale"],
            .beta = p.accumulate ? 1.0f : 0.0f};
}

// Split sizes of a mutant: a shift of rows between the first two experts that have any.
std::vector<Mutant> mutants_of(const Problem& p) {
    std::vector<Mutant> mutants;
    const auto with = [&](const char* name, auto change) {
        mutants.push_back({name, [=](const Views& v, const Exec& exec) {
                               GroupedGemmArgs args = args_of(p, v);
                               change(args, exec);
                           }});
    };
    // Where a mutant would do the same work as the op, there is none.
    if (p.rows() <= p.experts()) return mutants;
    with("row base is off by one", [](GroupedGemmArgs& args, const Exec& exec) {
        args.a = args.a.rows(1, args.a.size(0) - 1);
        if (args.kind == GemmKind::Wgrad) {
            args.b = args.b.rows(0, args.b.size(0) - 1);
        } else {
            args.out = args.out.rows(1, args.out.size(0) - 1);
            if (args.bias_scale) args.bias_scale = args.bias_scale.rows(1, args.bias_scale.size(0) - 1);
        }
        SharedVector<int64_t> sizes(static_cast<size_t>(args.split_sizes.size(0)));
        int64_t left = args.a.size(0);
        for (size_t e = 0; e < sizes.size(); ++e) {
            const int64_t rows = args.split_sizes.dtype == DType::I64 ? args.split_sizes.as<int64_t>()[e]
                                                                      : args.split_sizes.as<int32_t>()[e];
            left -= sizes[e] = std::min(rows, left);
        }
        args.split_sizes = View(sizes.data(), DType::I64, {args.split_sizes.size(0)});
        grouped_gemm(args, exec);
    });
    if (p.kind != GemmKind::Wgrad && p.splits.sizes[0] > 0) {
        with("the next expert's weight", [p](GroupedGemmArgs& args, const Exec& exec) {
            SharedVector<int64_t> sizes(p.splits.sizes.begin(), p.splits.sizes.end());
            sizes.erase(sizes.begin());
            sizes[0] += p.splits.sizes[0];  // rows of expert 0 go to expert 1
            args.b = args.b.rows(1, p.experts() - 1);
            if (args.bias) args.bias = args.bias.rows(1, p.experts() - 1);
            args.split_sizes = View(sizes.data(), DType::I64, {p.experts() - 1});
            grouped_gemm(args, exec);
        });
    }
    if (p.bias) {
        with("forgets the bias", [](GroupedGemmArgs& args, const Exec& exec) {
            args.bias = args.bias_scale = {};
            grouped_gemm(args, exec);
        });
    }
    if (p.bias_scale) {
        with("forgets the bias' scale", [](GroupedGemmArgs& args, const Exec& exec) {
            args.bias_scale = {};
            grouped_gemm(args, exec);
        });
    }
    if (p.kind == GemmKind::Wgrad && (!p.accumulate || p.splits.sizes.back() > 0)) {
        with("leaves the last expert's part as it was", [p](GroupedGemmArgs& args, const Exec& exec) {
            SharedVector<int64_t> sizes(p.splits.sizes.begin(), p.splits.sizes.end());
            sizes.pop_back();
            args.out = args.out.rows(0, p.experts() - 1);
            args.split_sizes = View(sizes.data(), DType::I64, {p.experts() - 1});
            grouped_gemm(args, exec);
        });
    }
    return mutants;
}

Case gemm_case(const Problem& p, const char* variant = nullptr) {
    Case c;
    c.op = "grouped_gemm";
    c.name = name_of(p) + (variant ? std::string(".") + variant : "");
    c.group = p.splits.name == "balanced" ? "basic" : "edge";
    c.dtype = p.dtype;
    const int64_t m = p.splits.capacity;
    const Shape x{m, p.k}, y{m, p.n}, w{p.experts(), p.n, p.k};
    const bool wgrad = p.kind == GemmKind::Wgrad;
    const Shape& out = p.kind == GemmKind::Forward ? y : wgrad ? w : x;
    // Rows past the sum hold NaN: reading one spoils a result.
    const auto rows = [&](const char* name, const Shape& shape) -> TensorSpec {
        return {.name = name,
                .shape = shape,
                .dtype = p.dtype,
                .value =
                    [limit = p.rows() * shape[1]](int64_t i, const Philox& random) {
                        return i < limit ? random.normal(static_cast<uint64_t>(i)) : std::nan("");
                    },
                .row_padding = p.padding};
    };
    c.tensors = {rows("a", p.kind == GemmKind::Forward ? x : y), split_tensor(p)};
    c.tensors.push_back(
        wgrad ? rows("b", x)
              : TensorSpec{.name = "b", .shape = w, .dtype = p.dtype, .row_padding = p.padding});
    TensorSpec result{.name = "out",
                      .shape = out,
                      .dtype = p.out,
                      .role = p.accumulate ? Role::InOut : Role::Output,
                      .row_padding = p.padding};
    if (p.dtype == DType::BF16 && p.out == DType::F32) {
        // A tensor core adds 16 products at a time to a running sum that it truncates: half a unit in the
        // last place on the average, each time in the same direction, where roundings would cancel out as the
        // root of their number.
        const int64_t longest = *std::max_element(p.splits.sizes.begin(), p.splits.sizes.end());
        const int64_t depth = wgrad ? longest : p.kind == GemmKind::Forward ? p.k : p.n;
        const int64_t truncations = (depth + 15) / 16;
        result.roundings = truncations * truncations;
    }
    if (!wgrad) result.written = [limit = p.rows() * out[1]](int64_t i) { return i < limit; };
    c.tensors.push_back(result);
    if (p.bias) c.tensors.push_back({.name = "bias", .shape = {p.experts(), p.n}, .dtype = p.dtype});
    if (p.bias_scale) c.tensors.push_back({.name = "bias_scale", .shape = {m}});
    c.run = [=](const Views& v, const Exec& exec) {
        Exec with = exec;
        const ForcedVariants forced{{"grouped_gemm", variant ? variant : "cpu_packed"}};
        if (variant) with.forced = &forced;
        grouped_gemm(args_of(p, v), with);
    };
    set_reference(c, [=](auto& h) { wgrad ? reference_wgrad(h, p) : reference_rows(h, p); });
    c.mutants = mutants_of(p);
    c.cost = [=](const Views& v) { return cost(args_of(p, v)); };
    return c;
}

Case bias_grad_case(const Problem& p, DType to = DType::F32) {
    Case c;
    c.op = "grouped_bias_grad";
    c.name = std::string(name(p.dtype)) + (to == DType::F32 ? "" : "_" + std::string(name(to))) + "." +
             p.splits.name + "." + std::to_string(p.n) + (p.bias_scale ? ".scaled" : "") +
             (p.accumulate ? ".add" : "");
    c.group = p.splits.name == "balanced" ? "basic" : "edge";
    c.dtype = p.dtype;
    const int64_t m = p.splits.capacity, n = p.n;
    c.tensors = {{.name = "dy", .shape = {m, n}, .dtype = p.dtype, .row_padding = p.padding},
                 split_tensor(p),
                 {.name = "dbias",
                  .shape = {p.experts(), n},
                  .dtype = to,
                  .role = p.accumulate ? Role::InOut : Role::Output}};
    if (p.bias_scale) {
        c.tensors.push_back({.name = "bias", .shape = {p.experts(), n}, .dtype = p.dtype});
        c.tensors.push_back({.name = "bias_scale", .shape = {m}});
        c.tensors.push_back({.name = "dbias_scale",
                             .shape = {m},
                             .role = Role::Output,
                             .written = [rows = p.rows()](int64_t i) { return i < rows; },
                             .roundings = n});
    }
    const auto run = [=](const Views& v, const Exec& exec, bool scaled) {
        grouped_bias_grad({.dy = v["dy"],
                           .split_sizes = v["split_sizes"],
                           .bias = v["bias"],
                           .bias_scale = scaled ? v["bias_scale"] : View(),
                           .dbias = v["dbias"],
                           .dbias_scale = v["dbias_scale"],
                           .beta = p.accumulate ? 1.0f : 0.0f},
                          exec);
    };
    c.run = [=](const Views& v, const Exec& exec) { run(v, exec, true); };
    set_reference(c, [=](auto& h) {
        for (int64_t e = 0; e < p.experts(); ++e) {
            for (int64_t j = 0; j < n && !p.accumulate; ++j) h["dbias"].at(e, j) = 0;
            const int64_t first = p.first(e);
            for (int64_t i = first; i < first + p.splits.sizes[static_cast<size_t>(e)]; ++i) {
                auto dot = h["dy"][0] - h["dy"][0];
                for (int64_t j = 0; j < n; ++j) {
                    const auto dy = h["dy"].at(i, j);
                    h["dbias"].at(e, j) += p.bias_scale ? dy * h["bias_scale"][i] : dy;
                    if (p.bias_scale) dot += dy * h["bias"].at(e, j);
                }
                if (p.bias_scale) h["dbias_scale"][i] = dot;
            }
        }
    });
    if (p.bias_scale) {
        c.mutants = {{"forgets the scale", [=](const Views& v, const Exec& exec) { run(v, exec, false); }}};
        // y = x·0 + scale · bias: the forward's part that depends on these inputs.
        c.tensors.push_back({.name = "y", .shape = {m, n}});
        c.gradient = GradientCheck{
            .forward =
                [=](Host<double>& h) {
                    for (int64_t e = 0; e < p.experts(); ++e) {
                        const int64_t first = p.first(e);
                        for (int64_t i = first; i < first + p.splits.sizes[static_cast<size_t>(e)]; ++i) {
                            for (int64_t j = 0; j < n; ++j)
                                h["y"].at(i, j) = h["bias_scale"][i] * h["bias"].at(e, j);
                        }
                    }
                },
            .outputs = {{"y", "dy"}},
            .wrt = {}};
        if (!p.accumulate && p.rows() == m)
            c.gradient->wrt = {{"bias", "dbias"}, {"bias_scale", "dbias_scale"}};
    }
    return c;
}

void bench_cases(std::vector<Case>& cases, DType dtype) {
    Problem p{.dtype = dtype, .splits = {"learned", {4500, 3700, 4096, 4088}, 16384}};
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1024, 256}, {256, 512}}) {
        for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad}) {
            p.kind = kind;
            p.out = kind == GemmKind::Wgrad ? DType::F32 : dtype;
            p.n = n;
            p.k = k;
            Case c = gemm_case(p);
            c.bench = true;
            c.group = "bench";
            cases.push_back(std::move(c));
        }
    }
}

// Rows of whole 16 bytes, as tensor-core kernels ask.
void aligned_cases(std::vector<Case>& cases) {
    Problem p{.dtype = DType::BF16, .n = 72, .k = 40};
    const auto add_kinds = [&] {
        for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad}) {
            for (const DType out : {DType::BF16, DType::F32}) {
                p.kind = kind;
                p.out = out;
                p.accumulate = false;
                cases.push_back(gemm_case(p));
            }
        }
        p.accumulate = true;
        for (const DType out : {DType::F32, DType::BF16}) {  // Wgrad
            p.out = out;
            cases.push_back(gemm_case(p));
        }
    };
    for (const NamedSplits& splits : edge_splits()) {
        p.splits = splits;
        add_kinds();
    }
    // Several tiles of 128 × 256, depths of several times 64, tails of each.
    p.splits = {"tiles", {300, 0, 17, 700, 128, 1}, 1160};
    p.n = 328;
    p.k = 200;
    add_kinds();
    p.padding = 8;
    p.index = DType::I32;
    add_kinds();
    // Several tiles a block of a card, and some left that blocks share.
    p = {.dtype = DType::BF16, .out = DType::BF16, .splits = {"many_tiles", {30000, 0, 9, 8000, 65}, 38080}};
    for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad}) {
        p.kind = kind;
        p.n = kind == GemmKind::Forward ? 40 : 72;
        p.k = kind == GemmKind::Forward ? 72 : 40;
        cases.push_back(gemm_case(p));
    }
    p.kind = GemmKind::Wgrad;
    p.splits = {"many_tiles", {}, 300};
    for (int64_t e = 0; e < 35; ++e) p.splits.sizes.push_back(e % 5 == 0 ? 0 : 5 + e % 9);
    p.n = 136;
    p.k = 264;
    for (const bool accumulate : {false, true}) {
        p.accumulate = accumulate;
        for (const DType out : {DType::F32, DType::BF16}) {
            p.out = out;
            cases.push_back(gemm_case(p));
        }
    }
}

// Of a GPU's size: an 8x7B layer's experts, and many small ones; balanced, and one expert at four times the
// mean.
void large_bench_cases(std::vector<Case>& cases) {
    struct Shape {
        NamedSplits splits;
        int64_t n, k;
    };
    std::vector<Shape> shapes = {{{"8_experts", std::vector<int64_t>(8, 4096), 32768}, 28672, 4096},
                                 {{"128_experts", std::vector<int64_t>(128, 512), 65536}, 1536, 2048}};
    const Shape fine{{"64_experts", std::vector<int64_t>(64, 2048), 131072}, 2048, 2048};
    for (const Shape& shape : std::vector<Shape>(shapes)) {
        Shape skewed = shape;
        skewed.splits.name += "_skewed";
        auto& sizes = skewed.splits.sizes;
        const int64_t mean = sizes[0];
        for (size_t e = 0; e < sizes.size(); e += 8) {
            sizes[e] = 4 * mean;
            sizes[e + 1] = sizes[e + 2] = 0;
            sizes[e + 3] = mean / 2 - 37;
            sizes[e + 4] = mean / 2 + 37;
            sizes[e + 5] = 3 * mean / 2 - 11;
            sizes[e + 6] = mean + 11;
            sizes[e + 7] = mean / 2;
        }
        shapes.push_back(skewed);
    }
    shapes.push_back(fine);
    for (const Shape& shape : shapes) {
        for (const auto& [kind, out] : {std::pair{GemmKind::Forward, DType::BF16},
                                        {GemmKind::Dgrad, DType::BF16},
                                        {GemmKind::Wgrad, DType::BF16},
                                        {GemmKind::Wgrad, DType::F32}}) {
            for (const bool accumulate : {false, true}) {
                if (accumulate && kind != GemmKind::Wgrad) continue;
                Case c = gemm_case({.kind = kind,
                                    .dtype = DType::BF16,
                                    .out = out,
                                    .splits = shape.splits,
                                    .n = shape.n,
                                    .k = shape.k,
                                    .accumulate = accumulate});
                c.bench = c.large = true;
                c.group = "bench";
                cases.push_back(std::move(c));
            }
        }
    }
}

}  // namespace

void grouped_gemm_cases(std::vector<Case>& cases) {
    for (const NamedSplits& splits : edge_splits()) {
        for (const DType dtype : {DType::F32, DType::BF16}) {
            Problem p{.dtype = dtype, .out = dtype, .splits = splits, .n = 65, .k = 33};
            for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad}) {
                p.kind = kind;
                cases.push_back(gemm_case(p));
                cases.push_back(gemm_case(p, "cpu_loop"));
            }
            p.accumulate = true;
            cases.push_back(gemm_case(p));
            p.out = DType::F32;
            p.index = DType::I32;
            p.padding = 7;
            cases.push_back(gemm_case(p));
            p.accumulate = false;
            p.kind = GemmKind::Forward;
            p.bias = true;
            cases.push_back(gemm_case(p));
            p.out = dtype;
            p.bias_scale = true;
            cases.push_back(gemm_case(p));
            for (const bool accumulate : {false, true}) {
                p.accumulate = accumulate;
                cases.push_back(bias_grad_case(p));
                cases.push_back(bias_grad_case(p, DType::BF16));
                Problem plain = p;
                plain.bias_scale = plain.bias = false;
                cases.push_back(bias_grad_case(plain));
            }
        }
    }
    // Depths over several blocks, rows over several pieces.
    for (const DType dtype : {DType::F32, DType::BF16}) {
        Problem p{.dtype = dtype, .out = dtype, .splits = {"several_blocks", {300, 0, 17, 700}, 1030}};
        p.n = 40;
        p.k = 280;
        for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad}) {
            p.kind = kind;
            cases.push_back(gemm_case(p));
        }
        p.splits = {"long", {2100, 513}, 2613};
        p.n = p.k = 17;
        cases.push_back(gemm_case(p));
        p.bias_scale = true;
        cases.push_back(bias_grad_case(p));
        p.accumulate = true;
        cases.push_back(bias_grad_case(p, DType::BF16));
    }
    // Under these splits another library's gradients came out wrong.
    for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad}) {
        Problem p{.dtype = DType::BF16,
                  .out = DType::BF16,
                  .splits = {"reported", {162, 0, 2577, 446, 0, 83}, 3268},
                  .n = 64,
                  .k = 64};
        p.kind = kind;
        cases.push_back(gemm_case(p));
    }
    aligned_cases(cases);
    bench_cases(cases, DType::F32);
    bench_cases(cases, DType::BF16);
    large_bench_cases(cases);
}

}  // namespace moebius::ops
