#include "moebius/ops/case.h"
#include "moebius/ops/gemm/gemm.h"

namespace moebius::ops {
namespace {

struct GemmShape {
    int64_t m, n, k;  // rows, out features, in features
    int64_t padding = 0;
};

const char* kind_name(GemmKind kind) {
    return kind == GemmKind::Forward ? "forward" : kind == GemmKind::Dgrad ? "dgrad" : "wgrad";
}

// The product in plain loops, into h["out"], summed one step of the depth after the other.
template <class H>
void reference(H& h, GemmKind kind, const GemmShape& s, bool accumulate) {
    auto& a = h["a"];
    auto& b = h["b"];
    auto& out = h["out"];
    const int64_t depth = kind == GemmKind::Forward ? s.k : kind == GemmKind::Dgrad ? s.n : s.m;
    for (int64_t i = 0; i < out.size(0); ++i) {
        for (int64_t j = 0; j < out.size(1) && !accumulate; ++j) out.at(i, j) = 0;
        for (int64_t p = 0; p < depth; ++p) {
            const auto x = kind == GemmKind::Wgrad ? a.at(p, i) : a.at(i, p);
            for (int64_t j = 0; j < out.size(1); ++j)
                out.at(i, j) += x * (kind == GemmKind::Forward ? b.at(j, p) : b.at(p, j));
        }
    }
}

Case gemm_case(GemmKind kind, DType in, DType out, const GemmShape& s, bool accumulate, DType in_b) {
    Case c;
    c.op = "gemm";
    c.name = std::string(kind_name(kind)) + "." + std::string(name(in)) +
             (in_b != in ? "x" + std::string(name(in_b)) : "") + "_" + std::string(name(out)) + "." +
             std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) +
             (accumulate ? ".add" : "") + (s.padding ? ".strided" : "");
    c.group = s.m == 1 || s.n == 1 || s.k == 1 ? "edge" : "basic";
    c.dtype = in;
    const Shape x{s.m, s.k}, y{s.m, s.n}, w{s.n, s.k};
    const Shape& a = kind == GemmKind::Forward ? x : y;
    const Shape& b = kind == GemmKind::Wgrad ? x : w;
    const Shape& o = kind == GemmKind::Forward ? y : kind == GemmKind::Dgrad ? x : w;
    c.tensors = {{.name = "a", .shape = a, .dtype = in, .row_padding = s.padding},
                 {.name = "b", .shape = b, .dtype = in_b, .row_padding = s.padding},
                 {.name = "out",
                  .shape = o,
                  .dtype = out,
                  .role = accumulate ? Role::InOut : Role::Output,
                  .row_padding = s.padding}};
    const auto run = [=](const Views& v, const Exec& exec, float beta) {
        gemm({.kind = kind, .a = v["a"], .b = v["b"], .out = v["out"], .beta = beta}, exec);
    };
    c.run = [=](const Views& v, const Exec& exec) { run(v, exec, accumulate ? 1.0f : 0.0f); };
    set_reference(c, [=](auto& h) { reference(h, kind, s, accumulate); });
    c.cost = [=](const Views& v) {
        return cost(GemmArgs{.kind = kind, .a = v["a"], .b = v["b"], .out = v["out"]});
    };
    if (accumulate) c.mutants = {{"overwrites", [=](const Views& v, const Exec& exec) { run(v, exec, 0); }}};
    return c;
}

Case gemm_case(GemmKind kind, DType in, DType out, const GemmShape& s, bool accumulate) {
    return gemm_case(kind, in, out, s, accumulate, in);
}

// The same case with the plain loops forced.
Case naive_case(Case c) {
    c.name += ".naive";
    c.run = [run = c.run](const Views& v, const Exec& exec) {
        const ForcedVariants forced{{"gemm", "cpu_naive"}};
        Exec with = exec;
        with.forced = &forced;
        run(v, with);
    };
    return c;
}

Case with_mutants(Case c, GemmKind kind) {
    c.mutants.push_back({"loses the last step of the sum", [=](const Views& v, const Exec& exec) {
                             View a = v["a"], b = v["b"];
                             if (kind == GemmKind::Wgrad) {
                                 a = a.rows(0, a.size(0) - 1);
                                 b = b.rows(0, b.size(0) - 1);
                             } else if (kind == GemmKind::Forward) {
                                 a = a.columns(0, a.size(1) - 1);
                                 b = b.columns(0, b.size(1) - 1);
                             } else {
                                 a = a.columns(0, a.size(1) - 1);
                                 b = b.rows(0, b.size(0) - 1);
                             }
                             gemm({.kind = kind, .a = a, .b = b, .out = v["out"]}, exec);
                         }});
    c.mutants.push_back({"leaves the last row", [=](const Views& v, const Exec& exec) {
                             const View out = v["out"].rows(0, v["out"].size(0) - 1);
                             View a = v["a"];
                             a = kind == GemmKind::Wgrad ? a.columns(0, a.size(1) - 1)
                                                         : a.rows(0, a.size(0) - 1);
                             gemm({.kind = kind, .a = a, .b = v["b"], .out = out}, exec);
                         }});
    return c;
}

void bench_cases(std::vector<Case>& cases, DType dtype) {
    const GemmShape shapes[] = {{8192, 256, 256}, {8192, 128, 256}, {8192, 512, 256}};
    for (const GemmShape& s : shapes) {
        for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad}) {
            Case c = gemm_case(kind, dtype, kind == GemmKind::Wgrad ? DType::F32 : dtype, s, false);
            c.bench = true;
            c.group = "bench";
            cases.push_back(std::move(c));
        }
    }
}

}  // namespace

