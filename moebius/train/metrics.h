// Figures of a window of steps, and the file they go to.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "moebius/runtime/pool.h"
#include "moebius/train/sink.h"
#include "moebius/train/step.h"

namespace moebius::train {

// Means and sums since the last metrics line. Survives a resume as text, so that windows may span
// checkpoints.
class MetricWindow {
  public:
    void add(const StepResult& result, int64_t tokens, int64_t real_tokens, double seconds);
    int64_t steps() const { return steps_; }
    double loss() const;  // mean over steps
    double seconds() const { return seconds_; }
    int64_t tokens() const { return tokens_; }
    int64_t real_tokens() const { return real_tokens_; }
    const std::vector<double>& expert_counts() const { return counts_; }
    void reset() { *this = MetricWindow(); }

    std::string to_json() const;
    static MetricWindow parse(const std::string& json);  // throws Error

  private:
    int64_t steps_ = 0, tokens_ = 0, real_tokens_ = 0;
    double loss_ = 0, seconds_ = 0;
    std::vector<double> counts_;
};

// One layer's share of the load: 1, ln E and 0 where balanced.
struct LayerLoad {
    double max_over_mean = 0, entropy = 0, dropped = 0;
};
LayerLoad layer_load(const double* counts, int64_t experts);

struct MetricsLine {
    int64_t step = 0, total_steps = 0;
    double learning_rate = 0;
    StepResult last;
    const MetricWindow* window = nullptr;
    int64_t layers = 0, experts = 0;
    double flops_per_token = 0;
    double peak_flops = 0;  // of the device for the recipe's type; 0: not known, mfu is null
    PoolReport memory;
    double data_wait_seconds = 0;  // of the window
};
std::string metrics_json(const MetricsLine& line);

std::string validation_json(const ValidationReport& report);

// metrics.jsonl: one object a line. Lines of steps after `keep_through` (of a run that went on behind its
// last checkpoint) are dropped when it is opened.
class MetricsFile {
  public:
    MetricsFile(const std::filesystem::path& path, int64_t keep_through);
    void append(const std::string& json_object);  // flushed; throws Error naming the path

  private:
    std::filesystem::path path_;
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace moebius::train
