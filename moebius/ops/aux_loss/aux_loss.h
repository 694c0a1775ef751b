// Load-balancing and z losses from the router's statistics, and what their backward hands to the router.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

// HuggingFace: coeff · E · Σ_e f_e P_e over all layers' tokens together, f_e = copies / tokens (balanced
// value k). Switch: per layer with f_e = copies / (k · tokens) (balanced value 1), summed over layers. z
// loss: z_coeff · mean over tokens of logsumexp², summed over layers. Without tokens all of it is 0.
enum class AuxLossDefinition { HuggingFace, Switch };

struct AuxLossArgs {
    AuxLossDefinition definition = AuxLossDefinition::Switch;
    float coeff = 0, z_coeff = 0;
    int64_t topk = 2;
    View counts, prob_sums;  // (L, E) f32, summed over all ranks that share the batch
    View z_sums, tokens;     // (L) f32
    View scale;  // (1) f32: what gradients are multiplied by (these losses are means, gradients may be sums);
                 // needed with dprobs or dz
    View aux_loss;        // (1) f32 out: load balancing, without `scale`, coefficient included
    View z_loss;          // (1) f32 out
    View layer_aux_loss;  // (L) f32 out, optional: each layer's own balance value, without coefficient
    View dprobs;          // (L, E) f32 out, optional: scale · d aux_loss / d prob_sums; counts carry none
    View dz;              // (L) f32 out, optional: scale · d z_loss / d z_sums
};
void aux_loss(const AuxLossArgs& args, const Exec& exec);
Cost cost(const AuxLossArgs& args);
std::vector<VariantInfo> aux_loss_variants();

}  // namespace moebius::ops
