#include "moebius/ops/grouped_gemm_quantized/sm90.h"

#include "moebius/ops/grouped_gemm_quantized/sm90_kinds.h"

namespace moebius::ops::sm90 {

void grouped_gemm_quantized(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    const bool weights = args.kind == GemmKind::Wgrad;
    if (args.a.format.scale == ScaleKind::Tensor)
        return weights ? quantized::tensor_weights(args, exec) : quantized::tensor_rows(args, exec);
    return weights ? quantized::block_weights(args, exec) : quantized::block_rows(args, exec);
}

void grouped_gemm_quantized_bf16(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    switch (args.kind) {
        case GemmKind::Forward:
            return mx::forward(args, exec);
        case GemmKind::Dgrad:
            return mx::dgrad(args, exec);
        case GemmKind::Wgrad:
            return mx::wgrad(args, exec);
    }
}

void grouped_gemm_quantized_bf16_ring(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    switch (args.kind) {
        case GemmKind::Forward:
            return mx::ring_forward(args, exec);
        case GemmKind::Dgrad:
            return mx::ring_dgrad(args, exec);
        case GemmKind::Wgrad:
            return mx::ring_wgrad(args, exec);
    }
}

}  // namespace moebius::ops::sm90
