#include "moebius/train/low_precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "moebius/base/error.h"
#include "moebius/runtime/transfer.h"

namespace moebius::train {
namespace {

using precision::Role;
using precision::ScaleSource;

constexpr int64_t kRoles = 3;
constexpr const char* kRoleNames[] = {"input", "weight", "grad_output"};

std::string_view element_name(DType element) {
    return element == DType::F8E5M2 ? "E5M2" : "E4M3";
}

}  // namespace

std::optional<precision::KeywordValue> keyword_value(const std::string& json) {
    const auto value = nlohmann::json::parse(json, nullptr, false);
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number_integer()) return value.get<int64_t>();
    if (value.is_number()) return value.get<double>();
    if (value.is_string()) return value.get<std::string>();
    return {};
}

nn::LowPrecisionOptions low_precision_options(const config::TrainConfig& c) {
    nn::LowPrecisionOptions options;
    if (c.fp8_config.fp8_recipe.empty()) return options;  // of a command that has no default
    precision::Keywords keywords;
    std::map<std::string, std::string> places;
    for (const auto& [key, literal] : c.fp8_config.fp8_recipe_kwargs) {
        const auto value = keyword_value(literal.json);
        if (!value) {
            throw Error(
                fmt::format("fp8_config.fp8_recipe_kwargs.{} = {} must be true, false, a number or text ({})",
                            key, literal.json, literal.place));
        }
        keywords[key] = *value;
        if (!literal.place.empty()) places[key] = literal.place;
    }
    // Made where it is not used too: a keyword that is wrong is an error, never ignored.
    auto recipe = precision::make_recipe(c.fp8_config.fp8_recipe, c.fp8_config.fp8_format, keywords, places);
    if (!c.fp8_config.enabled) return options;
    options.recipe = std::move(recipe);
    for (const std::string& name : c.layer_precision.value_or(std::vector<std::string>()))
        options.layers.push_back(name == "fp8");
    options.persistent = c.fp8_config.quantized_model_init_kwargs.enabled;
    if (c.fp8_config.keep_weights != "auto") options.keep_weights = c.fp8_config.keep_weights == "on";
    options.statistics = c.fp8_stats_config.enabled;
    options.micro_batches = c.grad_acc_steps;
    return options;
}

StatisticsCopy::StatisticsCopy(const nn::LowPrecisionState& state, std::pmr::memory_resource* host)
    : amax_(host), scale_(host), counts_(host) {
    const nn::LowPrecisionState::Statistics s = state.statistics();
    const auto size = [](const View& view) { return static_cast<size_t>(view ? view.numel() : 0); };
    amax_.resize(size(s.observed_amax));
    scale_.resize(size(s.scale));
    counts_.resize(size(s.counts));
}

void StatisticsCopy::take(const nn::LowPrecisionState& state, const Exec& exec) {
    const nn::LowPrecisionState::Statistics s = state.statistics();
    const auto copy_part = [&](auto& to, const View& from) {
        if (!to.empty()) copy_to_host(to.data(), from.data, to.size() * sizeof(to[0]), exec);
    };
    copy_part(amax_, s.observed_amax);
    copy_part(scale_, s.scale);
    copy_part(counts_, s.counts);
}

