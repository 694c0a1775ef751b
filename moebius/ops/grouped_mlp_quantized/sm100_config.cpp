#include <utility>

#include "moebius/ops/grouped_gemm/sm90_config.h"
#include "moebius/ops/grouped_mlp_quantized/sm100.h"

namespace moebius::ops::sm100 {

std::string why_not_mlp_quantized(const GroupedMlpQuantizedArgs& a, const Exec&) {
    constexpr int64_t kScaleBlock = 32;
    const auto number = [](int64_t value) { return std::to_string(value); };
    const Format& format = a.activation.row.format;
    if (format.scale != ScaleKind::MX32)
        return "takes " + std::string(name(ScaleKind::MX32)) + " scales, not " +
               std::string(name(format.scale));
    if (format.element != DType::F8E4M3)
        return "makes the activation in " + std::string(name(DType::F8E4M3)) + ", not " +
               std::string(name(format.element));
    if (a.c.dtype != DType::BF16) return "keeps c in bf16, not " + std::string(name(a.c.dtype));
    if (a.activation.rule.observed_amax || a.activation.rule.counts) return "keeps no statistics of codes";
    if (a.options.interleave != 0)
        return "takes gates first, then ups, not glu_interleave_size = " + number(a.options.interleave);
    const int64_t intermediate = a.c.size(1) / 2, hidden = a.x.data.size(1), experts = a.split_sizes.size(0);
    if (experts > sm90::kMostExperts)
        return "has " + number(experts) + " experts, more than " + number(sm90::kMostExperts);
    if (intermediate % kScaleBlock != 0)
        return "intermediate size " + number(intermediate) + " is not a multiple of 32";
    if (hidden == 0 || hidden % 16 != 0) return "hidden size " + number(hidden) + " is not a multiple of 16";
    for (const auto& [view, what] : {std::pair{&a.x.data, "x"},
                                     {&a.gate_up.data, "gate_up"},
                                     {&a.c, "c"},
                                     {&a.activation.row.data, "the activation"},
                                     {&a.activation.column.data, "the column-wise activation"}}) {
        if (!*view) continue;
        if (const std::string reason = sm90::why_no_map(*view, what); !reason.empty()) return reason;
    }
    return {};
}

}  // namespace moebius::ops::sm100
