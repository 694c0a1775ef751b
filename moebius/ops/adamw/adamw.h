// AdamW over a contiguous range of the flat parameter buffers, all arithmetic in fp32:
//   g = clip · grad;  m = β1 m + (1−β1) g;  v = β2 v + (1−β2) g²
//   p −= lr · ((m / (1−β1ᵗ)) / (√(v / (1−β2ᵗ)) + eps) + wd · p)
// Loshchilov and Hutter, "Decoupled weight decay regularization", 2019. Nothing is written where *bad ≠ 0.
//
// p, the master, is held in one of four ways, updated alike:
//   master                f32 weights, which are their own masters
//   master, weights       an f32 master beside bf16 weights, which are its value rounded to nearest even
//   weights, remainder    the f32 master as bf16 weights and 16 bits each (base/split_float.h): exact
//   weights               bf16 weights alone, widened, updated and rounded to nearest even: steps below half
//   an
//                         ulp of a weight (1/512 to 1/256 of it) are lost
// bf16 moments are widened, updated in fp32 and rounded to nearest even once; the step takes them unrounded.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

struct AdamWArgs {
    View master;         // (n) f32, updated; see above for when it is absent
    View weights;        // (n) bf16; read too where there is no master
    View remainder;      // (n) i16, updated
    View grad;           // (n) f32 or bf16
    View m, v;           // (n) f32 or bf16, updated
    View learning_rate;  // (1) f32
    View clip;           // (1) f32
    View step;           // (1) i64: t, from 1
    View bad;            // (1) i32
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-5f, weight_decay = 0;
};
void adamw(const AdamWArgs& args, const Exec& exec);
Cost cost(const AdamWArgs& args);
std::vector<VariantInfo> adamw_variants();

}  // namespace moebius::ops
