#include "moebius/ops/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "moebius/ops/adamw/adamw.h"
#include "moebius/ops/attention/attention.h"
#include "moebius/ops/aux_loss/aux_loss.h"
#include "moebius/ops/cross_entropy/cross_entropy.h"
#include "moebius/ops/delayed_scaling/delayed_scaling.h"
#include "moebius/ops/elementwise/elementwise.h"
#include "moebius/ops/embedding/embedding.h"
#include "moebius/ops/gemm/gemm.h"
#include "moebius/ops/global_norm/global_norm.h"
#include "moebius/ops/glu_quantize/glu_quantize.h"
#include "moebius/ops/grouped_gemm/grouped_gemm.h"
#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"
#include "moebius/ops/grouped_mlp/grouped_mlp.h"
#include "moebius/ops/grouped_mlp_quantized/grouped_mlp_quantized.h"
#include "moebius/ops/permute/permute.h"
#include "moebius/ops/quantize/quantize.h"
#include "moebius/ops/rms_norm/rms_norm.h"
#include "moebius/ops/rope/rope.h"
#include "moebius/ops/router/router.h"
#include "moebius/ops/selection_bias/selection_bias.h"
#include "moebius/ops/swiglu/swiglu.h"

namespace moebius::ops {
namespace {

// In a row's range of compute capabilities: of every later card too.
constexpr int kAnyLaterCc = 999;

std::string compute_capabilities(const VariantInfo& v) {
    const auto text = [](int cc) { return fmt::format("{}.{}", cc / 10, cc % 10); };
    if (v.max_cc == v.min_cc) return text(v.min_cc);
    if (v.max_cc >= kAnyLaterCc) return text(v.min_cc) + " and later";
    return text(v.min_cc) + " to " + text(v.max_cc);
}

std::string why_not_here(const VariantInfo& v, DeviceKind device, int cc) {
    if (!v.in_build) return "not in this build";
    if (v.kind != device) return v.kind == DeviceKind::Cuda ? "for a GPU" : "for the CPU";
    return v.covers(device, cc) ? "" : "for compute capability " + compute_capabilities(v);
}

}  // namespace

std::string describe_variants(const OpInfo& op, DeviceKind device, int cc) {
    std::vector<VariantInfo> in_build;
    for (const VariantInfo& v : op.variants) {
        if (v.in_build) in_build.push_back(v);
    }
    const VariantInfo* found = expected_variant(in_build, device, cc);
    const std::string expected = found ? found->name : "";
    std::vector<std::string> words;
    bool above = true;
    for (const VariantInfo& v : op.variants) {
        const bool star = v.name == expected;
        if (star) above = false;
        std::vector<std::string> notes;
        // What stands below runs where a shape or a name asks for it: that it is for another device is plain.
        if (const std::string reason = why_not_here(v, device, cc); !reason.empty() && (above || !v.in_build))
            notes.push_back(reason);
        if (!v.repeats) notes.emplace_back("only if forced: other bits in each run");
        if (v.untried) notes.emplace_back("not yet run on such a card");
        words.push_back((star ? "*" : "") + v.name +
                        (notes.empty() ? "" : fmt::format(" ({})", fmt::join(notes, "; "))));
    }
    return fmt::format("{}", fmt::join(words, ", "));
}

std::vector<OpInfo> registry() {
    return {
        {"adamw", adamw_variants()},
        {"add", add_variants()},
        {"attention", attention_variants()},
        {"attention_backward", attention_backward_variants()},
        {"aux_loss", aux_loss_variants()},
        {"clip_factor", clip_factor_variants()},
        {"combine_rows", combine_rows_variants()},
        {"convert", convert_variants()},
        {"cross_entropy", cross_entropy_variants()},
        {"delayed_scaling", delayed_scaling_variants()},
        {"dequantize", dequantize_variants()},
        {"embedding", embedding_variants()},
        {"embedding_backward", embedding_backward_variants()},
        {"gather_rows", gather_rows_variants()},
        {"gemm", gemm_variants()},
        {"grouped_bias_grad", grouped_bias_grad_variants()},
        {"grouped_gemm", grouped_gemm_variants()},
        {"grouped_gemm_quantized", grouped_gemm_quantized_variants()},
        {"grouped_mlp", grouped_mlp_variants()},
        {"grouped_mlp_backward", grouped_mlp_backward_variants()},
        {"grouped_mlp_quantized", grouped_mlp_quantized_variants()},
        {"grouped_mlp_quantized_backward", grouped_mlp_quantized_backward_variants()},
        {"jitter", jitter_variants()},
        {"permutation", permutation_variants()},
        {"permute_scalars", permute_scalars_variants()},
        {"quantize", quantize_variants()},
        {"rms_norm", rms_norm_variants()},
        {"rms_norm_backward", rms_norm_backward_variants()},
        {"rope", rope_variants()},
        {"router", router_variants()},
        {"router_backward", router_backward_variants()},
        {"scaled_glu", scaled_glu_variants()},
        {"scaled_glu_backward", scaled_glu_backward_variants()},
        {"scaled_glu_backward_quantize", scaled_glu_backward_quantize_variants()},
        {"scaled_glu_quantize", scaled_glu_quantize_variants()},
        {"selection_bias", selection_bias_variants()},
        {"sum_into", sum_into_variants()},
        {"sum_of_squares", sum_of_squares_variants()},
        {"tensor_amax", tensor_amax_variants()},
    };
}

}  // namespace moebius::ops