void gemm_cases(std::vector<Case>& cases) {
    const GemmShape shapes[] = {{1, 1, 1},    {1, 17, 33},    {15, 33, 17},      {16, 16, 16},
                                {77, 65, 31}, {130, 40, 300}, {61, 129, 261, 5}, {300, 47, 70}};
    for (const GemmKind kind : {GemmKind::Forward, GemmKind::Dgrad, GemmKind::Wgrad}) {
        for (const GemmShape& s : shapes) {
            for (const DType dtype : {DType::F32, DType::BF16}) {
                Case c = gemm_case(kind, dtype, dtype, s, false);
                cases.push_back(s.m > 15 ? with_mutants(std::move(c), kind) : std::move(c));
                if (s.m > 60) cases.push_back(gemm_case(kind, dtype, dtype, s, true));
            }
        }
        // Mixed types, as the gradient of a weight and the router's logits have them.
        cases.push_back(gemm_case(kind, DType::BF16, DType::F32, shapes[4], true));
        cases.push_back(gemm_case(kind, DType::F32, DType::BF16, shapes[5], false));
        cases.push_back(gemm_case(kind, DType::F32, DType::BF16, shapes[4], true));
        // The gradient of fp32 logits beside bf16 weights and activations.
        for (const GemmShape& s : {GemmShape{1, 17, 33},
                                   {77, 65, 31},
                                   {130, 40, 304},
                                   {61, 129, 261, 5},
                                   {96, 8, 64},
                                   {24, 1040, 16}}) {
            for (const DType out : {DType::F32, DType::BF16}) {
                cases.push_back(with_mutants(gemm_case(kind, DType::F32, out, s, false, DType::BF16), kind));
                cases.push_back(gemm_case(kind, DType::F32, out, s, true, DType::BF16));
            }
        }
        cases.push_back(naive_case(gemm_case(kind, DType::F32, DType::F32, shapes[6], true)));
        cases.push_back(naive_case(gemm_case(kind, DType::BF16, DType::BF16, shapes[4], false)));
    }
    bench_cases(cases, DType::F32);
    bench_cases(cases, DType::BF16);
}

}  // namespace moebius::ops
