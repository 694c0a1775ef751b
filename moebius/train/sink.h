// What a training run tells whoever shows it. The library prints nothing itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moebius::train {

struct Progress {
    int64_t step = 0, total_steps = 0;
    double loss = 0;  // mean over the window
    double learning_rate = 0, grad_norm = 0;
    double tokens_per_second = 0;  // over the window
    double seconds_left = 0;       // at the run's mean speed
    bool window_end = false;       // a metrics line was written for this step
};

struct ValidationReport {
    int64_t step = 0, labels = 0, batches = 0;
    double loss = 0;
    double order1 = 0, order3 = 0;  // held-out losses of count models of the same training bases; 0: not made
    // Lower-case letters were labels of their own, which the count models take for the same: not comparable.
    bool cased = false;
    bool final = false;
};

class Sink {
  public:
    virtual ~Sink() = default;
    virtual void note(const std::string& line) = 0;  // facts of the run's start and end, one line each
    virtual void progress(const Progress& progress) = 0;
    virtual void validation(const ValidationReport& report) = 0;
    // The checkpoint is whole on disk.
    virtual void saved(const std::string& path, int64_t step) = 0;
};

}  // namespace moebius::train
