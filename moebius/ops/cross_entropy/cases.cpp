#include "moebius/ops/cross_entropy/cross_entropy.h"

#include "moebius/ops/case.h"

namespace moebius::ops {
namespace {

constexpr double kScale = 0.0123;
constexpr int64_t kRoundings = 16;  // two exponentials within 2 ulp, and their sum

struct Setup {
    DType dtype = DType::F32, gradient_dtype = DType::F32;
    int64_t tokens = 0, vocabulary = 0;
    double spread = 2;  // standard deviation of the logits
    double offset = 0;  // added to all: softmax doesn't see it
    bool gradient = true, in_place = false;
    bool ignored = true;  // every third target is −100
    bool one_bad = false;
    int64_t row_padding = 0;
    bool bench = false;

    std::string label() const {
        return std::string(name(dtype)) +
               (!gradient                 ? ".loss_only"
                : gradient_dtype != dtype ? ".to_" + std::string(name(gradient_dtype))
                                          : "") +
               "." + std::to_string(tokens) + "x" + std::to_string(vocabulary) +
               (spread != 2 || offset != 0 ? ".peaked" : "") + (in_place ? ".in_place" : "") +
               (one_bad ? ".one_bad" : "") + (row_padding ? ".strided" : "");
    }
};

double target_of(const Setup& s, int64_t i, const Philox& random) {
    if (s.one_bad && i == s.tokens - 1) return static_cast<double>(s.vocabulary);
    if (s.one_bad && i == s.tokens / 2) return -1;
    if (s.ignored && i % 3 == 2) return -100;
    if (i == 0) return static_cast<double>(s.vocabulary - 1);
    return static_cast<double>(random.below(static_cast<uint64_t>(i), static_cast<uint64_t>(s.vocabulary)));
}

// token_loss, and dlogits if there are any, from "logits".
template <class Host>
void loss_of_rows(Host& h, int64_t tokens, int64_t vocabulary, const char* gradient) {
    auto& logits = h["logits"];
    using Real = std::decay_t<decltype(logits[0])>;
    for (int64_t t = 0; t < tokens; ++t) {
        const int64_t target = h["targets"].integer(t);
        const bool counts = target >= 0 && target < vocabulary;
        if (!counts && target != -100) h["bad"][0] = 1;
        Real most = logits.at(t, 0);
        for (int64_t v = 1; v < vocabulary; ++v) most = std::max(most, logits.at(t, v));
        Real total = 0;
        for (int64_t v = 0; v < vocabulary; ++v) total += std::exp(logits.at(t, v) - most);
        h["token_loss"][t] = counts ? std::log(total) + most - logits.at(t, target) : Real(0);
        if (!gradient) continue;
        const Real scale = h["grad_scale"][0];
        for (int64_t v = 0; v < vocabulary; ++v) {
            const Real p = std::exp(logits.at(t, v) - most) / total;
            h[gradient].at(t, v) = counts ? scale * (p - (v == target ? Real(1) : Real(0))) : Real(0);
        }
    }
}

std::vector<TensorSpec> tensors_of(const Setup& s) {
    const auto logit = [=](int64_t i, const Philox& random) {
        return s.offset + s.spread * random.normal(static_cast<uint64_t>(i));
    };
    std::vector<TensorSpec> tensors = {
        {.name = "logits",
         .shape = {s.tokens, s.vocabulary},
         .dtype = s.dtype,
         .role = s.in_place ? Role::InOut : Role::Input,
         .value = logit,
         .row_padding = s.row_padding,
         .roundings = kRoundings},
        {.name = "targets",
         .shape = {s.tokens},
         .dtype = DType::I32,
         .value = [=](int64_t i, const Philox& random) { return target_of(s, i, random); }},
        {.name = "token_loss", .shape = {s.tokens}, .role = Role::Output, .roundings = kRoundings},
        {.name = "bad",
         .shape = {1},
         .dtype = DType::I32,
         .role = Role::InOut,
         .value = [](int64_t, const Philox&) { return 0.0; },
         .exact = true}};
    if (s.gradient) {
        tensors.push_back(
            {.name = "grad_scale", .shape = {1}, .value = [](int64_t, const Philox&) { return kScale; }});
        if (!s.in_place) {
            tensors.push_back({.name = "dlogits",
                               .shape = {s.tokens, s.vocabulary},
                               .dtype = s.gradient_dtype,
                               .role = Role::Output,
                               .row_padding = s.row_padding,
                               .roundings = kRoundings});
        }
    }
    return tensors;
}

// d Σ token_loss / d logits: an upstream of ones (times grad_scale) on the rows that count.
void add_gradient_check(Case& c, const Setup& s) {
    c.tensors.push_back({.name = "upstream", .shape = {s.tokens}, .value = [](int64_t, const Philox&) {
                             return static_cast<double>(static_cast<float>(kScale));
                         }});
    c.gradient =
        GradientCheck{.forward = [=](Host<double>& h) { loss_of_rows(h, s.tokens, s.vocabulary, nullptr); },
                      .outputs = {{"token_loss", "upstream"}},
                      .wrt = {{"logits", "dlogits"}}};
}

Case make_case(const Setup& s) {
    Case c;
    c.op = "cross_entropy";
    c.name = s.label();
    c.group = s.bench                                                     ? "bench"
              : s.in_place || s.one_bad || s.row_padding || s.spread != 2 ? "edge"
                                                                          : "basic";
    c.dtype = s.dtype;
    c.bench = s.bench;
    c.tensors = tensors_of(s);
    const auto args = [=](const Views& v) {
        return CrossEntropyArgs{.logits = v["logits"],
                                .targets = v["targets"],
                                .token_loss = v["token_loss"],
                                .dlogits = s.in_place ? v["logits"] : v["dlogits"],
                                .grad_scale = v["grad_scale"],
                                .bad = v["bad"]};
    };
    c.run = [=](const Views& v, const Exec& exec) { cross_entropy(args(v), exec); };
    c.cost = [=](const Views& v) { return cost(args(v)); };
    set_reference(c, [=](auto& h) {
        if (s.in_place) h.tensors["dlogits"] = h["logits"];
        loss_of_rows(h, s.tokens, s.vocabulary, s.gradient ? "dlogits" : nullptr);
        if (s.in_place) h["logits"].values = h["dlogits"].values;
    });
    if (s.one_bad) {
        c.mutants = {{"says nothing of a bad target", [=](const Views& v, const Exec& exec) {
                          CrossEntropyArgs a = args(v);
                          a.bad = View();
                          cross_entropy(a, exec);
                      }}};
    } else if (s.tokens > 1 && !s.bench) {
        c.mutants = {{"another row's target", [=](const Views& v, const Exec& exec) {
                          CrossEntropyArgs a = args(v);
                          SharedVector<int32_t> shifted(static_cast<size_t>(s.tokens));
                          for (int64_t t = 0; t < s.tokens; ++t)
                              shifted[static_cast<size_t>(t)] = a.targets.as<int32_t>()[(t + 1) % s.tokens];
                          a.targets = View(shifted.data(), DType::I32, {s.tokens});
                          cross_entropy(a, exec);
                      }}};
    }
    if (s.gradient && !s.in_place && !s.one_bad && !s.bench && s.tokens * s.vocabulary < 20000)
        add_gradient_check(c, s);
    return c;
}

}  // namespace

void cross_entropy_cases(std::vector<Case>& cases) {
    const DType f32 = DType::F32, bf16 = DType::BF16;
    for (const DType dtype : {f32, bf16}) {
        for (const auto& [tokens, vocabulary] : std::vector<std::pair<int64_t, int64_t>>{
                 {1, 2}, {1, 33}, {4, 15}, {5, 16}, {9, 17}, {70, 256}, {33, 100}, {3, 32003}}) {
            cases.push_back(make_case(
                {.dtype = dtype, .gradient_dtype = dtype, .tokens = tokens, .vocabulary = vocabulary}));
        }
        const Setup plain{.dtype = dtype, .gradient_dtype = dtype, .tokens = 21, .vocabulary = 77};
        Setup s = plain;
        s.gradient = false;
        cases.push_back(make_case(s));
        s = plain;
        s.in_place = true;
        cases.push_back(make_case(s));
        s.row_padding = 6;
        cases.push_back(make_case(s));
        s.in_place = false;
        cases.push_back(make_case(s));
        s = plain;
        s.one_bad = true;
        cases.push_back(make_case(s));
        s = plain;
        s.gradient_dtype = dtype == f32 ? bf16 : f32;
        cases.push_back(make_case(s));
        s = plain;
        s.spread = 60;  // e^x would overflow without the largest taken off
        s.offset = 300;
        cases.push_back(make_case(s));
        for (const int64_t vocabulary : {256, 32000}) {
            cases.push_back(make_case({.dtype = dtype,
                                       .gradient_dtype = dtype,
                                       .tokens = vocabulary == 256 ? 8192 : 512,
                                       .vocabulary = vocabulary,
                                       .in_place = true,
                                       .bench = true}));
            cases.push_back(make_case({.dtype = dtype,
                                       .gradient_dtype = dtype,
                                       .tokens = 16384,
                                       .vocabulary = vocabulary,
                                       .in_place = true,
                                       .bench = true}));
            cases.back().large = true;
        }
    }
}

}  // namespace moebius::ops
