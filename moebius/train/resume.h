// What a checkpoint remembers beside tensors, and whether a run may go on from it.
#pragma once

#include <string>
#include <vector>

#include "moebius/config/load.h"
#include "moebius/config/model_config.h"

namespace moebius::train {

struct TrainerState {
    int64_t update = 0;           // updates done
    int64_t num_train_steps = 0;  // of the run that wrote it
    std::string dtype;
    std::string model_config;  // config.json's text
    std::string router;        // keys of router.*, one text
    std::string window;        // MetricWindow::to_json
    std::string config_yaml;   // the resolved configuration, for people

    std::string to_json() const;
    static TrainerState parse(const std::string& json, const std::string& where);
};

// The text of router.* that a resume must not change.
std::string router_keys(const config::TrainConfig& c);

// Throws Error naming the first key that shapes the model and differs, and both values.
void check_same_model(const TrainerState& saved, const TrainerState& now, const std::string& checkpoint);

// Whether its run keeps masters beside its weights.
bool has_masters(const TrainerState& state);

// Throws Error naming key and both values where going on would drop bits that the checkpoint has: its fp32
// masters or moments. The other way round they are widened, which is exact.
void check_state_is_kept(const TrainerState& saved, const TrainerState& now, const std::string& checkpoint);

// What to say where the run began with another time budget: its number of steps was chosen then and stays. ""
// where there is nothing to say.
std::string unused_time_budget(const TrainerState& saved, const TrainerState& now);
// Whether both quantize the same tensors in the same way, so that the one's amax histories are the other's.
bool same_low_precision(const TrainerState& saved, const TrainerState& now);
// Throws Error naming key and both values where one of the two holds weights as codes and masters alone, and
// they differ in which or how.
void check_persistent_weights(const TrainerState& saved, const TrainerState& now,
                              const std::string& checkpoint);

// "key: before -> now" of every other key that shapes the training and differs: what a resume takes as it is
// now, and says. An option set to its default, or the same layers listed otherwise, is no change.
std::vector<std::string> changed_settings(const TrainerState& saved, const TrainerState& now);

}  // namespace moebius::train
