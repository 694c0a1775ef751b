// The experts' MLP as a loop over experts, a dense product each: what Hugging Face's eager experts do. Kept
// to compare with (`expert_ffn_mode = loop`); it reads split_sizes on the host, so it runs on the CPU only.
#pragma once

#include "moebius/nn/sequential.h"

namespace moebius::nn {

// Same extra inputs and gradients as the chain of grouped_mlp(): split_sizes, scales, split_sizes. Declares
// the same parameters.
std::unique_ptr<Fusible> loop_grouped_mlp(ParameterSet& parameters, const std::string& name,
                                          const GroupedMlpOptions& options);

}  // namespace moebius::nn
