#include "moebius/ops/grouped_mlp_quantized/sm90_config.h"

#include <utility>

#include "moebius/ops/grouped_gemm/sm90_config.h"

namespace moebius::ops::sm90 {

namespace {

// Whatever the scales are.
std::string why_not_shapes(const GroupedMlpQuantizedArgs& a) {
    const auto number = [](int64_t value) { return std::to_string(value); };
    const Format& format = a.activation.row.format;
    for (const auto& [dtype, what] : {std::pair{a.x.data.dtype, "x"},
                                      {a.gate_up.data.dtype, "gate_up"},
                                      {format.element, "the activation"}}) {
        if (dtype != DType::F8E4M3)
            return "takes " + std::string(what) + " in " + std::string(name(DType::F8E4M3)) + ", not " +
                   std::string(name(dtype));
    }
    if (a.c.dtype != DType::BF16) return "keeps c in bf16, not " + std::string(name(a.c.dtype));
    if (a.options.interleave != 0)
        return "takes gates first, then ups, not glu_interleave_size = " + number(a.options.interleave);
    const int64_t intermediate = a.c.size(1) / 2, hidden = a.x.data.size(1), experts = a.split_sizes.size(0);
    if (experts > kMostExperts)
        return "has " + number(experts) + " experts, more than " + number(kMostExperts);
    if (intermediate % kRowBlock != 0)
        return "intermediate size " + number(intermediate) + " is not a multiple of 128";
    if (hidden == 0 || hidden % 16 != 0) return "hidden size " + number(hidden) + " is not a multiple of 16";
    for (const auto& [view, what] : {std::pair{&a.x.data, "x"},
                                     {&a.x.scale, "x's scale"},
                                     {&a.gate_up.data, "gate_up"},
                                     {&a.c, "c"},
                                     {&a.activation.row.data, "the activation"},
                                     {&a.activation.column.data, "the column-wise activation"}}) {
        if (!*view) continue;
        if (const std::string reason = why_no_map(*view, what); !reason.empty()) return reason;
    }
    return {};
}

std::string why_not_kind(const GroupedMlpQuantizedArgs& a, ScaleKind taken) {
    const ScaleKind kind = a.activation.row.format.scale;
    if (kind == taken) return {};
    return "takes scales of kind " + std::string(name(taken)) + ", not " + std::string(name(kind));
}

}  // namespace

std::string why_not_mlp_quantized(const GroupedMlpQuantizedArgs& a, const Exec&) {
    if (const std::string reason = why_not_kind(a, ScaleKind::Block128); !reason.empty()) return reason;
    if (!a.activation.row.format.power_of_two) return "takes scales that are powers of two";
    if (a.activation.rule.observed_amax || a.activation.rule.counts) return "keeps no statistics of codes";
    return why_not_shapes(a);
}

std::string why_not_mlp_quantized_given(const GroupedMlpQuantizedArgs& a, const Exec&) {
    if (const std::string reason = why_not_kind(a, ScaleKind::Tensor); !reason.empty()) return reason;
    const QuantizeRule& rule = a.activation.rule;
    if (!rule.scale && !rule.amax)
        return "takes scales that are known before, not those of the activation's own amax";
    if (rule.counts) return "counts no codes";
    return why_not_shapes(a);
}

std::string why_not_mlp_quantized_amax(const GroupedMlpQuantizedArgs& a, const Exec&) {
    if (const std::string reason = why_not_kind(a, ScaleKind::Tensor); !reason.empty()) return reason;
    const QuantizeRule& rule = a.activation.rule;
    if (rule.scale || rule.amax) return "takes scales of the activation's own amax, not those known before";
    return why_not_shapes(a);
}

}  // namespace moebius::ops::sm90
