// fp8_config, layer_precision and fp8_stats_config: into a model's options, and what a run tells of them.
#pragma once

#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "moebius/config/schema.h"
#include "moebius/models/model.h"

namespace moebius::train {

// An option of a recipe from its JSON; nothing: it is not true, false, a number or text.
std::optional<precision::KeywordValue> keyword_value(const std::string& json);

// Throws Error naming key and value: no such recipe, keywords that it does not have or that do not fit.
nn::LowPrecisionOptions low_precision_options(const config::TrainConfig& c);

// One quantized tensor of one step, of all its experts and micro-batches.
struct TensorStatistics {
    std::string name;  // "layers.0.moe.gate_up.input"
    double amax = 0;   // largest magnitude, NaN left out
    // What numbers are multiplied by, the smallest of the experts'; 0: each block has a scale of its own.
    double scale = 0;
    double underflow = 0, saturation = 0;  // shares of its numbers: became zero, were beyond the largest code
};

// The host's copy of nn::LowPrecisionState::statistics(), taken behind a step.
class StatisticsCopy {
  public:
    StatisticsCopy(const nn::LowPrecisionState& state, std::pmr::memory_resource* host);
    void take(const nn::LowPrecisionState& state, const Exec& exec);  // into pinned memory: behind the stream
    // `expert_counts` (layers, experts): rows that each got in the step; `tokens`: of all its micro-batches.
    std::vector<TensorStatistics> read(const nn::LowPrecisionState& state, const precision::Recipe& recipe,
                                       const std::vector<float>& expert_counts, int64_t experts,
                                       int64_t tokens) const;

  private:
    std::pmr::vector<float> amax_, scale_;
    std::pmr::vector<int64_t> counts_;
};

// "DelayedScaling (E4M3, gradients E5M2) in 10 of 12 layers: attention's projections and the experts; …"
std::string describe_low_precision(nn::Decoder& decoder);

// What the model's matrix products run in, for the device's peak.
DType product_dtype(const nn::DecoderOptions& options, DType dtype, const Device& device);

}  // namespace moebius::train
