// A run's checkpoints: what they hold, and going on from the newest.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moebius/checkpoint/store.h"
#include "moebius/data/tokenizer.h"
#include "moebius/models/model.h"
#include "moebius/train/resume.h"

namespace moebius::train {

// Where a run stands between two steps, beside the tensors.
struct RunPoint {
    int64_t update = 0;  // updates done
    int64_t num_train_steps = 0;
    std::string position;  // of the data, behind the batch of `update`
    std::string window;    // MetricWindow::to_json
};

struct FoundRun {
    RunPoint point;
    std::string path;
    std::vector<std::string> changed;  // settings: "key: before -> now"
    std::string unused_budget;         // unused_time_budget()
    bool complete = false;             // nothing was loaded: no step is left
};

class RunCheckpoints {
  public:
    // Makes checkpoint.ckpt_dir, or throws Error naming it. All are borrowed; the model is placed.
    RunCheckpoints(const config::TrainConfig& config, models::Model& model, DType dtype,
                   const data::Tokenizer& tokenizer, const HostStaging& staging);

    // The newest whole checkpoint, loaded into the model; nothing where there is none. Throws Error where all
    // are damaged, or one is of another model.
    std::optional<FoundRun> resume(const Exec& exec);

    // Its path. With checkpoint.async_save it is written behind the steps, else whole on return, as is the
    // last one of a run, `final`, which is not written twice.
    std::string save(const RunPoint& point, bool final);
    std::string path_of(int64_t step) const;
    int64_t last_saved() const { return store_.last_saved(); }  // whole on disk; −1 before the first
    void poll() { store_.poll(); }  // a failure of a save behind the steps comes out here
    void wait() { store_.wait(); }

  private:
    void load(const checkpoint::Checkpoint& from, const TrainerState& saved, const Exec& exec);
    std::vector<StateEntry> entries();
    TrainerState state(const RunPoint& point) const;

    const config::TrainConfig& config_;
    models::Model& model_;
    DType dtype_;
    const data::Tokenizer& tokenizer_;
    const HostStaging& staging_;
    checkpoint::Store store_;
};

}  // namespace moebius::train
