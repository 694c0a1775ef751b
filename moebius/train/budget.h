// Choices that a run makes for its user, and limits it checks before it begins.
#pragma once

#include <string>

#include "moebius/config/schema.h"
#include "moebius/train/step.h"

namespace moebius::train {

struct BudgetInput {
    int64_t training_tokens = 0, tokens_per_step = 1;
    double flops_per_step = 0;
    double minutes = 10;
    DType dtype = DType::F32;
    bool codes = false;     // under a recipe of low precision
    double gemm_flops = 0;  // a second, of the device's products; 0: measured
};

struct StepBudget {
    int64_t steps = 1;
    std::string reason;
};

// As many steps as fit into the time, by the speed of a matrix product measured here, but no more than
// kMaxEpochs passes over the data.
inline constexpr double kMaxEpochs = 20;
StepBudget choose_num_steps(const BudgetInput& input, const Exec& exec);

// Bytes of host memory that can still be had: of the machine, of the control group, of `ulimit -v`.
int64_t available_memory();
// The same of the device's own memory.
int64_t available_memory(const Device& device);

// Throw DeviceError naming the bytes needed, what holds them, and the keys to change, where they exceed what
// there is.
// `async_save`: with the copy on the host from which checkpoints are written behind the steps.
struct KeptByRecipe {
    int64_t quantized = 0;  // of these parameters, those that are kept in low precision too
    int64_t histories = 0;  // numbers of DelayedScaling's
};
void check_memory_for_parameters(int64_t numel, const KeptByRecipe& recipe, const PlaceOptions& options,
                                 bool async_save, const Device& device);
void check_memory_for_batches(const data::BatchShape& shape, const config::TrainConfig& c);
void check_memory_for_step(const StepPlan& plan, const PoolReport& held, const config::TrainConfig& c,
                           const Device& device);

}  // namespace moebius::train
