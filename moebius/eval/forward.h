// `moebius forward`: one batch through a model folder, everything that another implementation can be compared
// by.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "moebius/models/model.h"

namespace moebius::eval {

struct ForwardOptions {
    std::filesystem::path model;  // a Hugging Face folder
    std::filesystem::path
        input;  // input_ids (B, S) or (T); optional labels of the same shape, cu_seqlens (n+1)
    std::filesystem::path
        output;  // logits, loss, aux_loss, router_logits.L, topk_indices.L, grad.<Hugging Face name>
    bool gradients = false;    // of loss (auxiliary losses included); needs labels
    DType dtype = DType::F32;  // of weights and activations; results are written as f32
    models::ModelOptions model_options;
    nn::FusionMode fusion = nn::FusionMode::Auto;
    int64_t free_bytes = INT64_MAX;  // of the device: more parameters than fit are refused, not tried
};

struct ForwardSummary {
    int64_t tokens = 0, sequences = 0, labels = 0;
    double loss = 0;  // with the auxiliary losses; 0 without labels
    std::string layout;
};

// Throws Error naming file, tensor and value for input that does not fit the model. `output` appears whole or
// not at all.
ForwardSummary forward(const ForwardOptions& options, const Exec& exec);

}  // namespace moebius::eval
