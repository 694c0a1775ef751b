#include "moebius/ops/global_norm/global_norm.h"

#include <limits>

#include "moebius/ops/case.h"

namespace moebius::ops {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TensorSpec scalar(const char* name, DType dtype, Role role, double value) {
    return {.name = name,
            .shape = {1},
            .dtype = dtype,
            .role = role,
            .value = [=](int64_t, const Philox&) { return value; },
            .roundings = 4};
}

Case squares_case(DType dtype, int64_t count, double scale, double before, bool bench = false) {
    Case c;
    c.op = "sum_of_squares";
    c.name = std::string(name(dtype)) + "." + std::to_string(count) + (scale > 1e18 ? ".huge" : "") +
             (before != 0 ? ".added" : "");
    c.group = bench ? "bench" : scale > 1e18 ? "edge" : "basic";
    c.dtype = dtype;
    c.bench = bench;
    c.tensors = {
        {.name = "values",
         .shape = {count},
         .dtype = dtype,
         .value = [=](int64_t i,
                      const Philox& random) { return scale * random.normal(static_cast<uint64_t>(i)); }},
        scalar("sum_of_squares", DType::F64, Role::InOut, before)};
    c.tensors[1].roundings = 0;
    const auto args = [](const Views& v) { return SumOfSquaresArgs{v["values"], v["sum_of_squares"]}; };
    c.run = [=](const Views& v, const Exec& exec) { sum_of_squares(args(v), exec); };
    c.cost = [=](const Views& v) { return cost(args(v)); };
    // The op sums in fp64, so its yardstick does too, one piece after another.
    set_reference(c, [](auto& h) {
        double total = 0, piece = 0;
        const auto& values = h["values"].values;
        using Real = std::decay_t<decltype(values[0])>;
        for (size_t i = 0; i < values.size(); ++i) {
            piece += static_cast<double>(values[i]) * static_cast<double>(values[i]);
            if (i % 1000 == 999) total += std::exchange(piece, 0.0);
        }
        auto& sum = h["sum_of_squares"][0];
        sum = static_cast<Real>(static_cast<double>(sum) + total + piece);
    });
    if (scale > 1e18) {
        c.mutants = {{"squares in fp32", [](const Views& v, const Exec&) {
                          *v["sum_of_squares"].as<double>() = std::numeric_limits<double>::infinity();
                      }}};
    } else if (count > 1 && !bench) {
        c.mutants = {{"loses the tail", [=](const Views& v, const Exec& exec) {
                          const int64_t kept = count - 1 - count / 1000;
                          sum_of_squares({v["values"].rows(0, kept), v["sum_of_squares"]}, exec);
                      }}};
    }
    if (before != 0) {
        c.mutants.push_back({"forgets what was there", [=](const Views& v, const Exec& exec) {
                                 *v["sum_of_squares"].as<double>() = 0;
                                 sum_of_squares(args(v), exec);
                             }});
    }
    return c;
}

struct ClipSetup {
    std::string name;
    double squares = 0, factor = 1, loss = 1, max_norm = 1;
    bool optional = true;  // grad_factor and loss given
    bool bad_before = false;
};

Case clip_case(const ClipSetup& s) {
    Case c;
    c.op = "clip_factor";
    c.name = s.name;
    c.group = std::isfinite(s.squares) && std::isfinite(s.loss) ? "basic" : "edge";
    c.tensors = {scalar("sum_of_squares", DType::F64, Role::Input, s.squares),
                 scalar("norm", DType::F32, Role::Output, 0), scalar("clip", DType::F32, Role::Output, 0),
                 scalar("bad", DType::I32, Role::InOut, s.bad_before ? 1 : 0)};
    if (s.optional) {
        c.tensors.push_back(scalar("grad_factor", DType::F32, Role::Input, s.factor));
        c.tensors.push_back(scalar("loss", DType::F32, Role::Input, s.loss));
    }
    const auto args = [=](const Views& v) {
        return ClipFactorArgs{.sum_of_squares = v["sum_of_squares"],
                              .grad_factor = v["grad_factor"],
                              .loss = v["loss"],
                              .max_norm = static_cast<float>(s.max_norm),
                              .norm = v["norm"],
                              .clip = v["clip"],
                              .bad = v["bad"]};
    };
    c.run = [=](const Views& v, const Exec& exec) { clip_factor(args(v), exec); };
    set_reference(c, [=](auto& h) {
        using Real = std::decay_t<decltype(h["norm"][0])>;
        const Real factor = s.optional ? h["grad_factor"][0] : Real(1);
        const Real norm = factor * std::sqrt(h["sum_of_squares"][0]);
        const bool fine = std::isfinite(norm) && (!s.optional || std::isfinite(h["loss"][0]));
        if (!fine) h["bad"][0] = 1;
        h["norm"][0] = norm;
        const Real limit =
            s.max_norm > 0 ? static_cast<Real>(s.max_norm) / (norm + static_cast<Real>(1e-6)) : Real(1);
        h["clip"][0] = fine ? factor * std::min(Real(1), limit) : Real(0);
    });
    if (!std::isfinite(s.squares)) {
        c.mutants = {{"says nothing", [=](const Views& v, const Exec& exec) {
                          clip_factor(args(v), exec);
                          *v["bad"].as<int32_t>() = 0;
                      }}};
    } else if (s.optional && !std::isfinite(s.loss)) {
        c.mutants = {{"does not look at the loss", [=](const Views& v, const Exec& exec) {
                          ClipFactorArgs a = args(v);
                          a.loss = View();
                          clip_factor(a, exec);
                      }}};
    } else if (s.factor != 1) {
        c.mutants = {{"forgets the label count", [=](const Views& v, const Exec& exec) {
                          ClipFactorArgs a = args(v);
                          a.grad_factor = View();
                          clip_factor(a, exec);
                      }}};
    }
    return c;
}

}  // namespace

void global_norm_cases(std::vector<Case>& cases) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
        for (const int64_t count : {1, 15, 16, 33, 70000, 200001})
            cases.push_back(squares_case(dtype, count, 0.02, 0));
        cases.push_back(squares_case(dtype, 300, 0.02, 0.75));
        cases.push_back(squares_case(dtype, 100, 1e20, 0));  // the squares overflow fp32
        cases.push_back(squares_case(dtype, 1 << 23, 0.02, 0, true));
    }
    for (const ClipSetup& setup : std::vector<ClipSetup>{
             {.name = "below_the_limit", .squares = 0.3},
             {.name = "above_the_limit", .squares = 30},
             {.name = "no_clipping", .squares = 30, .max_norm = 0},
             {.name = "no_options", .squares = 30, .max_norm = 2, .optional = false},
             {.name = "by_label_count", .squares = 3e9, .factor = 1.0 / 8190, .max_norm = 1},
             {.name = "by_label_count_below", .squares = 3e5, .factor = 1.0 / 8190, .max_norm = 1},
             {.name = "zero_gradient", .squares = 0, .max_norm = 1},
             {.name = "was_bad_before", .squares = 0.3, .bad_before = true},
             {.name = "infinite_norm", .squares = kInf},
             {.name = "nan_norm", .squares = std::numeric_limits<double>::quiet_NaN()},
             {.name = "infinite_loss", .squares = 0.3, .loss = kInf},
             {.name = "nan_loss", .squares = 0.3, .loss = std::numeric_limits<double>::quiet_NaN()},
         }) {
        cases.push_back(clip_case(setup));
    }
}

}  // namespace moebius::ops
