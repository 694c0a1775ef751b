// DelayedScaling's step from amaxes seen to the scales that are used next, of many tensors in one call.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

// n scales (one an expert of each tensor), each with its history of L amaxes: [0] is room for the pass that
// ended, the others those of passes before, the oldest at [1]. Into [0] goes the largest of `observed`'s
// rows; amax = [0] or the largest of the history. Where it is above zero and finite,
//   scale = (largest / amax) / 2^margin, at most fp32's largest number,
// else scale stays; so it does with a NaN in the history. Then the oldest falls out, and [0] is 0. Nothing is
// written where *bad ≠ 0.
struct DelayedScalingArgs {
    View observed;      // (S, n) f32, rows strided: amaxes of the pass, of its S parts
    View history;       // (n, L) f32, updated
    View scale;         // (n) f32, updated
    View bad;           // (1) i32, optional
    float largest = 0;  // number that the tensors' elements can hold
    int margin = 0;
    bool most_recent = false;  // amax = [0]
};
void delayed_scaling(const DelayedScalingArgs& args, const Exec& exec);
Cost cost(const DelayedScalingArgs& args);
std::vector<VariantInfo> delayed_scaling_variants();

}  // namespace moebius::ops
