// Balancing without an auxiliary loss: at a step's end every expert's selection bias moves by `rate` towards
// its share of the load. Wang et al., "Auxiliary-loss-free load balancing strategy for mixture-of-experts",
// 2024.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

// bias += rate · sign(Σ counts − E · count). The sum is taken in double, where counts are exact: no order of
// adding changes a sign. Nothing is written where *bad ≠ 0.
struct SelectionBiasArgs {
    View counts;  // (E) f32: copies to each expert in the step, whole numbers
    View bias;    // (E) f32, updated
    View bad;     // (1) i32, optional
    float rate = 0;
};
void selection_bias(const SelectionBiasArgs& args, const Exec& exec);
Cost cost(const SelectionBiasArgs& args);
std::vector<VariantInfo> selection_bias_variants();

}  // namespace moebius::ops