std::vector<TensorStatistics> StatisticsCopy::read(const nn::LowPrecisionState& state,
                                                   const precision::Recipe& recipe,
                                                   const std::vector<float>& expert_counts, int64_t experts,
                                                   int64_t tokens) const {
    std::vector<TensorStatistics> all;
    if (amax_.empty()) return all;
    const nn::LowPrecisionState::Statistics s = state.statistics();
    const int64_t parts = s.observed_amax.size(0), count = s.observed_amax.size(2);
    for (const auto& member : state.members()) {
        const MatrixShape w = member.linear->matrix();
        for (int64_t role = 0; role < kRoles; ++role) {
            TensorStatistics t{.name = member.linear->parameter().spec.name + "." + kRoleNames[role]};
            double elements = 0, small = 0, large = 0, scale = INFINITY;
            for (int64_t e = 0; e < w.experts; ++e) {
                const int64_t at = role * count + state.offset(member) + e;
                double amax = 0;
                for (int64_t part = 0; part < parts; ++part) {
                    const auto place = static_cast<size_t>(part * kRoles * count + at);
                    amax = std::max(amax, static_cast<double>(amax_[place]));
                    small += static_cast<double>(counts_[2 * place]);
                    large += static_cast<double>(counts_[2 * place + 1]);
                }
                const double rows =
                    role == 1 ? static_cast<double>(w.rows)
                    : member.routed
                        ? static_cast<double>(expert_counts[static_cast<size_t>(member.layer * experts + e)])
                        : static_cast<double>(tokens);
                elements += rows * static_cast<double>(role == 2 ? w.rows : w.columns);
                t.amax = std::max(t.amax, amax);
                const float largest = largest_finite(recipe.tensor(static_cast<Role>(role)).element);
                if (!scale_.empty())
                    scale = std::min(scale, static_cast<double>(scale_[static_cast<size_t>(at)]));
                if (recipe.source == ScaleSource::Current && amax > 0)
                    scale = std::min(scale, static_cast<double>(largest) / amax);
            }
            // A weight's numbers of a step are all its numbers, once.
            if (role == 1) elements = static_cast<double>(w.rows * w.columns * w.experts);
            t.scale = std::isinf(scale) ? 0 : scale;
            t.underflow = elements > 0 ? small / elements : 0;
            t.saturation = elements > 0 ? large / elements : 0;
            all.push_back(std::move(t));
        }
    }
    return all;
}

std::string describe_low_precision(nn::Decoder& decoder) {
    const nn::LowPrecisionOptions& o = decoder.options().low_precision;
    int64_t layers = 0;
    for (int64_t i = 0; i < decoder.options().layers; ++i) layers += o.uses(static_cast<size_t>(i));
    const DType forward = o.recipe->tensor(Role::Input).element,
                gradient = o.recipe->tensor(Role::GradOutput).element;
    if (layers == 0) {
        return fmt::format(
            "{} in none of {} layers (layer_precision, config_kwargs.num_layers_at_start_in_bf16, "
            "…_at_end_in_bf16): nothing is quantized",
            o.recipe->name, decoder.options().layers);
    }
    constexpr double kMiB = 1 << 20;
    const int64_t kept = decoder.low_precision().weight_bytes();
    const std::string weights = kept == 0 ? "weights are quantized for each use (fp8_config.keep_weights)"
                                          : fmt::format("quantized weights take {:.1f} MiB beside {}",
                                                        static_cast<double>(kept) / kMiB,
                                                        o.persistent ? "fp32 masters alone" : "the others");
    const int64_t history = bytes_of(DType::F32, decoder.amax_history_numel());
    const std::string histories =
        history == 0 ? ""
                     : fmt::format("; amax histories take {:.1f} MiB", static_cast<double>(history) / kMiB);
    return fmt::format(
        "{} ({}{}) in {} of {} layers: products of attention's projections and of the experts; {}{}",
        o.recipe->name, element_name(forward),
        gradient == forward ? "" : fmt::format(", gradients {}", element_name(gradient)), layers,
        decoder.options().layers, weights, histories);
}

DType product_dtype(const nn::DecoderOptions& options, DType dtype, const Device& device) {
    const auto& recipe = options.low_precision.recipe;
    if (!recipe) return dtype;
    // MX operands are widened to bf16 where tensor cores do not take them.
    constexpr int kBlackwell = 100;
    const bool widened = recipe->scale == ScaleKind::MX32 && device.cc() < kBlackwell;
    return widened ? DType::BF16 : DType::F8E4M3;
}

}  // namespace moebius::train
