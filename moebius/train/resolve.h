// Names and keys of the configuration into what they stand for, and the checks that need more than one room
// to see.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "moebius/config/load.h"
#include "moebius/train/schedule.h"
#include "moebius/train/step.h"

namespace moebius::train {

// The registries' names, for the configuration's checks and --help.
config::Choices registry_choices();

DType dtype_from(const std::string& name);  // "fp32", "bf16"
// `places`, as config::Loaded has them, are for messages.
models::ModelOptions model_options(const config::TrainConfig& c,
                                   const std::map<std::string, std::string>& places = {});
// What is kept of each parameter, and in which types.
PlaceOptions place_options(const config::TrainConfig& c);
StepOptions step_options(const config::TrainConfig& c, const data::BatchShape& shape);
// Whether the device's steps run as a CUDA graph. Throws Error where cuda_graph = on and they cannot.
bool use_cuda_graph(const config::TrainConfig& c, const nn::DecoderOptions& model, const Device& device);
Schedule schedule(const config::TrainConfig& c, int64_t num_train_steps);
data::LoaderOptions loader_options(const config::TrainConfig& c);

// CPUs that this process may run on, by its affinity and its control group's share of time.
int available_cpus();

// What the configuration asks of the device and the device cannot do. Throws Error naming keys, values and,
// of those in `places` (as config::Loaded has them), where they stand.
void check_device(const config::TrainConfig& c, const Device& device,
                  const std::map<std::string, std::string>& places = {});

// What was set and counts for nothing, a sentence each: keys of FP8 without it, variants of operations that
// `log` of a step does not have.
std::vector<std::string> unused_fp8_keys(const config::Fp8Config& c);
std::vector<std::string> unused_kernels(const ForcedVariants& forced, const VariantLog& log);

// A coefficient of the load-balancing loss that was set and would count for nothing. Throws Error.
void check_aux_loss(const models::Model& model, const config::TrainConfig& c);

// "key = value" of what shapes the model and config.json has no key for: who opens a model folder of this run
// computes without it.
std::vector<std::string> keys_beyond_hugging_face(const config::TrainConfig& c);

// Contradictions between the model and the data: vocabulary, special tokens. Throws Error naming keys and
// values.
void check_model_fits_data(const models::Model& model, const data::Tokenizer& tokenizer,
                           const config::Loaded& loaded);

}  // namespace moebius::train
