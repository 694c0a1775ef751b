// Rotary position embedding by halves: dimension j pairs with j + d/2, angle position · θ^(−2j/d) in fp32.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

struct RopeArgs {
    View x;          // (T, heads, d), d even; may be strided over tokens and heads
    View positions;  // (T) i32, from 0 in every sequence
    View out;        // (T, heads, d); may be x
    float theta = 1e4f;
    bool inverse = false;  // rotate back: the backward of forward
};
void rope(const RopeArgs& args, const Exec& exec);
Cost cost(const RopeArgs& args);
std::vector<VariantInfo> rope_variants();

}  // namespace moebius::ops
