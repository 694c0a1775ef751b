#include "moebius/ops/rms_norm/rms_norm.h"

#include "moebius/ops/case.h"

namespace moebius::ops {
namespace {

struct Setup {
    DType dtype = DType::F32, weight_dtype = DType::F32, weight_grad = DType::F32;
    int64_t tokens = 0, hidden = 0;
    bool residual = false;  // forward: residual sum; backward: gradient that by-passes the norm
    float beta = 0;
    int64_t row_padding = 0;
    bool bench = false;
    bool rstd_alone = false;

    std::string label() const {
        return std::string(name(dtype)) +
               (weight_dtype == dtype ? "" : ".w_" + std::string(name(weight_dtype))) + "." +
               std::to_string(tokens) + "x" + std::to_string(hidden) + (residual ? ".residual" : "") +
               (weight_grad == DType::F32 ? "" : ".to_" + std::string(name(weight_grad))) +
               (beta != 0 ? ".accumulate" : "") + (row_padding ? ".strided" : "") +
               (rstd_alone ? ".rstd" : "");
    }
};

constexpr float kEps = 1e-5f;
constexpr int64_t kRoundings = 16;

double near_one(int64_t i, const Philox& random) {
    return 1.0 + 0.2 * random.normal(static_cast<uint64_t>(i));
}

Case base_case(const char* op, const Setup& s) {
    Case c;
    c.op = op;
    c.name = s.label();
    c.group = s.bench ? "bench" : s.row_padding || s.tokens == 1 ? "edge" : "basic";
    c.dtype = s.dtype;
    c.bench = s.bench;
    return c;
}

// y = norm(x or sum) · weight, in Real.
template <class Host>
void norm_rows(Host& h, const char* source, float eps) {
    using Real = std::decay_t<decltype(h["x"][0])>;
    auto& x = h[source];
    for (int64_t t = 0; t < x.size(0); ++t) {
        Real squares = 0;
        for (int64_t i = 0; i < x.size(1); ++i) squares += x.at(t, i) * x.at(t, i);
        const Real rstd =
            Real(1) / std::sqrt(squares / static_cast<Real>(x.size(1)) + static_cast<Real>(eps));
        if (h.has("rstd")) h["rstd"][t] = rstd;
        if (!h.has("y")) continue;
        for (int64_t i = 0; i < x.size(1); ++i) h["y"].at(t, i) = x.at(t, i) * rstd * h["weight"][i];
    }
}

// (tokens, hidden)
TensorSpec rows_of(const Setup& s, const char* name, Role role) {
    return {.name = name,
            .shape = {s.tokens, s.hidden},
            .dtype = s.dtype,
            .role = role,
            .row_padding = s.row_padding,
            .roundings = kRoundings};
}

Case forward_case(const Setup& s) {
    Case c = base_case("rms_norm", s);
    const auto matrix = [&](const char* name, Role role) { return rows_of(s, name, role); };
    c.tensors = {matrix("x", Role::Input),
                 {.name = "weight", .shape = {s.hidden}, .dtype = s.weight_dtype, .value = near_one}};
    if (!s.rstd_alone) c.tensors.push_back(matrix("y", Role::Output));
    if (s.residual) {
        c.tensors.push_back(matrix("residual", Role::Input));
        c.tensors.push_back(matrix("sum", Role::Output));
    }
    if (s.tokens != 1)
        c.tensors.push_back(
            {.name = "rstd", .shape = {s.tokens}, .role = Role::Output, .roundings = kRoundings});
    const auto args = [](const Views& v, float eps) {
        return RmsNormArgs{.x = v["x"],
                           .residual = v["residual"],
                           .weight = v["weight"],
                           .sum = v["sum"],
                           .y = v["y"],
                           .rstd = v["rstd"],
                           .eps = eps};
    };
    c.run = [=](const Views& v, const Exec& exec) { rms_norm(args(v, kEps), exec); };
    c.cost = [=](const Views& v) { return cost(args(v, kEps)); };
    set_reference(c, [=](auto& h) {
        if (s.residual) {
            // The op rounds the sum before it normalises: its reference does too.
            auto& sum = h["sum"];
            using Real = std::decay_t<decltype(sum[0])>;
            for (int64_t i = 0; i < s.tokens * s.hidden; ++i) {
                sum[i] = h["x"][i] + h["residual"][i];
                if (s.dtype == DType::BF16) {
                    sum[i] = static_cast<Real>(to_float(to_bf16(static_cast<float>(sum[i]))));
                }
            }
        }
        norm_rows(h, s.residual ? "sum" : "x", kEps);
    });
    c.mutants = {
        {"another epsilon", [=](const Views& v, const Exec& exec) { rms_norm(args(v, 0.5f), exec); }}};
    if (s.residual && s.hidden > 1) {  // a norm over one element keeps only its sign
        c.mutants.push_back(
            {"normalises x alone", [=](const Views& v, const Exec& exec) {
                 rms_norm(args(v, kEps), exec);
                 rms_norm({.x = v["x"], .weight = v["weight"], .y = v["y"], .rstd = v["rstd"], .eps = kEps},
                          exec);
             }});
    }
    return c;
}

template <class Host>
void backward_rows(Host& h, const Setup& s) {
    using Real = std::decay_t<decltype(h["x"][0])>;
    std::vector<Real> dweight(static_cast<size_t>(s.hidden));
    for (int64_t t = 0; t < s.tokens; ++t) {
        const Real rstd = h["rstd"][t];
        Real mean = 0;
        for (int64_t i = 0; i < s.hidden; ++i) {
            const Real along = h["dy"].at(t, i) * h["x"].at(t, i) * rstd;
            dweight[static_cast<size_t>(i)] += along;
            mean += along * h["weight"][i];
        }
        mean /= static_cast<Real>(s.hidden);
        for (int64_t i = 0; i < s.hidden; ++i) {
            Real dx = rstd * (h["dy"].at(t, i) * h["weight"][i] - h["x"].at(t, i) * rstd * mean);
            if (s.residual) dx += h["dresidual"].at(t, i);
            h["dx"].at(t, i) = dx;
        }
    }
    for (int64_t i = 0; i < s.hidden; ++i) {
        auto& out = h["dweight"][i];
        out = (s.beta != 0 ? static_cast<Real>(s.beta) * out : Real(0)) + dweight[static_cast<size_t>(i)];
    }
}

Case backward_case(const Setup& s) {
    Case c = base_case("rms_norm_backward", s);
    const auto matrix = [&](const char* name, Role role) { return rows_of(s, name, role); };
    c.tensors = {matrix("x", Role::Input),
                 matrix("dy", Role::Input),
                 matrix("dx", Role::Output),
                 {.name = "weight", .shape = {s.hidden}, .dtype = s.weight_dtype, .value = near_one},
                 {.name = "rstd", .shape = {s.tokens}, .value = near_one},
                 {.name = "dweight",
                  .shape = {s.hidden},
                  .dtype = s.weight_grad,
                  .role = s.beta != 0 ? Role::InOut : Role::Output,
                  .roundings = kRoundings}};
    if (s.residual) c.tensors.push_back(matrix("dresidual", Role::Input));
    const auto args = [=](const Views& v) {
        return RmsNormBackwardArgs{.x = v["x"],
                                   .weight = v["weight"],
                                   .rstd = v["rstd"],
                                   .dy = v["dy"],
                                   .dresidual = v["dresidual"],
                                   .dx = v["dx"],
                                   .dweight = v["dweight"],
                                   .beta = s.beta};
    };
    c.run = [=](const Views& v, const Exec& exec) { rms_norm_backward(args(v), exec); };
    c.cost = [=](const Views& v) { return cost(args(v)); };
    set_reference(c, [=](auto& h) { backward_rows(h, s); });
    if (s.tokens > 1) {
        c.mutants = {{"loses the last row", [=](const Views& v, const Exec& exec) {
                          RmsNormBackwardArgs a = args(v);
                          a.x = a.x.rows(0, s.tokens - 1);
                          a.dy = a.dy.rows(0, s.tokens - 1);
                          a.dx = a.dx.rows(0, s.tokens - 1);
                          a.rstd = a.rstd.rows(0, s.tokens - 1);
                          if (a.dresidual) a.dresidual = a.dresidual.rows(0, s.tokens - 1);
                          rms_norm_backward(a, exec);
                      }}};
    }
    if (s.residual) {
        c.mutants.push_back({"drops the residual's gradient", [=](const Views& v, const Exec& exec) {
                                 RmsNormBackwardArgs a = args(v);
                                 a.dresidual = View();
                                 rms_norm_backward(a, exec);
                             }});
    }
    return c;
}

// rstd as forward gives it, so that the derivative is the whole one. The op reads the input x; the check's
// forward runs in double from the same x.
Case gradient_case(int64_t tokens, int64_t hidden) {
    const Setup s{.tokens = tokens, .hidden = hidden};
    Case c = backward_case(s);
    c.name += ".gradient";
    c.group = "gradient";
    c.mutants.clear();
    const auto plain = c.reference;
    const auto own_rstd = [=](auto& h) {
        using Real = std::decay_t<decltype(h["x"][0])>;
        for (int64_t t = 0; t < tokens; ++t) {
            Real squares = 0;
            for (int64_t i = 0; i < hidden; ++i) squares += h["x"].at(t, i) * h["x"].at(t, i);
            h["rstd"][t] = Real(1) / std::sqrt(squares / static_cast<Real>(hidden) + static_cast<Real>(kEps));
        }
        backward_rows(h, s);
    };
    set_reference(c, own_rstd);
    c.tensors[4].role = Role::Output;
    c.run = [](const Views& v, const Exec& exec) {
        rms_norm({.x = v["x"], .weight = v["weight"], .y = v["dx"], .rstd = v["rstd"], .eps = kEps}, exec);
        rms_norm_backward({.x = v["x"],
                           .weight = v["weight"],
                           .rstd = v["rstd"],
                           .dy = v["dy"],
                           .dx = v["dx"],
                           .dweight = v["dweight"]},
                          exec);
    };
    c.gradient = GradientCheck{.forward =
                                   [=](Host<double>& h) {
                                       h.tensors["y"] = HostTensor<double>{{tokens, hidden}, DType::F32, {}};
                                       h["y"].values.resize(static_cast<size_t>(tokens * hidden));
                                       norm_rows(h, "x", kEps);
                                   },
                               .outputs = {{"y", "dy"}},
                               .wrt = {{"x", "dx"}, {"weight", "dweight"}}};
    return c;
}

// dx over dy, and over dresidual.
Case alias_case(DType dtype, bool over_dy) {
    const Setup s{.dtype = dtype, .weight_dtype = dtype, .tokens = 37, .hidden = 49, .residual = true};
    Case c = backward_case(s);
    const std::string over = over_dy ? "dy" : "dresidual";
    c.name += ".dx_is_" + over;
    c.group = "edge";
    c.mutants.clear();
    std::erase_if(c.tensors, [](const TensorSpec& spec) { return spec.name == "dx"; });
    for (TensorSpec& spec : c.tensors) {
        if (spec.name == over) spec.role = Role::InOut;
    }
    c.run = [=](const Views& v, const Exec& exec) {
        rms_norm_backward({.x = v["x"],
                           .weight = v["weight"],
                           .rstd = v["rstd"],
                           .dy = v["dy"],
                           .dresidual = v["dresidual"],
                           .dx = v[over],
                           .dweight = v["dweight"]},
                          exec);
    };
    set_reference(c, [=](auto& h) {
        h.tensors["dx"] = h[over];
        backward_rows(h, s);
        h[over].values = h["dx"].values;
    });
    return c;
}

}  // namespace

void rms_norm_cases(std::vector<Case>& cases) {
    const DType f32 = DType::F32, bf16 = DType::BF16;
    for (const DType dtype : {f32, bf16}) {
        for (const auto& [tokens, hidden] : std::vector<std::pair<int64_t, int64_t>>{
                 {1, 1}, {1, 64}, {3, 15}, {5, 16}, {7, 17}, {9, 33}, {70, 100}, {33, 256}, {300, 65}}) {
            for (const bool residual : {false, true}) {
                const Setup s{.dtype = dtype,
                              .weight_dtype = dtype,
                              .tokens = tokens,
                              .hidden = hidden,
                              .residual = residual};
                cases.push_back(forward_case(s));
                cases.push_back(backward_case(s));
            }
        }
        const Setup strided{.dtype = dtype,
                            .weight_dtype = f32,
                            .tokens = 41,
                            .hidden = 70,
                            .residual = true,
                            .row_padding = 9};
        cases.push_back(forward_case(strided));
        for (const bool residual : {false, true}) {
            Setup alone = strided;
            alone.rstd_alone = true;
            alone.residual = residual;
            cases.push_back(forward_case(alone));
            alone.row_padding = 0;
            alone.hidden = 1030;
            cases.push_back(forward_case(alone));
        }
        Setup accumulate = strided;
        accumulate.beta = 1;
        cases.push_back(backward_case(accumulate));
        accumulate.beta = 0.5f;
        accumulate.row_padding = 0;
        cases.push_back(backward_case(accumulate));
        accumulate.weight_grad = bf16;
        for (const float beta : {0.0f, 1.0f}) {
            accumulate.beta = beta;
            cases.push_back(backward_case(accumulate));
        }
        // One row, tails, several pieces of rows.
        for (const auto& [tokens, hidden] :
             std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {9, 33}, {300, 65}, {700, 1030}}) {
            cases.push_back(backward_case({.dtype = dtype,
                                           .weight_dtype = dtype,
                                           .weight_grad = bf16,
                                           .tokens = tokens,
                                           .hidden = hidden,
                                           .beta = 1}));
        }
        cases.push_back(alias_case(dtype, true));
        cases.push_back(alias_case(dtype, false));
        const Setup bench{.dtype = dtype,
                          .weight_dtype = dtype,
                          .tokens = 8192,
                          .hidden = 256,
                          .residual = true,
                          .bench = true};
        cases.push_back(forward_case(bench));
        cases.push_back(backward_case(bench));
        Setup large = bench;
        large.tokens = 16384;
        large.hidden = 4096;
        for (const Case& c : {forward_case(large), backward_case(large)}) {
            cases.push_back(c);
            cases.back().large = true;
        }
    }
    cases.push_back(gradient_case(6, 19));
}

}  // namespace moebius::ops
