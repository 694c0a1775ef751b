#include "moebius/ops/aux_loss/cpu.h"

namespace moebius::ops::cpu {
namespace {

// E · Σ_e f_e P_e of one set of statistics, and what its gradient needs. Zero without tokens.
struct Balance {
    double value = 0;
    double per_prob = 0;  // d value / d prob_sums[e] = per_prob · counts[e]
};

// `count(e)`, `prob_sum(e)`: sums over the set's tokens. Switch divides f by k too (`copies_per_token`).
template <class Count, class ProbSum>
Balance balance(int64_t experts, double tokens, double copies_per_token, Count count, ProbSum prob_sum) {
    if (!(tokens > 0)) return {};
    Balance result;
    result.per_prob = static_cast<double>(experts) / (copies_per_token * tokens * tokens);
    for (int64_t e = 0; e < experts; ++e) result.value += count(e) * prob_sum(e);
    result.value *= result.per_prob;
    return result;
}

}  // namespace

// L · E numbers: one thread, in double.
void aux_loss(const AuxLossArgs& args, const Exec&) {
    const int64_t layers = args.counts.size(0), experts = args.counts.size(1);
    const auto* counts = args.counts.as<float>();
    const auto* prob_sums = args.prob_sums.as<float>();
    const auto* z_sums = args.z_sums.as<float>();
    const auto* tokens = args.tokens.as<float>();
    const auto at = [&](const float* values, int64_t layer, int64_t e) {
        return static_cast<double>(values[layer * experts + e]);
    };
    const bool together = args.definition == AuxLossDefinition::HuggingFace;
    const double copies = together ? 1.0 : static_cast<double>(args.topk);
    const double coeff = args.coeff, z_coeff = args.z_coeff;
    const double scale = args.scale ? static_cast<double>(*args.scale.as<float>()) : 0;

    double all_tokens = 0;
    for (int64_t layer = 0; layer < layers; ++layer) all_tokens += static_cast<double>(tokens[layer]);
    const auto over_layers = [&](const float* values, int64_t e) {
        double total = 0;
        for (int64_t layer = 0; layer < layers; ++layer) total += at(values, layer, e);
        return total;
    };
    const Balance whole =
        together ? balance(
                       experts, all_tokens, copies, [&](int64_t e) { return over_layers(counts, e); },
                       [&](int64_t e) { return over_layers(prob_sums, e); })
                 : Balance{};
    double total = whole.value, z_total = 0;
    for (int64_t layer = 0; layer < layers; ++layer) {
        const Balance own = balance(
            experts, static_cast<double>(tokens[layer]), copies,
            [&](int64_t e) { return at(counts, layer, e); },
            [&](int64_t e) { return at(prob_sums, layer, e); });
        if (!together) total += own.value;
        if (args.layer_aux_loss) args.layer_aux_loss.as<float>()[layer] = static_cast<float>(own.value);
        const double per_token = tokens[layer] > 0 ? 1.0 / static_cast<double>(tokens[layer]) : 0;
        if (per_token > 0) z_total += static_cast<double>(z_sums[layer]) * per_token;
        if (args.dz) args.dz.as<float>()[layer] = static_cast<float>(scale * z_coeff * per_token);
        if (!args.dprobs) continue;
        for (int64_t e = 0; e < experts; ++e) {
            const double count = together ? over_layers(counts, e) : at(counts, layer, e);
            const double per_prob = together ? whole.per_prob : own.per_prob;
            args.dprobs.as<float>()[layer * experts + e] =
                static_cast<float>(scale * coeff * per_prob * count);
        }
    }
    *args.aux_loss.as<float>() = static_cast<float>(coeff * total);
    *args.z_loss.as<float>() = static_cast<float>(z_coeff * z_total);
}

}  // namespace moebius::ops::cpu
