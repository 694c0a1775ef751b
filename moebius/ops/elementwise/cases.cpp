#include "moebius/ops/elementwise/elementwise.h"

#include "moebius/ops/case.h"

namespace moebius::ops {
namespace {

Case convert_case(DType from, DType to, int64_t count) {
    Case c;
    c.op = "convert";
    c.name = std::string(name(from)) + "_to_" + std::string(name(to)) + "." + std::to_string(count);
    c.group = "basic";
    c.dtype = to;
    c.tensors = {{.name = "x", .shape = {count}, .dtype = from},
                 {.name = "out", .shape = {count}, .dtype = to, .role = Role::Output, .exact = true}};
    c.run = [](const Views& v, const Exec& exec) { convert({v["x"], v["out"]}, exec); };
    set_reference(c, [](auto& h) { h["out"].values = h["x"].values; });
    c.mutants = {{"negates", [](const Views& v, const Exec&) {
                      for (int64_t i = 0; i < v["x"].numel(); ++i) {
                          const bool wide = v["x"].dtype == DType::F32;
                          const float value = wide ? v["x"].as<float>()[i] : to_float(v["x"].as<BF16>()[i]);
                          if (v["out"].dtype == DType::BF16) {
                              v["out"].as<BF16>()[i] = to_bf16(-value);
                          } else {
                              v["out"].as<float>()[i] = -value;
                          }
                      }
                  }}};
    return c;
}

Case add_case(DType dtype, int64_t count) {
    Case c;
    c.op = "add";
    c.name = std::string(name(dtype)) + "." + std::to_string(count);
    c.group = "basic";
    c.dtype = dtype;
    c.tensors = {{.name = "x", .shape = {count}, .dtype = dtype},
                 {.name = "y", .shape = {count}, .dtype = dtype},
                 {.name = "out", .shape = {count}, .dtype = dtype, .role = Role::Output}};
    c.run = [](const Views& v, const Exec& exec) { add({v["x"], v["y"], v["out"]}, exec); };
    set_reference(c, [](auto& h) {
        for (int64_t i = 0; i < h["x"].size(0); ++i) h["out"][i] = h["x"][i] + h["y"][i];
    });
    c.mutants = {{"drops the second", [](const Views& v, const Exec& exec) {
                      convert({v["x"], v["out"]}, exec);
                  }}};
    return c;
}

Case jitter_case(DType dtype, int64_t tokens, int64_t hidden) {
    constexpr double kEpsilon = 0.1;
    Case c;
    c.op = "jitter";
    c.name = std::string(name(dtype)) + "." + std::to_string(tokens) + "x" + std::to_string(hidden);
    c.group = "basic";
    c.dtype = dtype;
    c.tensors = {{.name = "x", .shape = {tokens, hidden}, .dtype = dtype},
                 {.name = "out", .shape = {tokens, hidden}, .dtype = dtype, .role = Role::Output}};
    const auto run = [=](const Views& v, const Exec& exec, int64_t first) {
        jitter({.x = v["x"],
                .out = v["out"],
                .epsilon = static_cast<float>(kEpsilon),
                .seed = 7,
                .first_index = first},
               exec);
    };
    c.run = [=](const Views& v, const Exec& exec) { run(v, exec, 1000); };
    set_reference(c, [=](auto& h) {
        using Real = std::decay_t<decltype(h["x"][0])>;
        const Philox random(7, "jitter");
        for (int64_t i = 0; i < tokens * hidden; ++i) {
            const double unit = random.uniform(static_cast<uint64_t>(1000 + i));
            h["out"][i] =
                h["x"][i] * static_cast<Real>(1.0 + static_cast<double>(static_cast<float>(kEpsilon)) *
                                                        (2.0 * unit - 1.0));
        }
    });
    c.mutants = {{"forgets the first index", [=](const Views& v, const Exec& exec) { run(v, exec, 0); }}};
    return c;
}

Case sum_case(int64_t count) {
    Case c;
    c.op = "sum_into";
    c.name = "f32." + std::to_string(count);
    c.group = "basic";
    c.tensors = {{.name = "x", .shape = {count}}, {.name = "out", .shape = {1}, .role = Role::InOut}};
    c.run = [](const Views& v, const Exec& exec) { sum_into({v["x"], v["out"]}, exec); };
    set_reference(c, [](auto& h) {
        for (const auto value : h["x"].values) h["out"][0] += value;
    });
    c.mutants = {{"loses the last", [=](const Views& v, const Exec& exec) {
                      sum_into({v["x"].rows(0, count - 1), v["out"]}, exec);
                  }}};
    return c;
}

// For the benchmark: as many elements as 8,192 tokens of 256 have.
constexpr int64_t kBenchTokens = 8192, kBenchHidden = 256;
Case timed(Case c) {
    c.group = "bench";
    c.bench = true;
    c.mutants.clear();
    return c;
}

}  // namespace

void elementwise_cases(std::vector<Case>& cases) {
    for (const int64_t count : {1, 15, 16, 17, 70000}) {
        for (const DType dtype : {DType::F32, DType::BF16}) {
            cases.push_back(add_case(dtype, count));
            cases.push_back(convert_case(DType::F32, dtype, count));
            cases.push_back(convert_case(DType::BF16, dtype, count));
        }
        cases.push_back(sum_case(count + 1));
    }
    cases.push_back(jitter_case(DType::F32, 9, 33));
    cases.push_back(jitter_case(DType::BF16, 9, 33));
    constexpr int64_t kBench = kBenchTokens * kBenchHidden;
    for (const DType dtype : {DType::F32, DType::BF16}) {
        cases.push_back(timed(add_case(dtype, kBench)));
        cases.push_back(timed(convert_case(dtype == DType::F32 ? DType::BF16 : DType::F32, dtype, kBench)));
        cases.push_back(timed(jitter_case(dtype, kBenchTokens, kBenchHidden)));
    }
    cases.push_back(timed(sum_case(kBenchTokens)));
}

}  // namespace moebius::ops
