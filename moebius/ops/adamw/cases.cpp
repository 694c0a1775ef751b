#include "moebius/ops/adamw/adamw.h"

#include <limits>

#include "moebius/base/split_float.h"
#include "moebius/ops/case.h"

namespace moebius::ops {
namespace {

// What holds the master: f32 weights; f32 beside bf16 weights; bf16 weights and remainders; bf16 weights
// alone.
enum class Form { Own, Wide, Split, None };

struct Setup {
    int64_t count = 0;
    DType grad = DType::F32, m = DType::F32, v = DType::F32;
    Form form = Form::Own;
    int64_t step = 3;
    float clip = 0.7f, weight_decay = 0.1f;
    bool bad = false;
    bool bench = false;

    std::string label() const {
        const char* forms[] = {"", ".weights", ".remainders", ".no_masters"};
        return "grad_" + std::string(name(grad)) + ".state_" + std::string(name(m)) + "_" +
               std::string(name(v)) + forms[static_cast<int>(form)] + "." + std::to_string(count) + ".step" +
               std::to_string(step) + (weight_decay == 0 ? ".no_decay" : "") + (bad ? ".bad" : "");
    }
};

constexpr float kLearningRate = 3e-3f;
constexpr int64_t kRoundings = 16;
// A remainder is the lower 16 bits of 24: the same ulps of its float are 887 (2²⁴ by the root mean square of
// a remainder) times as large beside it.
constexpr int64_t kRemainderRoundings = kRoundings * 887 * 887;
constexpr double kNearWrap = 32000;  // beyond, an ulp or two may turn its sign

TensorSpec scalar(const char* name, DType dtype, double value) {
    return {
        .name = name, .shape = {1}, .dtype = dtype, .value = [=](int64_t, const Philox&) { return value; }};
}

std::vector<TensorSpec> tensors_of(const Setup& s) {
    const auto scaled = [](double scale, bool squared) {
        return [=](int64_t i, const Philox& random) {
            const double x = random.normal(static_cast<uint64_t>(i));
            return scale * (squared ? x * x : x);
        };
    };
    const auto state = [&](const char* name, DType dtype, double scale, bool squared) {
        return TensorSpec{.name = name,
                          .shape = {s.count},
                          .dtype = dtype,
                          .role = Role::InOut,
                          .value = scaled(scale, squared),
                          .exact = s.bad,
                          .roundings = kRoundings};
    };
    std::vector<TensorSpec> tensors = {
        state("m", s.m, 1e-2, false),
        state("v", s.v, 1e-4, true),
        {.name = "grad", .shape = {s.count}, .dtype = s.grad, .value = scaled(2e-2, false)},
        scalar("learning_rate", DType::F32, kLearningRate),
        scalar("clip", DType::F32, s.clip),
        scalar("step", DType::I64, static_cast<double>(s.step)),
        scalar("bad", DType::I32, s.bad ? 1 : 0)};
    if (s.form == Form::Own || s.form == Form::Wide)
        tensors.push_back(state("master", DType::F32, 0.05, false));
    if (s.form == Form::Wide) {
        const bool bad = s.bad;
        tensors.push_back({.name = "weights",
                           .shape = {s.count},
                           .dtype = DType::BF16,
                           .role = Role::Output,
                           .written = [=](int64_t) { return !bad; },
                           .roundings = kRoundings});
    }
    if (s.form == Form::None) tensors.push_back(state("weights", DType::BF16, 0.05, false));
    if (s.form == Form::Split) {
        tensors.push_back(state("weights", DType::BF16, 0.05, false));
        // Away from zero, where the update would be many ulps of the sum.
        tensors.back().value = [](int64_t i, const Philox& random) {
            const double x = random.normal(static_cast<uint64_t>(i));
            return x < 0 ? 0.05 * x - 0.05 : 0.05 * x + 0.05;
        };
        tensors.push_back(state("remainder", DType::I16, 1, false));
        tensors.back().roundings = kRemainderRoundings;
        tensors.back().value = [](int64_t i, const Philox& random) {
            return static_cast<double>(random.below(static_cast<uint64_t>(i), 65536)) - 32768;
        };
    }
    return tensors;
}

AdamWArgs args_of(const Setup& s, const Views& v) {
    return {.master = v["master"],
            .weights = v["weights"],
            .remainder = v["remainder"],
            .grad = v["grad"],
            .m = v["m"],
            .v = v["v"],
            .learning_rate = v["learning_rate"],
            .clip = v["clip"],
            .step = v["step"],
            .bad = v["bad"],
            .weight_decay = s.weight_decay};
}

// The master of element i: read, and written back in the form it has.
template <class Host>
auto master_of(Host& h, const Setup& s, int64_t i) {
    using Real = std::decay_t<decltype(h["m"][0])>;
    if (s.form == Form::None) return h["weights"][i];
    if (s.form != Form::Split) return h["master"][i];
    const SplitFloat parts{to_bf16(static_cast<float>(h["weights"][i])),
                           static_cast<int16_t>(h["remainder"].integer(i))};
    return static_cast<Real>(join_float(parts));
}
template <class Host, class Real>
void set_master(Host& h, const Setup& s, int64_t i, Real value) {
    if (s.form == Form::Own || s.form == Form::Wide) h["master"][i] = value;
    if (s.form == Form::Wide || s.form == Form::None) h["weights"][i] = value;
    if (s.form != Form::Split) return;
    const SplitFloat parts = split_float(static_cast<float>(value));
    h["weights"][i] = static_cast<Real>(to_float(parts.rounded));
    h["remainder"][i] = static_cast<Real>(parts.remainder);
    // Not compared.
    if (sizeof(Real) == sizeof(double) && std::abs(h["remainder"][i]) > kNearWrap)
        h["remainder"][i] = std::numeric_limits<Real>::quiet_NaN();
}

template <class Host>
void update(Host& h, const Setup& s) {
    using Real = std::decay_t<decltype(h["m"][0])>;
    const AdamWArgs constants = args_of(s, {});
    const Real beta1 = static_cast<Real>(constants.beta1), beta2 = static_cast<Real>(constants.beta2);
    const Real correct1 = Real(1) - static_cast<Real>(std::pow(beta1, static_cast<Real>(s.step)));
    const Real correct2 = Real(1) - static_cast<Real>(std::pow(beta2, static_cast<Real>(s.step)));
    for (int64_t i = 0; i < s.count; ++i) {
        const Real g = h["clip"][0] * h["grad"][i];
        Real& m = h["m"][i];
        Real& v = h["v"][i];
        Real p = master_of(h, s, i);
        m = beta1 * m + (Real(1) - beta1) * g;
        v = beta2 * v + (Real(1) - beta2) * g * g;
        const Real step = (m / correct1) / (std::sqrt(v / correct2) + static_cast<Real>(constants.eps));
        p -= h["learning_rate"][0] * (step + static_cast<Real>(s.weight_decay) * p);
        set_master(h, s, i, p);
    }
}

Case make_case(const Setup& s) {
    Case c;
    c.op = "adamw";
    c.name = s.label();
    c.group = s.bench ? "bench" : s.bad ? "edge" : "basic";
    c.dtype = s.grad;
    c.bench = s.bench;
    c.tensors = tensors_of(s);
    c.run = [=](const Views& v, const Exec& exec) { adamw(args_of(s, v), exec); };
    c.cost = [=](const Views& v) { return cost(args_of(s, v)); };
    set_reference(c, [=](auto& h) {
        if (!s.bad) update(h, s);
    });
    if (s.bench) return c;
    // Each runs with one scalar replaced.
    const auto with = [&](const char* name, auto change) {
        c.mutants.push_back({name, [=](const Views& v, const Exec& exec) {
                                 AdamWArgs a = args_of(s, v);
                                 SharedVector<int32_t> fine(1, 0);
                                 SharedVector<int64_t> another_step(1, s.step + 1);
                                 SharedVector<float> no_clip(1, 1.0f);
                                 change(a, View(fine.data(), DType::I32, {1}),
                                        View(another_step.data(), DType::I64, {1}),
                                        View(no_clip.data(), DType::F32, {1}));
                                 adamw(a, exec);
                             }});
    };
    if (s.bad) {
        with("updates in a bad step", [](AdamWArgs& a, View fine, View, View) { a.bad = fine; });
        return c;
    }
    with("forgets to clip", [](AdamWArgs& a, View, View, View no_clip) { a.clip = no_clip; });
    if (s.step < 100 && s.form != Form::Wide && s.form != Form::None)
        with("corrects for another step", [](AdamWArgs& a, View, View step, View) { a.step = step; });
    // In bf16 weights it would not show.
    if (s.weight_decay > 0 && s.form != Form::None)
        with("no decay", [](AdamWArgs& a, View, View, View) { a.weight_decay = 0; });
    if (s.form == Form::Split) {
        with("forgets the remainders", [](AdamWArgs& a, View, View, View) { a.remainder = View(); });
    }
    if (s.form == Form::None) {
        c.mutants.push_back({"leaves the weights", [=](const Views& v, const Exec& exec) {
                                 AdamWArgs a = args_of(s, v);
                                 const auto* weights = a.weights.as<BF16>();
                                 SharedVector<BF16> copy(weights, weights + s.count);
                                 a.weights = View(copy.data(), DType::BF16, {s.count});
                                 adamw(a, exec);
                             }});
    }
    return c;
}

}  // namespace

void adamw_cases(std::vector<Case>& cases) {
    const DType f32 = DType::F32, bf16 = DType::BF16;
    for (const int64_t count : {1, 15, 16, 17, 40000}) {
        cases.push_back(make_case({.count = count}));
        for (const Form form : {Form::Wide, Form::Split, Form::None}) {
            cases.push_back(make_case({.count = count, .grad = bf16, .m = bf16, .v = bf16, .form = form}));
        }
    }
    for (const DType grad : {f32, bf16}) {
        for (const DType m : {f32, bf16}) {
            for (const DType v : {f32, bf16}) {
                cases.push_back(make_case({.count = 333, .grad = grad, .m = m, .v = v, .step = 1}));
                for (const Form form : {Form::Wide, Form::Split, Form::None}) {
                    cases.push_back(make_case({.count = 70,
                                               .grad = grad,
                                               .m = m,
                                               .v = v,
                                               .form = form,
                                               .step = 100000,
                                               .weight_decay = 0}));
                    if (form == Form::Wide) continue;
                    cases.push_back(make_case({.count = 333, .grad = grad, .m = m, .v = v, .form = form}));
                }
            }
        }
    }
    cases.push_back(make_case({.count = 50, .bad = true}));
    for (const Form form : {Form::Wide, Form::Split, Form::None})
        cases.push_back(make_case({.count = 50, .m = bf16, .v = bf16, .form = form, .bad = true}));
    cases.push_back(make_case({.count = 1 << 23, .bench = true}));
    for (const Form form : {Form::Wide, Form::Split, Form::None}) {
        for (const DType dtype : {f32, bf16}) {
            for (const int64_t count : {int64_t{1} << 23, int64_t{1} << 28}) {
                cases.push_back(make_case(
                    {.count = count, .grad = dtype, .m = dtype, .v = dtype, .form = form, .bench = true}));
                cases.back().large = count > 1 << 23;
            }
        }
    }
}

}  // namespace moebius::ops
