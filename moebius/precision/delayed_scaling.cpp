#include "moebius/precision/delayed_scaling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "moebius/precision/keywords.h"

namespace moebius::precision {
namespace {

// A NaN in the history is the result, so that the scale stays.
float largest_of(std::span<const float> history) {
    float most = 0.0f;
    for (const float amax : history) {
        if (std::isnan(amax)) return amax;
        most = std::max(most, amax);
    }
    return most;
}

}  // namespace

Recipe delayed_scaling(KeywordReader& reader) {
    Recipe recipe{.source = ScaleSource::Delayed,
                  .scale = ScaleKind::Tensor,
                  .fast_accumulation = {true, false, false}};
    set_elements(recipe, reader.hybrid("HYBRID"));
    DelayedOptions& delayed = recipe.delayed;
    delayed.margin = static_cast<int>(reader.integer("margin", -64, 64).value_or(0));
    delayed.history_length = reader.integer("amax_history_len", 1, int64_t{1} << 20).value_or(1024);
    const std::string algorithm = reader.word("amax_compute_algo", {"max", "most_recent"}).value_or("max");
    delayed.algorithm = algorithm == "max" ? AmaxAlgorithm::Max : AmaxAlgorithm::MostRecent;
    delayed.reduce_amax = reader.flag("reduce_amax").value_or(true);
    refuse_attention(reader);
    return recipe;
}

float update_delayed_scale(std::span<float> history, float scale, float largest,
                           const DelayedOptions& options) {
    MOEBIUS_CHECK(!history.empty());
    const float amax = options.algorithm == AmaxAlgorithm::Max ? largest_of(history) : history[0];
    std::rotate(history.begin(), history.begin() + 1, history.end());
    history[0] = 0.0f;
    if (!(amax > 0.0f && std::isfinite(amax))) return scale;
    const float quotient = std::ldexp(largest / amax, -options.margin);
    return std::isinf(quotient) ? std::numeric_limits<float>::max() : quotient;
}

void update_delayed_scales(const View& history, const View& scale, float largest,
                           const DelayedOptions& options) {
    MOEBIUS_CHECK(history.rank() == 2 && history.contiguous() && history.size(0) == options.history_length &&
                      scale.shape == Shape{history.size(1)},
                  "history ", history.shape.str(), ", scale ", scale.shape.str());
    const int64_t length = history.size(0), experts = history.size(1);
    std::vector<float> own(static_cast<size_t>(length));
    auto* all = history.as<float>();
    for (int64_t e = 0; e < experts; ++e) {
        for (int64_t i = 0; i < length; ++i) own[static_cast<size_t>(i)] = all[i * experts + e];
        float& of_expert = scale.as<float>()[e];
        of_expert = update_delayed_scale(own, of_expert, largest, options);
        for (int64_t i = 0; i < length; ++i) all[i * experts + e] = own[static_cast<size_t>(i)];
    }
}

}  // namespace moebius::precision
