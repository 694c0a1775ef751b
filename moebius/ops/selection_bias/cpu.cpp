#include "moebius/ops/selection_bias/cpu.h"

namespace moebius::ops::cpu {

void selection_bias(const SelectionBiasArgs& args, const Exec&) {
    if (args.bad && *args.bad.as<int32_t>() != 0) return;
    const int64_t experts = args.counts.numel();
    const auto* counts = args.counts.as<float>();
    auto* bias = args.bias.as<float>();
    double total = 0;
    for (int64_t e = 0; e < experts; ++e) total += static_cast<double>(counts[e]);
    for (int64_t e = 0; e < experts; ++e) {
        const double gap = total - static_cast<double>(experts) * static_cast<double>(counts[e]);
        bias[e] += gap > 0 ? args.rate : gap < 0 ? -args.rate : 0.0f;
    }
}

}  // namespace moebius::ops::cpu
