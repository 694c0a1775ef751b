// Products of one weight or of one an expert, on every CUDA card: what gemm and grouped_gemm hand to the
// kernels in any.cu.
#pragma once

#include "moebius/ops/gemm/gemm.h"

namespace moebius::ops::cuda {

// A kernel's parameter: addresses and strides (in elements) on the device.
struct AnyProducts {
    const void *a = nullptr, *b = nullptr;
    void* out = nullptr;
    int64_t a_stride = 0, b_stride = 0, out_stride = 0;  // between rows
    int64_t b_expert = 0, out_expert = 0;                // between experts' matrices; Wgrad: out's, else b's
    int64_t m = 0;                                       // rows of a: a capacity where there are split_sizes
    int64_t n = 0;                                       // columns of out
    int64_t k = 0;  // Forward, Dgrad: columns of a, the depth; Wgrad: columns of a, rows of an expert's out
    const void* split_sizes = nullptr;  // (experts); null: all rows are one expert's
    int64_t experts = 1;
    const void* bias = nullptr;         // (experts, n), optional
    const float* bias_scale = nullptr;  // (m), optional
    int64_t bias_stride = 0;
    bool split_is_i64 = false, out_is_bf16 = false, bias_is_bf16 = false, accumulate = false;
    // Every row of the operand begins on 16 bytes; rows of out on whole pairs of elements.
    bool a_aligned = false, b_aligned = false, out_paired = false;
};

struct AnyProductsArgs {
    const char* name;  // of the launch
    GemmKind kind;
    View a, b, out;  // as in GemmArgs or GroupedGemmArgs
    View split_sizes, bias, bias_scale;
    bool accumulate;
};
void any_products(const AnyProductsArgs& args, const Exec& exec);

}  // namespace moebius::ops::cuda
