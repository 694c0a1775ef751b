#pragma once

#include <vector>

#include "moebius/ops/gemm/cpu_products.h"
#include "moebius/ops/grouped_gemm/grouped_gemm.h"

namespace moebius::ops::cpu {

// One run of rows an expert. Throws Error on a negative size or a sum above `capacity`.
struct ExpertRows {
    int64_t first = 0, rows = 0;
};
std::vector<ExpertRows> expert_rows(const View& split_sizes, int64_t capacity);

void grouped_gemm_packed(const GroupedGemmArgs& args, const Exec& exec);
// One expert's product after the other.
void grouped_gemm_loop(const GroupedGemmArgs& args, const Exec& exec);
void grouped_bias_grad(const GroupedBiasGradArgs& args, const Exec& exec);

}  // namespace moebius::ops::cpu
