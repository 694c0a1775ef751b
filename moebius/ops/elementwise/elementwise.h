// Small elementwise ops.
#pragma once

#include "moebius/ops/variant.h"
#include "moebius/tensor/view.h"

namespace moebius::ops {

// out = (dtype of out) x, rounded to nearest even. Contiguous.
struct ConvertArgs {
    View x, out;
};
void convert(const ConvertArgs& args, const Exec& exec);
Cost cost(const ConvertArgs& args);
std::vector<VariantInfo> convert_variants();

// out = x + y in fp32, one final cast; out may be x or y.
struct AddArgs {
    View x, y, out;
};
void add(const AddArgs& args, const Exec& exec);
Cost cost(const AddArgs& args);
std::vector<VariantInfo> add_variants();

// Input jitter: out = x · uniform(1 − epsilon, 1 + epsilon), the factor of an element from (seed, stream, its
// index) by Philox. The backward multiplies dy by the same factors: the same call. out may be x.
struct JitterArgs {
    View x, out;  // (T, H)
    float epsilon = 0;
    uint64_t seed = 0;
    const char* purpose = "jitter";
    int64_t first_index =
        0;  // of the first element, global over the step, so that no layout changes the factors
};
void jitter(const JitterArgs& args, const Exec& exec);
Cost cost(const JitterArgs& args);
std::vector<VariantInfo> jitter_variants();

// out (1) f32 += Σ x in a fixed order, fp64 inside. x (n) f32.
struct SumArgs {
    View x, out;
};
void sum_into(const SumArgs& args, const Exec& exec);
Cost cost(const SumArgs& args);
std::vector<VariantInfo> sum_into_variants();

}  // namespace moebius::ops
