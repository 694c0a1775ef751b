#include "moebius/ops/selection_bias/selection_bias.h"

#include "moebius/ops/case.h"

namespace moebius::ops {
namespace {

constexpr float kRate = 0.001f;

struct Setup {
    std::string name;
    std::vector<double> counts;
    bool bad = false;
};

Case bias_case(const Setup& s) {
    Case c;
    c.op = "selection_bias";
    c.name = s.name;
    c.group = s.bad || s.counts.size() == 1 ? "edge" : "basic";
    const auto experts = static_cast<int64_t>(s.counts.size());
    c.tensors = {{.name = "counts",
                  .shape = {experts},
                  .value = [=](int64_t e, const Philox&) { return s.counts[static_cast<size_t>(e)]; }},
                 {.name = "bias", .shape = {experts}, .role = Role::InOut, .roundings = 1},
                 {.name = "bad", .shape = {1}, .dtype = DType::I32, .value = [=](int64_t, const Philox&) {
                      return s.bad ? 1.0 : 0.0;
                  }}};
    const auto args = [](const Views& v) {
        return SelectionBiasArgs{.counts = v["counts"], .bias = v["bias"], .bad = v["bad"], .rate = kRate};
    };
    c.run = [=](const Views& v, const Exec& exec) { selection_bias(args(v), exec); };
    c.cost = [=](const Views& v) { return cost(args(v)); };
    set_reference(c, [=](auto& h) {
        using Real = std::decay_t<decltype(h["bias"][0])>;
        if (h["bad"].integer(0) != 0) return;
        double total = 0;
        for (int64_t e = 0; e < experts; ++e) total += static_cast<double>(h["counts"][e]);
        for (int64_t e = 0; e < experts; ++e) {
            const double own = static_cast<double>(h["counts"][e]) * static_cast<double>(experts);
            if (own < total) h["bias"][e] += static_cast<Real>(kRate);
            if (own > total) h["bias"][e] -= static_cast<Real>(kRate);
        }
    });
    if (s.bad) {
        c.mutants = {{"updates after a bad step", [=](const Views& v, const Exec& exec) {
                          SelectionBiasArgs a = args(v);
                          a.bad = View();
                          selection_bias(a, exec);
                      }}};
    } else if (experts > 1) {
        c.mutants = {{"towards the loaded expert", [=](const Views& v, const Exec& exec) {
                          SelectionBiasArgs a = args(v);
                          a.rate = -kRate;
                          selection_bias(a, exec);
                      }}};
    }
    return c;
}

std::vector<double> spread(int64_t experts) {
    std::vector<double> counts;
    for (int64_t e = 0; e < experts; ++e) counts.push_back(static_cast<double>((e * 7919) % 1013));
    return counts;
}

}  // namespace

void selection_bias_cases(std::vector<Case>& cases) {
    for (const Setup& setup : std::vector<Setup>{
             {.name = "eight", .counts = {5, 0, 16384, 7, 7, 7, 0, 1}},
             // A mean of 7/3, which no float holds: the middle expert is still above it.
             {.name = "thirds", .counts = {2, 3, 2}},
             {.name = "one_at_the_mean", .counts = {1, 3, 5}},
             {.name = "ragged_300", .counts = spread(300)},
             {.name = "one_expert", .counts = {9}},
             {.name = "bad_step", .counts = {5, 0, 3}, .bad = true},
         }) {
        cases.push_back(bias_case(setup));
    }
}

}  // namespace moebius::ops
