#include "moebius/ops/delayed_scaling/delayed_scaling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "moebius/ops/case.h"

namespace moebius::ops {
namespace {

struct Setup {
    std::string name;
    int64_t scales = 1, length = 4, parts = 1;
    bool most_recent = false, bad = false;
    int margin = 0;
    float largest = 448;
    bool edge = false;
};

constexpr double kInf = std::numeric_limits<double>::infinity();

// Amaxes over many powers of two, among them zeros, and with `spoilt` an infinity or a NaN here and there.
double amax_of(int64_t index, const Philox& random, bool spoilt) {
    if (index % 11 == 5) return 0;
    if (spoilt && index % 97 == 41) return kInf;
    if (spoilt && index % 89 == 13) return NAN;
    const auto i = static_cast<uint64_t>(index);
    return std::ldexp(1 + random.uniform(i), static_cast<int>(random.below(i, 60)) - 40);
}

Case scaling_case(const Setup& s) {
    Case c;
    c.op = "delayed_scaling";
    c.name = s.name;
    c.group = s.edge ? "edge" : "basic";
    c.tensors = {{.name = "observed",
                  .shape = {s.parts, s.scales},
                  .value = [](int64_t i, const Philox& r) { return amax_of(i, r, false); }},
                 {.name = "history",
                  .shape = {s.scales, s.length},
                  .role = Role::InOut,
                  .value =
                      [=](int64_t i, const Philox& r) {
                          return i % s.length == 0 ? 0.0 : amax_of(i, r, i / s.length % 3 == 1);
                      },
                  .exact = true},
                 {.name = "scale",
                  .shape = {s.scales},
                  .role = Role::InOut,
                  .value = [](int64_t i, const Philox&) { return 1.0 + static_cast<double>(i % 5); },
                  .roundings = 1},
                 {.name = "bad", .shape = {1}, .dtype = DType::I32, .value = [=](int64_t, const Philox&) {
                      return s.bad ? 1.0 : 0.0;
                  }}};
    const auto args = [=](const Views& v) {
        return DelayedScalingArgs{.observed = v["observed"],
                                  .history = v["history"],
                                  .scale = v["scale"],
                                  .bad = v["bad"],
                                  .largest = s.largest,
                                  .margin = s.margin,
                                  .most_recent = s.most_recent};
    };
    c.run = [=](const Views& v, const Exec& exec) { delayed_scaling(args(v), exec); };
    c.cost = [=](const Views& v) { return cost(args(v)); };
    set_reference(c, [=](auto& h) {
        using Real = std::decay_t<decltype(h["scale"][0])>;
        if (h["bad"].integer(0) != 0) return;
        for (int64_t n = 0; n < s.scales; ++n) {
            Real now = 0;
            for (int64_t part = 0; part < s.parts; ++part) now = std::max(now, h["observed"].at(part, n));
            Real amax = now;
            bool good = true;
            for (int64_t i = 1; i < s.length && !s.most_recent; ++i) {
                const Real old = h["history"].at(n, i);
                good = good && !std::isnan(old);
                if (old > amax) amax = old;
            }
            for (int64_t i = 1; i + 1 < s.length; ++i) h["history"].at(n, i) = h["history"].at(n, i + 1);
            if (s.length > 1) h["history"].at(n, s.length - 1) = now;
            h["history"].at(n, 0) = 0;
            if (!good || !(amax > 0) || std::isinf(amax)) continue;
            const auto most = static_cast<Real>(std::numeric_limits<float>::max());
            h["scale"][n] = std::min(
                most, static_cast<Real>(s.largest) / amax * static_cast<Real>(std::ldexp(1.0, -s.margin)));
        }
    });
    const auto mutant = [&](const char* name, auto change) {
        c.mutants.push_back({name, [=](const Views& v, const Exec& exec) {
                                 DelayedScalingArgs a = args(v);
                                 change(a);
                                 delayed_scaling(a, exec);
                             }});
    };
    if (s.bad) {
        mutant("updates after a bad step", [](DelayedScalingArgs& a) { a.bad = View(); });
        return c;
    }
    mutant("margin left out", [](DelayedScalingArgs& a) { a.margin += 1; });
    if (s.parts > 1)
        mutant("the last part alone",
               [=](DelayedScalingArgs& a) { a.observed = a.observed.rows(s.parts - 1, 1); });
    if (s.length > 3)
        mutant("the other algorithm", [](DelayedScalingArgs& a) { a.most_recent = !a.most_recent; });
    return c;
}

}  // namespace

void delayed_scaling_cases(std::vector<Case>& cases) {
    for (const Setup& setup : std::vector<Setup>{
             {.name = "max.8x16", .scales = 8, .length = 16},
             {.name = "most_recent.8x16", .scales = 8, .length = 16, .most_recent = true},
             {.name = "parts.37x1024", .scales = 37, .length = 1024, .parts = 3, .margin = 2},
             {.name = "e5m2.300x257", .scales = 300, .length = 257, .parts = 2, .largest = 57344},
             {.name = "margin_up.40x256", .scales = 40, .length = 256, .margin = -3, .edge = true},
             {.name = "one_pass.9x1", .scales = 9, .length = 1, .edge = true},
             {.name = "two_passes.9x2", .scales = 9, .length = 2, .edge = true},
             {.name = "bad_step.5x8", .scales = 5, .length = 8, .bad = true, .edge = true},
         }) {
        cases.push_back(scaling_case(setup));
    }
}

}  // namespace moebius::ops
