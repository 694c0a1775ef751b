// A training run from configuration to last checkpoint.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moebius/config/load.h"
#include "moebius/train/sink.h"

namespace moebius::train {

struct TrainOptions {
    config::Loaded loaded;
    std::vector<std::filesystem::path> config_dirs;  // where models/NAME/config.json is looked for
    std::vector<std::string> command_line;           // for run.json
    const std::atomic<bool>* stop = nullptr;         // set by a signal: finish the step, save, return
    Sink* sink = nullptr;
    // Steps whose results may be outstanding while the next one is queued, 0 or 1. Not given: 1 on a GPU, so
    // that it never waits for the host.
    std::optional<int64_t> results_behind;
};

struct TrainResult {
    int64_t first_step = 0, last_step = 0;  // updates done before and after this call
    bool complete = false;                  // last_step is the run's last
    bool already_complete = false;          // nothing was left to do
    bool stopped = false;                   // by options.stop
    double final_loss = 0;                  // of the last step
    double validation_loss = 0;             // of the last validation; 0 without
    double seconds = 0;                     // of the steps
    std::string checkpoint;                 // path of the last one written or found
};

// Throws Error for whatever the user can change; a non-finite loss or norm is one too, after a checkpoint of
// the state before it was written.
TrainResult train(const TrainOptions& options);

}  // namespace moebius::train
