#include "moebius/train/fused_variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "moebius/base/error.h"

namespace moebius::train {
namespace {

constexpr std::string_view kFusedOps[] = {"grouped_mlp", "grouped_mlp_backward", "grouped_mlp_quantized",
                                          "grouped_mlp_quantized_backward"};

// Such a variant's name ends so, in every table.
bool is_composed(std::string_view variant) {
    return variant.ends_with("_composed");
}
// And so that of one that fuses all but the making of codes, whose scale the product's last tile completes.
bool makes_codes_later(std::string_view variant) {
    return variant.ends_with("_amax");
}

// What a variant says of a value, and the key that gives it. Interleaved gates, which no key asks for, and
// places in memory have none.
struct KeyOfReason {
    std::string_view words, key;
};
constexpr std::string_view kRecipe = "fp8_config.fp8_recipe";
constexpr KeyOfReason kKeys[] = {
    {"intermediate size", "config_kwargs.intermediate_size"},
    {"hidden size", "config_kwargs.hidden_size"},
    {" experts, more than", "config_kwargs.num_local_experts"},
    {"takes bf16", "dtype"},
    {"keeps c in bf16", "dtype"},
    {"scales that are powers of two", "fp8_config.fp8_recipe_kwargs (use_f32_scales, power_2_scale)"},
    {"scales", kRecipe},
    {"statistics", "fp8_stats_config.enabled"},
    {"counts no codes", "fp8_stats_config.enabled"},
    {"f8e4m3", "fp8_config.fp8_format"},
};

std::string_view key_behind(std::string_view reason) {
    for (const KeyOfReason& row : kKeys) {
        if (reason.find(row.words) != std::string_view::npos) return row.key;
    }
    return {};
}

// The first line of "name: reason" about that variant; "" without one.
std::string reason_against(const std::string& variant, const VariantLog::Entry& entry) {
    const std::string start = variant + ": ";
    for (const std::string& line : entry.passed_over) {
        if (line.starts_with(start)) return line.substr(start.size());
    }
    return {};
}

}  // namespace

std::vector<FusedVariant> fused_variants(const VariantLog& log, std::span<const ops::OpInfo> ops,
                                         DeviceKind device, int cc) {
    std::vector<FusedVariant> found;
    for (const VariantLog::Entry& entry : log.entries()) {
        if (std::find(std::begin(kFusedOps), std::end(kFusedOps), entry.op) == std::end(kFusedOps)) continue;
        FusedVariant row{.op = entry.op, .chosen = entry.chosen, .calls = entry.calls};
        row.composed = is_composed(entry.chosen);
        const auto op =
            std::find_if(ops.begin(), ops.end(), [&](const auto& o) { return o.name == entry.op; });
        if (row.composed && op != ops.end()) {
            for (const ops::VariantInfo& variant : op->variants) {
                if (is_composed(variant.name) || !variant.repeats || !variant.covers(device, cc)) continue;
                const std::string reason = reason_against(variant.name, entry);
                // What is for another recipe says less than one for this that refuses something else.
                const bool other_recipe = key_behind(reason) == kRecipe;
                if (!row.passed_over.empty() && (other_recipe || reason.empty())) continue;
                row.passed_over = variant.name;
                row.reason = reason;
                if (!other_recipe) break;
            }
        }
        // Layers that differ in nothing but what is said of other variants are one row.
        const auto same = std::find_if(found.begin(), found.end(), [&](const FusedVariant& other) {
            return other.op == row.op && other.chosen == row.chosen && other.reason == row.reason;
        });
        if (same == found.end()) {
            found.push_back(std::move(row));
        } else {
            same->calls += row.calls;
        }
    }
    return found;
}

std::string describe(std::span<const FusedVariant> variants) {
    std::string text;
    for (const FusedVariant& v : variants) {
        const auto choices = std::count_if(variants.begin(), variants.end(),
                                           [&](const auto& other) { return other.op == v.op; });
        text += fmt::format("{}{} = {}{}", text.empty() ? "" : "; ", v.op, v.chosen,
                            choices > 1 ? fmt::format(" in {} calls", v.calls) : "");
        if (makes_codes_later(v.chosen)) {
            text += ", the activation's codes by a kernel after it: their scale is known after the last tile";
        }
        if (!v.composed) continue;
        text += ", composed of several operations: ";
        if (v.passed_over.empty()) {
            text += "no variant for this device fuses them";
        } else if (v.reason.empty()) {
            text += fmt::format("kernels.{} asks for it, not for {}", v.op, v.passed_over);
        } else {
            text += fmt::format("not {}: {}", v.passed_over, v.reason);
        }
    }
    return text;
}

void check_strict_fusion(std::span<const FusedVariant> variants) {
    for (const FusedVariant& v : variants) {
        if (!v.composed || v.reason.empty()) continue;
        const std::string_view key = key_behind(v.reason);
        throw Error(fmt::format(
            "fusion = strict, but {0} runs as {1}, composed of several operations, not as {2}: {3}\n"
            "  {4}fusion=auto takes what there is, kernels.{0}={1} takes this one with fusion=strict too",
            v.op, v.chosen, v.passed_over, v.reason,
            key.empty() ? "" : fmt::format("another {} may do; ", key)));
    }
}

}  // namespace moebius::train
