#include "bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>

#include "moebius/base/error.h"
#include "moebius/base/philox.h"
#include "moebius/base/version.h"
#include "moebius/ops/gemm/gemm.h"

namespace moebius::bench {

Options::Options(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
        const size_t equals = word.find('=');
        if (!word.starts_with("--")) {
            rest_.push_back(word);
        } else if (equals == std::string::npos) {
            throw Error(fmt::format("{}: options are --name=value", word));
        } else {
            options_.push_back({word.substr(2, equals - 2), word.substr(equals + 1)});
        }
    }
}

std::string Options::text(const std::string& name, const std::string& otherwise) {
    std::string value = otherwise;
    for (Option& option : options_) {
        if (option.name != name) continue;
        option.used = true;
        value = option.value;
    }
    return value;
}

int64_t Options::number(const std::string& name, int64_t otherwise) {
    const std::string value = text(name, std::to_string(otherwise));
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < 0) {
        throw Error(fmt::format("--{}={}: not a whole number from 0", name, value));
    }
    return number;
}

void Options::done(size_t most_words) const {
    for (const Option& option : options_) {
        if (!option.used) throw Error(fmt::format("--{}: there is no such option here", option.name));
    }
    if (rest_.size() > most_words) throw Error(fmt::format("{}: one word too many", rest_[most_words]));
}

Machine::Machine(int count) : device(Device::cpu_from_environment()), threads(count) {
    exec = {.device = &device, .pool = &pool, .threads = &threads};
}

Json machine_json(const Machine& machine) {
    const BuildInfo& build = build_info();
    return {{"version", build.version},
            {"commit", build.commit},
            {"dirty", build.dirty},
            {"build_type", build.build_type},
            {"compiler", build.compiler},
            {"device", machine.device.description()},
            {"instructions", name(machine.device.isa())},
            {"threads", machine.threads.size()}};
}

void print(const Json& line) {
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
}

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ReferenceProduct::ReferenceProduct(const Exec& exec)
    : exec_(exec),
      a_(Tensor::empty("bench.a", {kM, kK}, DType::F32, exec)),
      b_(Tensor::empty("bench.b", {kN, kK}, DType::F32, exec)),
      out_(Tensor::empty("bench.out", {kM, kN}, DType::F32, exec)) {
    const Philox random(42, "bench.product");
    uint64_t index = 0;
    for (const View& view : {a_.view(), b_.view()}) {
        auto* values = view.as<float>();
        for (int64_t i = 0; i < view.numel(); ++i) values[i] = static_cast<float>(random.normal(index++));
    }
}

double ReferenceProduct::median_seconds(int runs) {
    std::vector<double> samples;
    for (int i = -1; i < runs; ++i) {
        const double start = seconds_now();
        ops::gemm({.a = a_, .b = b_, .out = out_}, exec_);
        if (i >= 0) samples.push_back(seconds_now() - start);
    }
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
}

}  // namespace moebius::bench
