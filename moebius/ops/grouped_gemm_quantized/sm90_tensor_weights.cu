#include "moebius/ops/grouped_gemm_quantized/sm90_kinds.h"
#include "moebius/ops/grouped_gemm_quantized/sm90_launch.cuh"

namespace moebius::ops::sm90::quantized {

void tensor_weights(const GroupedGemmQuantizedArgs& args, const Exec& exec) {
    constexpr const char* kName = "grouped_gemm_quantized.weights";
    if (args.fast_accumulation) {
        launch_for_codes<Scaling::Tensor, true, false, StoreWeights>(kName, args, exec);
    } else {
        launch_for_codes<Scaling::Tensor, true, true, StoreWeights>(kName, args, exec);
    }
}

}  // namespace moebius::ops::sm90::quantized
