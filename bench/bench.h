// The benchmark program's commands. Each prints JSON, one object a line, on standard output;
// tools/bench_cpu.py drives them and writes bench/results.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moebius/tensor/tensor.h"

namespace moebius::bench {

using Json = nlohmann::ordered_json;

// "--name=value" and bare words of a command line. Every option must be asked for before done().
class Options {
  public:
    explicit Options(const std::vector<std::string>& words);
    std::string text(const std::string& name, const std::string& otherwise);
    int64_t number(const std::string& name, int64_t otherwise);
    const std::vector<std::string>& rest() const { return rest_; }
    // Throws Error naming an option that nobody asked for, or more bare words than `most_words`.
    void done(size_t most_words) const;

  private:
    struct Option {
        std::string name, value;
        bool used = false;
    };
    std::vector<Option> options_;
    std::vector<std::string> rest_;
};

// What work runs on: the CPU, a pool, threads.
struct Machine {
    explicit Machine(int threads);
    Device device;
    HostArena pool;
    ThreadPool threads;
    Exec exec;
};
// Build, device and threads: the first line of every command.
Json machine_json(const Machine& machine);

void print(const Json& line);
double seconds_now();

// Seconds of a product (4096, 1024) x (1024, 1024)ᵀ in fp32: what the machine gives at this moment.
class ReferenceProduct {
  public:
    explicit ReferenceProduct(const Exec& exec);
    double median_seconds(int runs);
    static constexpr int64_t kM = 4096, kN = 1024, kK = 1024;
    static constexpr double kFlops = 2.0 * kM * kN * kK;

  private:
    Exec exec_;
    Tensor a_, b_, out_;
};

int run_ops(Options options);
int run_step(Options options);
int run_train(Options options);
int run_fasta(Options options);

}  // namespace moebius::bench
