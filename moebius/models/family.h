// A family is a translation: a Hugging Face config.json into layers, and our names into Hugging Face's.
#pragma once

#include <string>
#include <vector>

#include "moebius/checkpoint/name_rules.h"
#include "moebius/config/model_config.h"
#include "moebius/nn/decoder.h"

namespace moebius::models {

// What the run decides about a model, beside its config.json.
struct ModelOptions {
    nn::ExpertMode expert_mode = nn::ExpertMode::GroupedLinear;
    nn::Recompute recompute = nn::Recompute::None;
    ops::RouterScore router_score = ops::RouterScore::Softmax;
    int64_t num_groups = 1, topk_groups = 1;
    bool selection_bias = false;
    double bias_update_rate = 0;
    double z_loss_coeff = 0;
    std::string aux_loss_definition = "auto";   // auto | huggingface | switch
    bool spike_no_more_embedding_init = false;  // embeddings N(0, 1), never tied
    bool megatron_scaled_init = false;  // attention's and experts' output projections std / √(2 · layers)
    bool decay_embedding = false;
    nn::LowPrecisionOptions low_precision;  // layers: what layer_precision says, empty without it
    std::string layer_precision_place{};    // for messages
};

struct Family {
    const char* model_type;    // config.json's
    const char* architecture;  // what `architectures` names
    // Throws Error naming file, key and value: a required key absent, values that contradict each other, a
    // key that changes the mathematics and isn't supported.
    nn::DecoderOptions (*decoder_options)(const config::ModelConfig&, const ModelOptions&);
    // Every layout that is read, the one that is written first.
    std::vector<checkpoint::NameLayout> (*layouts)(const nn::DecoderOptions&);
};

// By config.json's model_type. Throws Error naming the value and the families there are.
const Family& family_of(const config::ModelConfig& config);
std::vector<std::string> family_names();

const Family& mixtral_family();

}  // namespace moebius::models
