#include "moebius/ops/case.h"

namespace moebius::ops {

// One function an op folder, in its cases.cpp.
void adamw_cases(std::vector<Case>& cases);
void attention_cases(std::vector<Case>& cases);
void aux_loss_cases(std::vector<Case>& cases);
void cross_entropy_cases(std::vector<Case>& cases);
void delayed_scaling_cases(std::vector<Case>& cases);
void elementwise_cases(std::vector<Case>& cases);
void embedding_cases(std::vector<Case>& cases);
void gemm_cases(std::vector<Case>& cases);
void global_norm_cases(std::vector<Case>& cases);
void glu_quantize_cases(std::vector<Case>& cases);
void grouped_gemm_cases(std::vector<Case>& cases);
void grouped_gemm_quantized_cases(std::vector<Case>& cases);
void grouped_mlp_cases(std::vector<Case>& cases);
void grouped_mlp_quantized_cases(std::vector<Case>& cases);
void permute_cases(std::vector<Case>& cases);
void quantize_cases(std::vector<Case>& cases);
void rms_norm_cases(std::vector<Case>& cases);
void rope_cases(std::vector<Case>& cases);
void router_cases(std::vector<Case>& cases);
void selection_bias_cases(std::vector<Case>& cases);
void swiglu_cases(std::vector<Case>& cases);

std::vector<Case> all_cases() {
    std::vector<Case> cases;
    adamw_cases(cases);
    attention_cases(cases);
    aux_loss_cases(cases);
    cross_entropy_cases(cases);
    delayed_scaling_cases(cases);
    elementwise_cases(cases);
    embedding_cases(cases);
    gemm_cases(cases);
    global_norm_cases(cases);
    glu_quantize_cases(cases);
    grouped_gemm_cases(cases);
    grouped_gemm_quantized_cases(cases);
    grouped_mlp_cases(cases);
    grouped_mlp_quantized_cases(cases);
    permute_cases(cases);
    quantize_cases(cases);
    rms_norm_cases(cases);
    rope_cases(cases);
    router_cases(cases);
    selection_bias_cases(cases);
    swiglu_cases(cases);
    return cases;
}

}  // namespace moebius::ops
