// From router logits to the k chosen experts of each token, their weights, and the statistics of the
// auxiliary losses.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

enum class RouterScore { Softmax, Sigmoid };

struct RouterOptions {
    int64_t topk = 2;
    RouterScore score = RouterScore::Softmax;
    // Group-limited selection: experts lie in `num_groups` equal groups; a token chooses among the
    // `topk_groups` groups with the largest sum of their two best selection scores (the best one where a
    // group has one). 1, 1: no limit.
    int64_t num_groups = 1, topk_groups = 1;
    bool normalize =
        true;  // weights divided by their sum over the k chosen (Softmax then equals top-k, softmax)
};

// Ties: the lower expert (group) index wins. Weights come from scores without bias. Sums over tokens run in
// an order that depends on shapes only.
struct RouterArgs {
    RouterOptions options;
    View logits;        // (T, E) f32
    View bias;          // (E) f32, optional: added to the scores for selection only
    View valid;         // (T) u8, optional: tokens with 0 count in no statistic; they are routed all the same
    View topk_indices;  // (T, k) i32 out, by descending selection score
    View topk_weights;  // (T, k) f32 out
    // Statistics over valid tokens, optional, each added to what is there:
    View counts;     // (E) f32: copies sent to each expert
    View prob_sums;  // (E) f32: sums of the full softmax (Sigmoid: of scores divided by their sum)
    View z_sum;      // (1) f32: Σ logsumexp(logits)²
    View tokens;     // (1) f32: number of valid tokens
};
void router(const RouterArgs& args, const Exec& exec);
Cost cost(const RouterArgs& args);
std::vector<VariantInfo> router_variants();

// Selection carries no gradient.
struct RouterBackwardArgs {
    RouterOptions options;
    View logits, valid;               // as in forward
    View topk_indices, topk_weights;  // as forward left them
    View dweights;                    // (T, k) f32
    View dprobs;   // (E) f32, optional: d loss / d prob_sums[e], for every valid token alike
    View dz;       // (1) f32, optional: d loss / d z_sum
    View dlogits;  // (T, E) f32 out
};
void router_backward(const RouterBackwardArgs& args, const Exec& exec);
Cost cost(const RouterBackwardArgs& args);
std::vector<VariantInfo> router_backward_variants();

}  // namespace moebius::ops
