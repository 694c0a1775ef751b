#include "moebius/models/model.h"

#include <fmt/format.h>

#include <algorithm>

namespace moebius::models {

Model::Model(config::ModelConfig config, const ModelOptions& options)
    : config_(std::move(config)),
      family_(&family_of(config_)),
      options_(family_->decoder_options(config_, options)),
      decoder_(std::make_unique<nn::Decoder>(parameters_, options_)) {}

void Model::place(const PlaceOptions& options, const Exec& exec) {
    parameters_.place(options, exec);
    decoder_->place(exec);
}

checkpoint::ImportReport Model::load(const std::filesystem::path& folder, const Exec& exec) {
    checkpoint::ImportReport report =
        checkpoint::import_model(checkpoint::real_file_system(), folder, layouts(), parameters_.state(false),
                                 checkpoint::Conversion::Any, HostStaging(exec));
    parameters_.masters_from_values(exec);
    parameters_.touch();
    return report;
}

std::string precision_warning(const checkpoint::ImportReport& report, const std::filesystem::path& folder,
                              DType dtype) {
    const checkpoint::FileType expected = checkpoint::file_type(dtype);
    for (const checkpoint::FileType type : report.types) {
        if (type == expected) continue;
        return fmt::format("{} holds {} weights, computed with in {} (dtype)", folder.string(),
                           checkpoint::name(type), name(dtype));
    }
    return {};
}

std::string recipe_in_use(const nn::DecoderOptions& options) {
    const nn::LowPrecisionOptions& low = options.low_precision;
    bool used = false;
    for (int64_t layer = 0; layer < options.layers; ++layer) used |= low.uses(static_cast<size_t>(layer));
    if (!used) return {};
    const bool hybrid = low.recipe->tensor(precision::Role::GradOutput).element == DType::F8E5M2;
    return fmt::format("{} ({})", low.recipe->name, hybrid ? "HYBRID" : "E4M3");
}

std::string recipe_warning(const checkpoint::ImportReport& report, const std::filesystem::path& folder,
                           const nn::DecoderOptions& options) {
    const auto found = report.metadata.find(kRecipeKey);
    const std::string here = recipe_in_use(options);
    if (found == report.metadata.end() || found->second == here) return {};
    return fmt::format("{} was trained under {}, here it is computed with {} (fp8_config, --fp8-recipe)",
                       folder.string(), found->second, here.empty() ? "no recipe" : here);
}

std::vector<std::string> other_settings(const std::filesystem::path& folder, const Model& model) {
    std::error_code error;
    if (!std::filesystem::exists(folder / "config.json", error)) return {};
    const config::ModelConfig config = config::ModelConfig::load(folder.string(), {});
    const nn::DecoderOptions theirs = family_of(config).decoder_options(config, {});
    const nn::DecoderOptions& ours = model.options();
    std::vector<std::string> found;
    const auto compare = [&](const char* key, auto there, auto here) {
        if (there != here) found.push_back(fmt::format("{} = {} there, {} here", key, there, here));
    };
    const nn::AttentionOptions &there = theirs.layer.attention, &here = ours.layer.attention;
    compare("num_attention_heads", there.heads, here.heads);
    compare("head_dim", there.head_dim, here.head_dim);
    compare("sliding_window", there.window, here.window);
    compare("rope_theta", there.rope_theta, here.rope_theta);
    compare("rms_norm_eps", theirs.layer.norm_eps, ours.layer.norm_eps);
    compare("num_experts_per_tok", theirs.layer.moe.router.topk, ours.layer.moe.router.topk);
    return found;
}

int64_t Model::active_parameters() const {
    const nn::AttentionOptions& a = options_.layer.attention;
    const nn::GroupedMlpOptions& e = options_.layer.moe.experts;
    const int64_t attention = a.hidden * (2 * a.heads + 2 * a.kv_heads) * a.head_dim;
    const int64_t experts = options_.layer.moe.router.topk * 3 * e.hidden * e.intermediate;
    const int64_t router = e.experts * e.hidden;
    return options_.layers * (attention + experts + router) + options_.vocab * a.hidden;
}

double Model::flops_per_token(int64_t length) const {
    const nn::AttentionOptions& a = options_.layer.attention;
    const int64_t window = a.window > 0 ? std::min(a.window, length) : length;
    // Two products of window · head_dim a query head, half of them masked where the window is the sequence.
    const double keys = window == length ? 0.5 * static_cast<double>(length) : static_cast<double>(window);
    const double core = 4.0 * keys * static_cast<double>(a.heads * a.head_dim);
    return 6.0 * static_cast<double>(active_parameters()) + 3.0 * static_cast<double>(options_.layers) * core;
}

}  // namespace moebius::models
