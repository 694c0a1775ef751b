#pragma once

#include <string>

#include "moebius/ops/grouped_gemm_quantized/grouped_gemm_quantized.h"

namespace moebius::ops::sm90 {

// On Hopper's FP8 tensor cores: Tensor and Block128 scales. And on its bf16 ones: MX32, in bf16 in scratch, 2
// bytes a code of both operands while the product runs.
void grouped_gemm_quantized(const GroupedGemmQuantizedArgs& args, const Exec& exec);
void grouped_gemm_quantized_bf16(const GroupedGemmQuantizedArgs& args, const Exec& exec);
// The same where both operands in bf16 would be large: scratch holds a part of them at a time.
void grouped_gemm_quantized_bf16_ring(const GroupedGemmQuantizedArgs& args, const Exec& exec);

// The first reason against them, or "". Host arithmetic, no CUDA.
std::string why_not(const GroupedGemmQuantizedArgs& args, const Exec& exec);
std::string why_not_bf16(const GroupedGemmQuantizedArgs& args, const Exec& exec);
std::string why_not_bf16_ring(const GroupedGemmQuantizedArgs& args, const Exec& exec);

// In which steps a product's MX operands become bf16 (sm90_mx_widen.cuh): in segments of `each` experts, of
// which all warps widen the first `at_once` before anything is multiplied, and idle ones the rest meanwhile.
struct WideningPlan {
    int64_t each = 1, segments = 0, at_once = 1;
};
WideningPlan plan_widening(const GroupedGemmQuantizedArgs& args);

// What scratch holds of a product's MX operands at a time (sm90_mx_ring.cuh), whatever the routing.
struct RingPlan {
    int64_t band = 1;                        // units of 128 rows of A's side in a segment, at most
    int64_t slots = 1, b_slots = 1;          // segments of A, and weights, at a time
    int64_t at_once = 1;                     // segments widened before anything is multiplied, at most
    int64_t segments = 0;                    // of all experts, at most
    int64_t a_elements = 0, b_elements = 0;  // bf16 numbers of scratch
    int64_t tiles = 0;                       // of a mean expert
    int64_t bytes() const { return 2 * (a_elements + b_elements); }
};
RingPlan plan_ring(const GroupedGemmQuantizedArgs& args);

}  // namespace moebius::ops::sm90
