// A model with its parameters: declared, placed, filled or loaded.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "moebius/checkpoint/model_folder.h"
#include "moebius/models/family.h"

namespace moebius::models {

class Model {
  public:
    // Declares everything; no memory yet.
    Model(config::ModelConfig config, const ModelOptions& options);

    // Memory for parameters, statistics and buffers.
    void place(const PlaceOptions& options, const Exec& exec);
    // Weights from a Hugging Face folder, in any layout that the family reads. Throws Error naming the tensor
    // and the file: missing, extra, mis-shaped, truncated.
    checkpoint::ImportReport load(const std::filesystem::path& folder, const Exec& exec);

    const config::ModelConfig& config() const { return config_; }
    const Family& family() const { return *family_; }
    ParameterSet& parameters() { return parameters_; }
    const ParameterSet& parameters() const { return parameters_; }
    nn::Decoder& decoder() { return *decoder_; }
    const nn::Decoder& decoder() const { return *decoder_; }
    const nn::DecoderOptions& options() const { return options_; }
    std::vector<checkpoint::NameLayout> layouts() const { return family_->layouts(options_); }

    // Matrix parameters that one token passes: lm_head and router included, no input embedding, no norms.
    int64_t active_parameters() const;
    // FLOPs of forward and backward for one token in a sequence of `length`, attention's causal half
    // included.
    double flops_per_token(int64_t length) const;

  private:
    config::ModelConfig config_;
    const Family* family_;
    nn::DecoderOptions options_;
    ParameterSet parameters_;
    std::unique_ptr<nn::Decoder> decoder_;
};

// What to warn of where the folder's weights are of another type than the model computes in; "" where not.
std::string precision_warning(const checkpoint::ImportReport& report, const std::filesystem::path& folder,
                              DType dtype);

// The recipe that some of a model's layers run under, "Float8BlockScaling (E4M3)"; "" where none does. A
// folder that training writes has it under this key in the metadata of its weight files, which Hugging Face
// passes over.
inline constexpr const char* kRecipeKey = "moebius.recipe";
std::string recipe_in_use(const nn::DecoderOptions& options);
// What to warn of where the folder was trained under another recipe than the model runs under; "" where not,
// and where the folder does not say.
std::string recipe_warning(const checkpoint::ImportReport& report, const std::filesystem::path& folder,
                           const nn::DecoderOptions& options);

// "key = value there, value here" of what shapes the computation but no tensor, where the folder's
// config.json differs from the model; nothing where it has none. Throws Error for a key that no model here
// can honour.
std::vector<std::string> other_settings(const std::filesystem::path& folder, const Model& model);

}  // namespace moebius::models
